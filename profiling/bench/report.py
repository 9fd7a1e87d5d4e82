"""A benchmark's results: JSON for programs, and tables of the same numbers for people.

`put_out` ends a benchmark that has no variants: its findings as a table, and JSON if asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from common.charts import Column, Table, table_rows, text_column
from common.console import make_console, print_line, significant
from common.files import write_json
from common.machine import environment
from profiling.bench.results import CEILING, CEILING_RECIPE, Finding, Results, disturbance
from profiling.bench.variant import Variant

MOST_MOVING = 20  # Operators in the table of bytes
OPERATORS_SHOWN = 20
"""Operators in the table of where the time goes, the costliest; the JSON file has all."""
PIPE_WIDTH = 140  # A pipe gets room for whole lines

VARIANT_COLUMNS = (
    *map(text_column, ("contestant", "torch", "allocator")),
    Column("median s", significant, name="median_s"),
    Column("lowest–highest"),
    Column("beside load s", significant),
    Column("images/s", significant, name="images_per_s"),
    Column("ms per image", ",.0f", name="ms_per_image"),
    Column("GFLOP/s", ",.0f", name="gflop_per_s"),
    Column("convolving", ".1%", name="convolving_share"),
    Column("GB moved", ".1f", name="gigabytes_moved"),
    Column("page faults", ",.0f", name="page_faults"),
    Column("peak MB", ",.0f", name="peak_rss_mb"),
)
FINDING_COLUMNS = (
    text_column("quantity", name="what"),
    Column("measured", name="shown"),
    Column("target"),
    text_column("", name="verdict"),
)
OPERATOR_COLUMNS = (
    text_column("oneDNN primitive, or torch operator x calls"),
    Column("time [s]", ".4f"),
    Column("share of run", ".1%"),
)
BYTES_COLUMNS = (
    *map(text_column, ("phase", "operator x calls")),
    *(Column("read [GB]", ".3f"), Column("written [GB]", ".3f"), Column("share", ".1%")),
)


def as_json(results: Results, findings: Sequence[Finding], *, benchmark: str) -> dict[str, Any]:
    """Return seconds, MB of 10⁶ bytes, and ratios: times as fast, as `torch/torchvision`: 4.6."""
    pairs = permutations(results.names, 2)
    ratios = {f"{name}/{other}": results.ratio(name, other) for name, other in pairs}
    return {
        "benchmark": benchmark,
        "workload": vars(results.workload),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": {
            variant.name: variant_json(results, variant) for variant in results.variants
        },
        "ratios": {name: ratio.median for name, ratio in ratios.items()},
        "ratio_ranges": {name: [ratio.lowest, ratio.highest] for name, ratio in ratios.items()},
        "findings": findings_json(findings),
    }


def variant_json(results: Results, variant: Variant) -> dict[str, Any]:
    """Return a variant's numbers; what was not measured is left out."""
    name = variant.name
    runs = results.runs[name]
    content: dict[str, Any] = {
        "versions": dict(variant.versions),
        "allocator": variant.allocator,
        "median_s": results.seconds(name),
        "runs_s": [run.seconds for run in runs],
        "page_faults": results.page_faults(name),
        "page_faults_of_runs": [run.page_faults for run in runs],
        "peak_rss_mb": results.peak_mb(name),
        "rss_mb": runs[-1].rss_mb,
        "details": results.details(name),
        "facts": dict(results.facts.get(name, {})),
    }
    if images := content["facts"].get("images"):
        content["images_per_s"] = images / results.seconds(name)
        content["ms_per_image"] = 1000 * results.seconds(name) / images
    if name in results.loaded_runs:
        content["beside_load_s"] = [run.seconds for run in results.loaded_runs[name]]
        content["times_as_long_beside_load"] = results.slowdown(name).median
    if CEILING in results.names and variant.recipe != CEILING_RECIPE:
        content["gflop_per_s"] = results.facts[CEILING]["step_gflop"] / results.seconds(name)
    if name in results.primitives:
        primitives = results.primitives[name]
        content |= {
            "convolving_share": primitives.convolving_share,
            "onednn_share": primitives.onednn_share,
            "onednn_s": dict(primitives.by_kind),
            "winograd_s": primitives.winograd_seconds,
            "kernels_s": dict(primitives.kernel_seconds),
        }
    if name in results.bytes_moved:
        content["gigabytes_moved"] = results.gigabytes(name)
        content["gigabytes_moved_by_phase"] = results.gigabytes_by_phase(name)
        content["bytes_moved"] = [row._asdict() for row in results.bytes_moved[name]]
    if name in results.operators:
        content["operators_s"] = dict(results.operators[name])
    return content


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings with their targets."""
    names = ("what", "value", "shown", "target")
    return [
        {**{name: getattr(finding, name) for name in names}, "met": finding.is_met}
        for finding in findings
    ]


def print_results(
    results: Results,
    contestants: Mapping[str, Mapping[str, Any]],
    findings: Sequence[Finding],
    *,
    with_targets: bool,
) -> None:
    """Print the variants, then the findings, then times by operator if measured.

    `contestants` are the variants' numbers by name, those of `as_json`.
    """
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(variants_table(results, contestants).for_console())
    if disturbed := disturbance(results.other_cores):
        console.print(disturbed)
    if results.bytes_moved:
        gigabytes = {name: contestants[name]["gigabytes_moved_by_phase"]
                     for name in results.bytes_moved}  # fmt: skip
        phases = dict.fromkeys(phase for by_phase in gigabytes.values() for phase in by_phase)
        columns = [text_column("contestant"), *(Column(phase, ".2f") for phase in (*phases, "all"))]
        rows = [
            (name, *map(by_phase.get, phases), sum(by_phase.values()))
            for name, by_phase in gigabytes.items()
        ]
        table = Table("bytes read and written by operators per run [GB]", columns, rows)
        console.print(table.for_console())
    if findings:
        console.print(findings_table(findings, with_targets=with_targets).for_console())
    for name in results.operators:
        console.print(where_table(name, results).for_console())
        if moved := results.bytes_moved.get(name):
            whole = sum(row.read + row.written for row in moved) or 1
            rows = [
                (phase, f"{operator} x{calls}", read / 1e9, written / 1e9, (read + written) / whole)
                for phase, operator, calls, read, written in moved[:MOST_MOVING]
            ]
            title = f"bytes moved by the operators of {name}"
            console.print(Table(title, BYTES_COLUMNS, rows).for_console())


def variants_table(results: Results, contestants: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a row for each variant; columns that no variant fills are left out."""
    rows = []
    for name, numbers in contestants.items():
        seconds, loaded = numbers["runs_s"], numbers.get("beside_load_s")
        shown = {
            **numbers,
            "contestant": name,
            "torch": results.torch_versions.get(name),
            "lowest–highest": f"{significant(min(seconds))}–{significant(max(seconds))}",
            "beside load s": median(loaded) if loaded else None,
        }
        rows.append([shown.get(column.field) for column in VARIANT_COLUMNS])
    rounds = len(next(iter(results.runs.values())))
    title = f"{results.workload}; {rounds} rounds"
    return Table(title, VARIANT_COLUMNS, rows).without_empty_columns()


