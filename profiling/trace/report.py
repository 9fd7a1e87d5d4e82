"""An analysis of a trace as a person reads it on a terminal.

TODO-DOC oneDNN's log beside a trace as a person reads them.

TODO-DOC The operators of an analysis as rows of tables.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.console import say, significant
from common.errors import printable
from profiling.trace.analysis import (
    Analysis,
    BesideLog,
    fragmentation_verdict,
    gap_share,
    onednn_verdict,
    short_share,
)
from profiling.trace.operators import Category, Piece

MEANING = """\
self time: of an operator, without the operators that it calls. gaps: no operator runs
working span: a call that spends at least half of its time itself, with all that it calls; others
  only call. pieces: working spans, and the times between the calls of the others
context switch: the next working span is of another operator"""


@dataclass(frozen=True)
class Costly:
    """An operator in a phase, over all modules that call it."""

    operator: str
    phase: str
    category: str
    calls: float
    self_ms: float
    share: float
    modules: tuple[tuple[str, float], ...]
    """Names and their shares of the time, the costliest first; an empty name: not known."""


def print_analysis(
    console: Console, analysis: Analysis, costly: Sequence[Costly], *, top: int
) -> None:
    """What was read, a step by phases, how fragmented it is, what costs most outside oneDNN."""
    for line in describe(analysis):
        say(console, line)
    console.print(phase_table(analysis))
    console.print(fragmentation_table(analysis))
    console.print(operator_table(costly, top=top, modules_are_known=analysis.modules_are_known))
    say(console, MEANING)
    for line in remarks(analysis):
        say(console, f"note: {line}")


def print_verdict(console: Console, analysis: Analysis, beside: BesideLog | None) -> None:
    """The last words."""
    say(console, onednn_verdict(analysis, beside.total_ms if beside else None))
    say(console, fragmentation_verdict(analysis))


def describe(analysis: Analysis) -> list[str]:
    """What was read, and which steps count."""
    lines = [f"{analysis.file}: {analysis.operators_in_file:,} calls of operators"]
    seconds = [time / 1e9 for time in analysis.steps.durations.values()]
    if not analysis.steps.are_marked:
        trained = (
            f", {analysis.optimizer_steps} optimizer steps" if analysis.optimizer_steps else ""
        )
        return [
            *lines,
            f"no steps are marked: the whole trace, {significant(seconds[0])} s{trained}",
        ]
    numbers = ", ".join(map(str, analysis.steps.numbers))
    if len(seconds) == 1:
        return [*lines, f"step {numbers}: {significant(seconds[0])} s"]
    mean = sum(seconds) / len(seconds)
    bounds = f"{significant(min(seconds))} to {significant(max(seconds))}"
    spread = f"{significant(mean)} s on average, {bounds}"
    return [*lines, f"steps {numbers}: {spread}; all below is of an average step"]


def phase_table(analysis: Analysis) -> Table:
    """Time of each phase by category; rows and columns add up."""
    window = "a step" if analysis.steps.are_marked else "the whole trace"
    table = Table("phase", title=f"{window} by phases (ms)", title_justify="left")
    for heading in ("wall time", *(one.value for one in analysis.categories), "gaps"):
        table.add_column(heading, justify="right")
    for phase in analysis.steps.phases:
        table.add_row(Text(printable(phase)), *map(milliseconds, times_of(analysis, phase)))
    table.add_section()
    whole = times_of(analysis, None)
    table.add_row("all", *map(milliseconds, whole))
    table.add_row("share", *(f"{time / whole[0]:.1%}" for time in whole))
    return table


def times_of(analysis: Analysis, phase: str | None) -> list[float]:
    """Wall time, each category and gaps of a phase or of all. [ms a step]"""
    if phase is None:
        wall, gaps = analysis.wall_ns, sum(analysis.gaps_ns.values())
    else:
        wall, gaps = analysis.phase_ns(phase), analysis.gaps_ns[phase]
    parts = [analysis.category_ns(one, phase) for one in analysis.categories]
    return [time / 1e6 / analysis.count for time in (wall, *parts, gaps)]


def milliseconds(value: float) -> str:
    """With as many decimals as one wants to read."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}"


def fragmentation_table(analysis: Analysis) -> Table:
    """Into how many pieces a step falls."""
    seconds = analysis.wall_ns / 1e9
    count, working = analysis.count, len(analysis.working)
    table = Table("", title="fragmentation", title_justify="left", show_header=True)
    table.add_column("a step" if analysis.steps.are_marked else "in all", justify="right")
    table.add_column("a second", justify="right")
    for name, value in (
        ("spans", analysis.spans),
        ("working spans", working),
        ("context switches", analysis.switches),
    ):
        table.add_row(name, f"{value / count:,.0f}", f"{value / seconds:,.0f}")
    table.add_section()
    table.add_row("working span, median", f"{analysis.median_working_ns / 1000:,.1f} µs")
    operator_ns = analysis.operator_ns or 1
    table.add_row("pieces below 0.1 ms, of operator time", f"{short_share(analysis):.1%}")
    for name, piece in (("  work", Piece.SHORT), ("  between calls", Piece.CALLING)):
        table.add_row(name, f"{analysis.pieces_ns[piece] / operator_ns:.1%}")
    table.add_row("gaps, of wall time", f"{gap_share(analysis):.1%}")
    return table


