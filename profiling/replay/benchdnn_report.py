"""A replay beside its log: rows, a table, JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.replay.replay import Replay, ReplayTime
from profiling.terminal import say
from retinanet.printable import printable

SHOWN = 20
"""Rows that are printed; the files have all."""


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One problem in the log and alone. Times are those of one call."""

    problem: Problem
    calls: int
    log_ms: float
    hot_ms: float | None
    cold_ms: float | None
    implementation: str
    """Of the replay."""
    why_not: str
    """Why it has no time; empty where it has."""

    @property
    def total_ms(self) -> float:
        """Of all its calls in the log."""
        return self.calls * self.log_ms

    @property
    def ratio(self) -> float | None:
        """How many times longer it took in the log than alone with its data in the caches."""
        return self.log_ms / self.hot_ms if self.hot_ms else None


def rows_of(calls: Mapping[Problem, Calls], replay: Replay) -> list[ReplayedRow]:
    """Costliest first."""
    rows = [row_of(problem, one, replay) for problem, one in calls.items()]
    return sorted(rows, key=lambda row: -row.total_ms)


def row_of(problem: Problem, calls: Calls, replay: Replay) -> ReplayedRow:
    """One of them."""
    time: ReplayTime | None = replay.times.get(problem)
    return ReplayedRow(
        problem=problem,
        calls=calls.count,
        log_ms=calls.mean_ms,
        hot_ms=time.hot_ms if time else None,
        cold_ms=time.cold_ms if time else None,
        implementation=time.implementation if time else "",
        why_not="" if time else replay.not_replayed.get(problem, "was not reached"),
    )


def print_replay(console: Console, rows: Sequence[ReplayedRow]) -> None:
    """The table, its sum, and what was not replayed with the reasons."""
    replayed = [row for row in rows if row.hot_ms is not None]
    if replayed:
        console.print(replay_table(replayed))
        say(console, MEANING)
    total = sum(row.total_ms for row in rows)
    covered = sum(row.total_ms for row in replayed)
    share = f", {covered / total:.1%} of their time" if total else ""
    say(console, f"replayed: {len(replayed):,} of {len(rows):,} problems{share}")
    for reason, same in reasons(rows).items():
        lost = sum(row.total_ms for row in same)
        kinds = ", ".join(dict.fromkeys(row.problem.kind for row in same))
        part = f"{lost / total:.2%} of the time" if total else "no time"
        say(console, printable(f"not replayed: {len(same):,} ({kinds}), {part}: {reason}"))


MEANING = """\
each: of a call in the log, mean; hot: of a run alone, one right after the other, median; cold: the
same with its data driven out of the caches, where it is large enough to matter; log / hot: how
many times longer it took in the log than alone"""


def replay_table(rows: Sequence[ReplayedRow]) -> Table:
    """A row for each of the costliest problems, and the sum of all."""
    count = f"the {SHOWN} costliest of {len(rows):,}" if len(rows) > SHOWN else f"{len(rows)}"
    table = Table("problem", title=f"problems run again, {count}", title_justify="left",
                  show_lines=True)  # fmt: skip
    for heading in ("calls", "log ms\nall", "\neach", "alone ms\nhot", "\ncold", "log /\nhot"):
        table.add_column(heading, justify="right", vertical="bottom")
    for row in rows[:SHOWN]:
        table.add_row(
            Text(described(row), overflow="fold"),
            f"{row.calls:,}",
            f"{row.total_ms:,.1f}",
            milliseconds(row.log_ms),
            milliseconds(row.hot_ms),
            milliseconds(row.cold_ms),
            "" if row.ratio is None else f"{row.ratio:,.2f}",
        )
    hot = sum(row.calls * row.hot_ms for row in rows if row.hot_ms is not None)
    log = sum(row.total_ms for row in rows)
    table.add_row("all, times calls", f"{sum(row.calls for row in rows):,}", f"{log:,.1f}", "",
                  f"{hot:,.1f}", "",
                  f"{log / hot:,.2f}" if hot else "")  # fmt: skip
    return table


def described(row: ReplayedRow) -> str:
    """What it is, and how it was done: once where log and replay do it alike."""
    problem = row.problem
    direction = "" if problem.direction == "undef" else f" {problem.direction}"
    ways = dict.fromkeys((problem.implementation, row.implementation))
    ran = " → ".join(ways)
    lines = (f"{problem.kind}{direction}", problem.shape, problem.types, ran)
    return "\n".join(printable(line) for line in lines if line)


def milliseconds(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def reasons(rows: Sequence[ReplayedRow]) -> dict[str, list[ReplayedRow]]:
    """Problems without a time, by reason."""
    found: dict[str, list[ReplayedRow]] = defaultdict(list)
    for row in rows:
        if row.why_not:
            found[row.why_not].append(row)
    return found


def as_json(rows: Sequence[ReplayedRow], replay: Replay, notes: Sequence[str]) -> dict[str, Any]:
    """All numbers."""
    return {
        "runner": replay.runner,
        "version": replay.version,
        "instruction_set": replay.instruction_set,
        "conditions": asdict(replay.conditions),
        "other_cores": replay.other_cores,
        "notes": list(notes),
        "problems": [
            {**asdict(row), "total_ms": row.total_ms, "log_over_hot": row.ratio} for row in rows
        ],
    }
