"""A benchmark's results as tables for a person."""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table

from profiling.bench.finding import Finding
from profiling.bench.other_load import disturbance
from profiling.bench.results import BytesMoved, Results
from profiling.bench.step_findings import step_gflops
from profiling.bench.workload import STANDARD
from profiling.significant import significant
from retinanet.terminal import make_console

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
