"""A benchmark's results: tables for people, and JSON for programs.

`put_out` ends a benchmark that has no variants: its findings as a table, and JSON if asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from rich import table as rich_table

from common.charts import Column, Table, text_column
from common.console import make_console, significant
from common.files import write_atomically
from common.machine import environment
from profiling.bench.benchmarks import step_gflops
from profiling.bench.results import BytesMoved, Finding, Results, disturbance
from profiling.bench.variant import STANDARD, Variant

MOST_MOVING = 20  # Operators in the table of bytes
OPERATORS_SHOWN = 20
"""Operators in the table of where the time goes, the costliest; the JSON file has all."""
PIPE_WIDTH = 140  # A pipe gets room for whole lines


def print_results(results: Results, findings: Sequence[Finding]) -> None:
    """Print the variants, then the findings, then times by operator if measured."""
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(variants_table(results).for_console())
    if disturbed := disturbance(results.other_cores):
        console.print(disturbed)
    if results.bytes_moved:
        gigabytes = {name: results.gigabytes_by_phase(name) for name in results.bytes_moved}
        phases = dict.fromkeys(phase for by_phase in gigabytes.values() for phase in by_phase)
        columns = [text_column("contestant"), *(Column(phase, ".2f") for phase in (*phases, "all"))]
        rows = [
            (name, *map(by_phase.get, phases), sum(by_phase.values()))
            for name, by_phase in gigabytes.items()
        ]
        table = Table("bytes read and written by operators per run [GB]", columns, rows)
        console.print(table.for_console())
    with_targets = results.workload == STANDARD
    console.print(findings_table(findings, with_targets=with_targets).for_console())
    for name in results.operators:
        console.print(where_table(name, results))
        if name in results.bytes_moved:
            console.print(bytes_table(name, results.bytes_moved[name]).for_console())


def variants_table(results: Results) -> Table:
    """Return a row for each variant; columns that no variant fills are left out."""
    columns = (
        text_column("contestant"),
        text_column("torch"),
        text_column("allocator"),
        Column("median s", significant),
        Column("lowest–highest"),
        Column("beside load s", significant),
        Column("GFLOP/s", ",.0f"),
        Column("convolving", ".1%"),
        Column("GB moved", ".1f"),
        Column("page faults", ",.0f"),
        Column("peak MB", ",.0f"),
    )
    rows = []
    torch_versions = results.torch_versions
    for variant in results.variants:
        name = variant.name
        seconds = [run.seconds for run in results.runs[name]]
        loaded = results.loaded_runs.get(name, ())
        primitives = results.primitives.get(name)
        row = (
            name,
            torch_versions.get(name),
            variant.allocator,
            results.seconds(name),
            f"{significant(min(seconds))}–{significant(max(seconds))}",
            median(run.seconds for run in loaded) if loaded else None,
            step_gflops(results, variant) or None,
            primitives.convolving_share if primitives else None,
            results.gigabytes(name),
            results.page_faults(name),
            results.peak_mb(name),
        )
        rows.append(row)
    rounds = len(next(iter(results.runs.values())))
    return Table(f"{results.workload}; {rounds} rounds", columns, rows).without_empty_columns()


def findings_table(findings: Sequence[Finding], *, with_targets: bool) -> Table:
    """Return the findings; beside them the targets, where they are given for the workload."""
    columns = [text_column("quantity"), Column("measured"), Column("target"), text_column("")]
    rows: list[tuple[str, ...]] = []
    for finding in findings:
        met = "" if not finding.target else "met" if finding.is_met else "missed"
        rows.append((finding.what, finding.shown, finding.target, met))
    if not with_targets:
        columns, rows = columns[:2], [row[:2] for row in rows]
    return Table("", columns, rows)


def where_table(name: str, results: Results) -> rich_table.Table:
    """Return a variant's time by operator: oneDNN's primitives, then torch's operators."""
    table = rich_table.Table(title=f"time of {name} by operator", title_justify="left")
    table.add_column("oneDNN primitive, or torch operator x calls")
    table.add_column("time [s]", justify="right")
    table.add_column("share of run", justify="right")
    primitives, run_seconds = results.primitives.get(name), results.seconds(name)
    # Operators are relative to the median run, primitives to the run in which they were timed.
    groups = [(results.operators[name], run_seconds)]
    if primitives:
        by_kind = dict(primitives.by_kind)
        if primitives.winograd_seconds:
            by_kind["winograd (ours)"] = primitives.winograd_seconds
        by_kind |= {f"{kernel} (ours)": s for kernel, s in primitives.kernel_seconds.items()}
        groups.insert(0, (by_kind, primitives.seconds))
    for group, whole in groups:
        for what, seconds in sorted(group.items(), key=lambda item: -item[1])[:OPERATORS_SHOWN]:
            table.add_row(what, f"{seconds:.4f}", f"{seconds / whole:.1%}")
        table.add_section()
    return table


def bytes_table(name: str, rows: Sequence[BytesMoved]) -> Table:
    """Return the operators that move most bytes."""
    columns = (
        *(text_column("phase"), text_column("operator x calls")),
        *(Column("read [GB]", ".3f"), Column("written [GB]", ".3f"), Column("share", ".1%")),
    )
    whole = sum(row.read + row.written for row in rows) or 1
    cells = [
        (phase, f"{operator} x{calls}", read / 1e9, written / 1e9, (read + written) / whole)
        for phase, operator, calls, read, written in rows[:MOST_MOVING]
    ]
    return Table(f"bytes moved by the operators of {name}", columns, cells)


def put_out(
    findings: Sequence[Finding],
    benchmark: str,
    workload: Mapping[str, Any],
    *,
    with_targets: bool,
    json_file: Path | None,
) -> None:
    """Print the findings, and write them with the benchmark's workload and the environment.

    The targets are left out if they are not given `with_targets`, for this workload.
    """
    if not with_targets:
        findings = [replace(finding, at_least=None, at_most=None) for finding in findings]
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(findings_table(findings, with_targets=with_targets).for_console())
    if json_file is not None:
        content = {
            "benchmark": benchmark,
            "workload": dict(workload),
            "environment": environment(),
            "findings": findings_json(findings),
        }
        write_atomically(json_file, json.dumps(content, indent=1, ensure_ascii=False))


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


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings with their targets."""
    names = {
        "what": "what",
        "value": "value",
        "shown": "shown",
        "target": "target",
        "met": "is_met",
    }
    return [
        {field: getattr(finding, name) for field, name in names.items()} for finding in findings
    ]


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
    if name in results.loaded_runs:
        content["beside_load_s"] = [run.seconds for run in results.loaded_runs[name]]
        content["times_as_long_beside_load"] = results.slowdown(name).median
    gflops = step_gflops(results, variant)
    if gflops is not None:
        content["gflop_per_s"] = gflops
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
