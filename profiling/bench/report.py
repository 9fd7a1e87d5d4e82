"""A benchmark's results as tables for a person."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from profiling.bench.finding import Finding
from profiling.bench.other_load import disturbance
from profiling.bench.results import Results
from profiling.bench.step_findings import step_gflops
from profiling.bench.workload import STANDARD
from retinanet.terminal import make_console

PIPE_WIDTH = 140
"""A pipe gets room for whole lines."""


def print_results(results: Results, findings: Sequence[Finding]) -> None:
    """The contestants, then what the benchmark found, then where the time goes if asked for."""
    console = make_console(pipe_width=PIPE_WIDTH)
    console.print(contestants_table(results))
    disturbed = disturbance(results.other_cores)
    if disturbed:
        console.print(disturbed)
    console.print(findings_table(findings, with_targets=results.workload == STANDARD))
    for name, operators in results.operators.items():
        console.print(where_table(name, results, operators))


def contestants_table(results: Results) -> Table:
    """One row each; columns that nobody fills are left out."""
    rounds = len(next(iter(results.runs.values())))
    table = Table(title=f"{results.workload}; {rounds} rounds", title_justify="left")
    headings = (
        "contestant",
        "allocator",
        "median s",
        "lowest–highest",
        "GFLOP/s",
        "convolving",
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
    """Name, allocator, time and its spread, rate, share in primitives, page faults, memory."""
    contestant = next(one for one in results.contestants if one.name == name)
    seconds = [run.seconds for run in results.runs[name]]
    gflops = step_gflops(results, name)
    primitives = results.primitives.get(name)
    return (
        name,
        contestant.allocator,
        f"{results.seconds(name):.4g}",
        f"{min(seconds):.4g}–{max(seconds):.4g}",
        f"{gflops:,.0f}" if gflops else "",
        f"{primitives.convolving_share:.1%}" if primitives else "",
        f"{results.page_faults(name):,.0f}",
        f"{results.peak_mb(name):,.0f}",
    )


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
    watched = primitives.seconds if primitives else results.seconds(name)
    for group, run_seconds in ((by_kind, watched), (operators, results.seconds(name))):
        for what, seconds in sorted(group.items(), key=lambda item: -item[1]):
            table.add_row(what, f"{seconds:.4f}", f"{seconds / run_seconds:.1%}")
        table.add_section()
    return table
