"""A benchmark's results as tables for a person.

TODO-DOC The end of a benchmark that has no contestants: a table of findings, and JSON if asked for.

TODO-DOC A benchmark's results as JSON for programs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from common.console import make_console, significant
from common.files import write_whole
from common.machine import environment
from profiling.bench.benchmarks import step_gflops
from profiling.bench.results import BytesMoved, Finding, Results, disturbance
from profiling.bench.variant import STANDARD, Variant

MOST_MOVING = 20
"""Operators in the table of bytes."""

OPERATORS_SHOWN = 20
"""The costliest, in the table of where the time goes; the JSON file has all."""

PIPE_WIDTH = 140
"""A pipe gets room for whole lines."""


def print_results(results: Results, findings: Sequence[Finding]) -> None:
    """The contestants, then what the benchmark found, then where the time goes if asked for."""
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(contestants_table(results))
    disturbed = disturbance(results.other_cores)
    if disturbed:
        console.print(disturbed)
    if results.bytes_moved:
        console.print(phase_bytes_table(results))
    console.print(findings_table(findings, with_targets=results.workload == STANDARD))
    for name, operators in results.operators.items():
        console.print(where_table(name, results, operators))
        if name in results.bytes_moved:
            console.print(bytes_table(name, results.bytes_moved[name]))


def contestants_table(results: Results) -> Table:
    """One row each; columns that nobody fills are left out."""
    rounds = len(next(iter(results.runs.values())))
    table = Table(title=f"{results.workload}; {rounds} rounds", title_justify="left")
    headings = (
        "contestant",
        "allocator",
        "median s",
        "lowest–highest",
        "beside load s",
        "GFLOP/s",
        "convolving",
        "GB moved",
        "page faults",
        "peak MB",
    )
    rows = [contestant_row(results, contestant.name) for contestant in results.contestants]
    used = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    for place in used:
        table.add_column(headings[place], justify="left" if place < 2 else "right")
    for row in rows:
        table.add_row(*(row[place] for place in used))
    return table


def contestant_row(results: Results, name: str) -> tuple[str, ...]:
    """Name, allocator, time and spread, rate, convolving share, traffic, page faults, memory."""
    contestant = next(one for one in results.contestants if one.name == name)
    seconds = [run.seconds for run in results.runs[name]]
    loaded = results.loaded_runs.get(name, ())
    gflops = step_gflops(results, name)
    primitives = results.primitives.get(name)
    gigabytes = results.gigabytes(name)
    return (
        name,
        contestant.allocator,
        significant(results.seconds(name)),
        f"{significant(min(seconds))}–{significant(max(seconds))}",
        significant(median(run.seconds for run in loaded)) if loaded else "",
        f"{gflops:,.0f}" if gflops else "",
        f"{primitives.convolving_share:.1%}" if primitives else "",
        f"{gigabytes:.1f}" if gigabytes is not None else "",
        f"{results.page_faults(name):,.0f}",
        f"{results.peak_mb(name):,.0f}",
    )


def phase_bytes_table(results: Results) -> Table:
    """Gigabytes that each contestant's operators read and write, by phase."""
    found = {name: results.gigabytes_by_phase(name) for name in results.bytes_moved}
    phases = dict.fromkeys(phase for one in found.values() for phase in one)
    table = Table(title="GB that operators read and write in a run", title_justify="left")
    table.add_column("contestant")
    for phase in (*phases, "all"):
        table.add_column(phase, justify="right")
    for name, by_phase in found.items():
        cells = [f"{by_phase[phase]:.2f}" if phase in by_phase else "" for phase in phases]
        table.add_row(name, *cells, f"{sum(by_phase.values()):.2f}")
    return table


def bytes_table(name: str, rows: Sequence[BytesMoved]) -> Table:
    """The operators that move most bytes."""
    table = Table(title=f"what the operators of {name} move", title_justify="left")
    table.add_column("phase")
    table.add_column("operator and calls")
    for heading in ("GB read", "GB written", "of all"):
        table.add_column(heading, justify="right")
    whole = sum(row.read + row.written for row in rows) or 1
    for row in rows[:MOST_MOVING]:
        share = (row.read + row.written) / whole
        called = f"{row.operator} x{row.calls}"
        sizes = (f"{row.read / 1e9:.3f}", f"{row.written / 1e9:.3f}", f"{share:.1%}")
        table.add_row(row.phase, called, *sizes)
    return table


