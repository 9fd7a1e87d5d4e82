"""The bytes that a training counted for its trace: what the operators of a step read and write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from retinanet.errors import InputError
from retinanet.printable import printable

KEY = "bytes_moved"
"""Of the trace's file, beside its events."""

BETWEEN = "between phases"


class MovedRow(NamedTuple):
    """All calls of an operator in one phase of the step."""

    phase: str
    operator: str
    calls: int
    read: int
    written: int

    @property
    def total(self) -> int:
        """Return bytes read and written."""
        return self.read + self.written


class BytesMoved(NamedTuple):
    """One step's traffic, see `profiling.byte_counter` for what counts."""

    step: int
    """The step that was counted: the one before the first that was traced."""
    rows: Sequence[MovedRow]
    """The largest first."""

    @property
    def total(self) -> int:
        """Return bytes read and written in the step."""
        return sum(row.total for row in self.rows)

    def by_phase(self) -> dict[str, tuple[int, int]]:
        """Return bytes read and written by phase, in the order of the step."""
        found: dict[str, tuple[int, int]] = {}
        for phase in ("data", "forward", "loss", "backward", "optimizer"):
            found[phase] = (0, 0)
        for row in self.rows:
            read, written = found.get(row.phase or BETWEEN, (0, 0))
            found[row.phase or BETWEEN] = (read + row.read, written + row.written)
        return {phase: sums for phase, sums in found.items() if sum(sums)}


def bytes_moved_of(content: Any, file: Path) -> BytesMoved | None:
    """Return what a trace's file holds under `KEY`; None where it holds nothing.

    Raises:
        InputError: It is not what a training writes there.
    """
    if content is None:
        return None
    try:
        rows = [
            MovedRow(str(phase), str(operator), int(calls), int(read), int(written))
            for phase, operator, calls, read, written in content["operators"]
        ]
        return BytesMoved(int(content["step"]), sorted(rows, key=lambda row: -row.total))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: {KEY} is not what profile.trace writes") from error


def print_bytes_moved(console: Console, moved: BytesMoved, *, top: int) -> None:
    """Print the traffic of the step by phase, and the operators that move most."""
    title = f"GB that the operators of step {moved.step} read and write"
    table = Table("phase", title=title, title_justify="left")
    for heading in ("read", "written", "both"):
        table.add_column(heading, justify="right")
    for phase, (read, written) in moved.by_phase().items():
        table.add_row(Text(printable(phase)), *map(gigabytes, (read, written, read + written)))
    table.add_section()
    sums = (sum(row.read for row in moved.rows), sum(row.written for row in moved.rows))
    table.add_row("all", *map(gigabytes, (*sums, sum(sums))))
    console.print(table)
    shown = moved.rows[:top]
    title = f"the {len(shown)} operators of {len(moved.rows)} that move most"
    table = Table(title=title, title_justify="left")
    table.add_column("operator", overflow="fold")
    table.add_column("phase")
    for heading in ("calls", "GB read", "GB written", "share"):
        table.add_column(heading, justify="right")
    for row in shown:
        share = f"{row.total / (moved.total or 1):.1%}"
        cells = (f"{row.calls:,}", gigabytes(row.read), gigabytes(row.written), share)
        table.add_row(Text(printable(row.operator)), Text(printable(row.phase)), *cells)
    console.print(table)


def gigabytes(value: float) -> str:
    """Return bytes as 10⁹ of them."""
    return f"{value / 1e9:.3f}"


def bytes_json(moved: BytesMoved) -> dict[str, Any]:
    """Return everything for programs."""
    return {
        "step": moved.step,
        "bytes": moved.total,
        "phases": {phase: sum(sums) for phase, sums in moved.by_phase().items()},
        "operators": [row._asdict() for row in moved.rows],
    }