def operator_table(costly: Sequence[Costly], *, top: int, modules_are_known: bool) -> Table:
    """What costs most outside oneDNN."""
    title = f"the {min(top, len(costly))} costliest of {len(costly)} operators outside oneDNN"
    table = Table(title=title, title_justify="left")
    table.add_column("operator", overflow="fold")
    table.add_column("phase")
    for heading in ("calls", "self ms", "share"):
        table.add_column(heading, justify="right")
    if modules_are_known:
        table.add_column("costliest module, its share, + others", overflow="fold")
    for one in costly[:top]:
        calls = f"{one.calls:,.0f}" if one.calls >= 10 else f"{one.calls:.3g}"
        module = [Text(printable(module_text(one)))] if modules_are_known else []
        table.add_row(Text(printable(one.operator)), Text(printable(one.phase)), calls,
                      milliseconds(one.self_ms), f"{one.share:.1%}", *module)  # fmt: skip
    return table


def module_text(one: Costly) -> str:
    """The module with most of the time, its share if there are others, and how many those are."""
    (name, share), *others = one.modules
    name = name or "outside modules"
    return f"{name}, {share:.0%}, +{len(others)}" if others else name


def remarks(analysis: Analysis) -> list[str]:
    """What a reader should know of this trace."""
    found = []
    if analysis.is_cut_off:
        found.append("the file ends in the middle (was its writer killed?); this is what it holds")
    if not analysis.steps.phases_are_marked:
        found.append(
            "no phases are marked: forward is all but backward, optimizer and data, loss included"
        )
    if not analysis.modules_are_known:
        found.append("no modules are told; profile with_stack=True for them")
    if analysis.elsewhere_ns:
        time = milliseconds(analysis.elsewhere_ns / 1e6 / analysis.count)
        found.append(f"other threads run operators for {time} ms meanwhile; they are left out")
    if analysis.gpu_events:
        found.append(f"{analysis.gpu_events:,} events of a GPU are left out")
    return found


KINDS = 8
"""Kinds of primitives that are shown of a log."""


def print_beside_log(console: Console, analysis: Analysis, beside: BesideLog) -> None:
    """oneDNN's own time beside that of the operators that call it."""
    table = Table("phase", title="oneDNN's log beside the trace (ms)", title_justify="left")
    for heading in ("wall time", "oneDNN itself\n(log)", "share", "operators that\ncall oneDNN",
                    "matrix\nproducts"):  # fmt: skip
        table.add_column(heading, justify="right", vertical="bottom")
    for phase in (*beside.log_ms, None):
        if phase is None:
            table.add_section()
        log = beside.total_ms if phase is None else beside.log_ms[phase]
        wall = times_of(analysis, phase)[0]
        parts = [analysis.category_ns(one, phase) / 1e6 / analysis.count
                 for one in (Category.ONEDNN, Category.PRODUCTS)]  # fmt: skip
        table.add_row(Text(printable(phase or "all")), milliseconds(wall), milliseconds(log),
                      f"{log / wall:.1%}", *map(milliseconds, parts))  # fmt: skip
    console.print(table)
    kinds = list(beside.kinds_ms.items())
    said = ", ".join(f"{kind} {milliseconds(time)}" for kind, time in kinds[:KINDS])
    more = f", {len(kinds) - KINDS} more kinds" if len(kinds) > KINDS else ""
    say(console, f"oneDNN itself: {printable(said)}{more}")
    if beside.other_ms:
        say(
            console,
            f"note: {milliseconds(beside.other_ms)} ms of the log are in no phase of the trace",
        )
    if not beside.has_steps:
        say(console, "note: the log marks no steps; it was taken as a whole")


@dataclass(frozen=True)
class Row:
    """A row of operators.csv: means over the steps."""

    operator: str
    phase: str
    module: str
    calls: float
    self_ms: float
    share: float
    """Of the wall time of a step; 0 to 1."""
    category: str


def rows_of(analysis: Analysis) -> list[Row]:
    """All operators, the costliest first."""
    rows = [
        Row(
            operator=one.name,
            phase=one.phase,
            module=one.module,
            calls=cost.calls / analysis.count,
            self_ms=cost.own_ns / 1e6 / analysis.count,
            share=cost.own_ns / analysis.wall_ns,
            category=one.category.value,
        )
        for one, cost in analysis.operators.items()
    ]
    return sorted(rows, key=lambda row: (-row.self_ms, row.operator, row.phase, row.module))


def costliest_outside_onednn(rows: list[Row]) -> list[Costly]:
    """By operator and phase, the costliest first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.category != Category.ONEDNN.value:
            groups.setdefault((row.operator, row.phase, row.category), []).append(row)
    found = [
        Costly(
            operator=operator,
            phase=phase,
            category=category,
            calls=sum(row.calls for row in group),
            self_ms=sum(row.self_ms for row in group),
            share=sum(row.share for row in group),
            modules=modules_of(group),
        )
        for (operator, phase, category), group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.self_ms, one.operator))


def modules_of(group: list[Row]) -> tuple[tuple[str, float], ...]:
    """The modules of an operator by their share of its time."""
    times: defaultdict[str, float] = defaultdict(float)
    for row in group:
        times[row.module] += row.self_ms
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda item: -item[1])
    return tuple((name, time / total if total else 0.0) for name, time in ordered)