def findings_table(findings: Sequence[Finding], *, with_targets: bool) -> Table:
    """Return the findings; beside them the targets, where they are given for the workload."""
    columns = FINDING_COLUMNS if with_targets else FINDING_COLUMNS[:2]
    return Table("", columns, table_rows(columns, findings))


def where_table(name: str, results: Results) -> Table:
    """Return a variant's time by operator: oneDNN's primitives, then torch's operators."""

    def costliest(seconds: Mapping[str, float], whole: float) -> list[tuple[str, float, float]]:
        first = sorted(seconds.items(), key=lambda item: -item[1])[:OPERATORS_SHOWN]
        return [(what, s, s / whole) for what, s in first]

    # Operators are relative to the median run, primitives to the run in which they were timed.
    operators = costliest(results.operators[name], results.seconds(name))
    title = f"time of {name} by operator"
    primitives = results.primitives.get(name)
    if primitives is None:
        return Table(title, OPERATOR_COLUMNS, operators)
    ours = {"winograd": primitives.winograd_seconds or None, **primitives.kernel_seconds}
    by_kind = {**primitives.by_kind, **{f"{k} (ours)": s for k, s in ours.items() if s is not None}}
    rows = costliest(by_kind, primitives.seconds)
    return Table(title, OPERATOR_COLUMNS, rows, totals=operators)


def put_out(
    findings: Sequence[Finding],
    benchmark: str,
    workload: Mapping[str, Any],
    *,
    with_targets: bool,
    json_file: Path | None,
) -> None:
    """Print the findings, and write them with the benchmark's workload and the environment.

    The targets are left out if they are not given `with_targets`, for this workload. Its
    `cores_busy_otherwise`, where it has them, are remarked on.
    """
    if not with_targets:
        findings = [replace(finding, at_least=None, at_most=None) for finding in findings]
    console = make_console(pipe_width=PIPE_WIDTH)
    if disturbed := disturbance(workload.get("cores_busy_otherwise", 0.0)):
        print_line(console, disturbed)
    console.print(findings_table(findings, with_targets=with_targets).for_console())
    if json_file is not None:
        content = {
            "benchmark": benchmark,
            "workload": dict(workload),
            "environment": environment(),
            "findings": findings_json(findings),
        }
        write_json(json_file, content)