def findings_table(findings: Sequence[Finding], *, with_targets: bool) -> Table:
    """What was found; beside it what is wanted, where the workload is the one targets are for."""
    table = Table()
    table.add_column("what")
    table.add_column("measured", justify="right")
    if with_targets:
        table.add_column("target", justify="right")
        table.add_column("")
    for finding in findings:
        met = "" if not finding.target else "met" if finding.is_met else "missed"
        targets = (finding.target, met) if with_targets else ()
        table.add_row(finding.what, finding.shown, *targets)
    return table


def where_table(name: str, results: Results, operators: Mapping[str, float]) -> Table:
    """Where a contestant's time goes: oneDNN's primitives, then torch's operators."""
    table = Table(title=f"where the time of {name} goes", title_justify="left")
    table.add_column("oneDNN primitive, or torch operator and calls")
    table.add_column("seconds", justify="right")
    table.add_column("of the run", justify="right")
    primitives = results.primitives.get(name)
    by_kind = dict(primitives.by_kind) if primitives else {}
    if primitives and primitives.winograd_seconds:
        by_kind["winograd (ours)"] = primitives.winograd_seconds
    if primitives:
        by_kind |= {f"{kernel} (ours)": s for kernel, s in primitives.kernel_seconds.items()}
    watched = primitives.seconds if primitives else results.seconds(name)
    for group, run_seconds in ((by_kind, watched), (operators, results.seconds(name))):
        for what, seconds in sorted(group.items(), key=lambda item: -item[1])[:OPERATORS_SHOWN]:
            table.add_row(what, f"{seconds:.4f}", f"{seconds / run_seconds:.1%}")
        table.add_section()
    return table


def put_out(
    findings: Sequence[Finding],
    *,
    benchmark: str,
    workload: Mapping[str, Any],
    with_targets: bool,
    json_file: Path | None,
) -> None:
    """Print the findings, and write them with what they are of."""
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(findings_table(findings, with_targets=with_targets))
    if json_file is not None:
        content = {
            "benchmark": benchmark,
            "workload": dict(workload),
            "environment": environment(),
            "findings": findings_json(findings),
        }
        write_whole(json_file, json.dumps(content, indent=1, ensure_ascii=False))


def as_json(results: Results, findings: Sequence[Finding], *, benchmark: str) -> dict[str, Any]:
    """Seconds, MB of 10⁶ bytes; `ratios` are times as fast, such as `torch/torchvision`: 4.6."""
    pairs = [(one, other) for one in results.names for other in results.names if one != other]
    ratios = {f"{one}/{other}": results.ratio(one, other) for one, other in pairs}
    return {
        "benchmark": benchmark,
        "workload": vars(results.workload),
        "environment": {**environment(), "cores_busy_otherwise": results.other_cores},
        "contestants": {one.name: contestant_json(results, one) for one in results.contestants},
        "ratios": {name: ratio.median for name, ratio in ratios.items()},
        "ratio_ranges": {name: [ratio.lowest, ratio.highest] for name, ratio in ratios.items()},
        "findings": findings_json(findings),
    }


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """What was found, beside what is wanted."""
    return [
        {
            "what": one.what,
            "value": one.value,
            "shown": one.shown,
            "target": one.target,
            "met": one.is_met,
        }
        for one in findings
    ]


def contestant_json(results: Results, contestant: Variant) -> dict[str, Any]:
    """One contestant's numbers; what was not measured is left out."""
    name = contestant.name
    runs = results.runs[name]
    content: dict[str, Any] = {
        "allocator": contestant.allocator,
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
    gflops = step_gflops(results, name)
    if gflops is not None:
        content["gflop_per_s"] = gflops
    if name in results.primitives:
        primitives = results.primitives[name]
        content["convolving_share"] = primitives.convolving_share
        content["onednn_share"] = primitives.onednn_share
        content["onednn_s"] = dict(primitives.by_kind)
        content["winograd_s"] = primitives.winograd_seconds
        content["kernels_s"] = dict(primitives.kernel_seconds)
    if name in results.bytes_moved:
        content["gigabytes_moved"] = results.gigabytes(name)
        content["gigabytes_moved_by_phase"] = results.gigabytes_by_phase(name)
        content["bytes_moved"] = [row._asdict() for row in results.bytes_moved[name]]
    if name in results.operators:
        content["operators_s"] = dict(results.operators[name])
    return content
