"""A log's sums as a person reads them on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.onednn_log.log import OneDnnLog, Where
from profiling.stats.rows import Part, Row
from profiling.terminal import say
from retinanet.printable import printable

MESSAGES = 5
"""Dispatch reasons and messages that are shown."""


def describe_log(console: Console, log: OneDnnLog) -> None:
    """Which library wrote it, on what, and how much it is."""
    library = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN (no header)"
    threads = " and ".join(map(str, log.threads))
    parts = [library]
    if threads:
        parts.append(f"{' and '.join(log.runtimes)}, {threads} threads")
    parts += log.instruction_sets
    say(console, "; ".join(parts))
    counted = f"{log.lines:,} lines, {log.onednn_lines:,} of them oneDNN's"
    if log.ranks:
        counted += f"; ranks {', '.join(map(str, log.ranks))}"
    if log.steps:
        counted += f"; steps {', '.join(map(str, log.steps))}"
    say(console, counted)


def print_parts(console: Console, parts: Sequence[Part]) -> None:
    """Time by kind and direction, and the plain sum of all lines."""
    table = Table("kind", "direction", title="time by kind and direction", title_justify="left")
    for heading in ("calls", "ms", "share", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for part in parts:
        direction = "" if part.direction == "undef" else part.direction
        rate = f"{part.gflop_per_s:,.0f}" if part.gflop_per_s else ""
        table.add_row(Text(printable(part.kind)), Text(printable(direction)), f"{part.calls:,}",
                      f"{part.total_ms:,.1f}", f"{part.share:.1%}", rate)  # fmt: skip
    table.add_section()
    table.add_row("all", "", f"{sum(part.calls for part in parts):,}",
                  f"{sum(part.total_ms for part in parts):,.1f}", "", "")  # fmt: skip
    console.print(table)


def print_rows(console: Console, rows: Sequence[Row], *, top: int) -> None:
    """The costliest problems."""
    title = f"the {min(top, len(rows))} costliest of {len(rows):,} problems"
    table = Table("problem", title=title, title_justify="left", show_lines=True)
    for heading in ("calls", "ms", "share", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for row in rows[:top]:
        direction = "" if row.direction == "undef" else f" {row.direction}"
        lines = (f"{row.kind}{direction}, {row.implementation}", row.shape, row.types)
        rate = f"{row.gflop_per_s:,.0f}" if row.gflop_per_s is not None else ""
        table.add_row(
            Text("\n".join(map(printable, lines)), overflow="fold"),
            f"{row.calls:,}",
            f"{row.total_ms:,.1f}",
            f"{row.share:.1%}",
            rate,
        )
    console.print(table)


def print_phases(console: Console, log: OneDnnLog) -> None:
    """Wall-clock time of a step's phases beside oneDNN's in it, where the log has marks."""
    phases = list(dict.fromkeys(where.phase for where in log.phase_ms if where.phase))
    steps = {(where.rank, where.step) for where in log.phase_ms}
    if not phases or not steps:
        return
    title = f"a step by phases, mean of {len(steps)}"
    table = Table("phase", title=title, title_justify="left")
    for heading in ("ms", "in oneDNN", "elsewhere"):
        table.add_column(heading, justify="right")
    for phase in (*phases, None):
        wall = sum(ms for where, ms in log.phase_ms.items() if where.phase == phase) / len(steps)
        inside = onednn_ms(log, phase) / len(steps)
        if phase is None:
            table.add_section()
        name = phase or "whole step"
        table.add_row(name, f"{wall:,.1f}", f"{inside:,.1f}", f"{wall - inside:,.1f}")
    console.print(table)
    own = sorted({str(facts["own_kernels"]) for facts in log.facts if facts.get("own_kernels")})
    if own:
        say(
            console,
            f"elsewhere: also the program's own convolutions ({', '.join(own)}), which are not in "
            "oneDNN's log; a trace tells them apart, engine.convolutions=onednn does without",
        )


def onednn_ms(log: OneDnnLog, phase: str | None) -> float:
    """Time of executions in a phase of any step; None: in whole steps, between phases too."""

    def is_there(where: Where) -> bool:
        return where.step is not None and phase in (None, where.phase)

    return sum(calls.total_ms for calls in log.calls(is_there).values())


def print_remarks(console: Console, log: OneDnnLog) -> None:
    """What else is in the log, and every line that was not understood, as far as they are kept."""
    if log.creation_states:
        states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
        total = sum(calls.total_ms for calls in log.creations.values())
        say(console, f"primitives were made: {states}; {total:,.1f} ms")
    for name, counter in (("passed over", log.dispatches), ("messages", log.messages)):
        for text, count in counter.most_common(MESSAGES):
            say(console, f"{name}: {count:,} × {printable(text)}")
        if len(counter) > MESSAGES:
            say(console, f"{name}: {len(counter) - MESSAGES:,} other texts")
    if log.not_understood_count:
        say(console, f"{log.not_understood_count:,} lines look like oneDNN's and are not "
            "understood; nothing of them is in the tables:")  # fmt: skip
        for one in log.not_understood:
            say(console, f"  {one.file}:{one.line}: {one.why}: {printable(one.text[:80])}")
        if log.not_understood_count > len(log.not_understood):
            more = log.not_understood_count - len(log.not_understood)
            say(console, f"  and {more:,} more")
