"""What each core does in a plan, and the few letters that a picture shows for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from launch.host.sockets import Core
from launch.plan.job_plan import HostPlan

Use = Literal["compute", "communicate", "load", "floating", "idle", "forbidden"]

MARKS: Mapping[Use, str] = {
    "compute": "",
    "communicate": "c",
    "load": "L",
    "floating": "~",
    "idle": "·",
    "forbidden": "x",
}
"""Beside a rank's number, or alone."""

MEANINGS: Mapping[Use, str] = {
    "compute": "computes",
    "communicate": "communicates",
    "load": "loads images",
    "floating": "ranks move among these cores",
    "idle": "idle",
    "forbidden": "may not be used",
}

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True)
class Cell:
    """What one core does."""

    use: Use
    rank: int | None = None
    style: str = "dim"


def used_cells(host: HostPlan) -> dict[int, Cell]:
    """The cell of each CPU that a rank of the host has."""
    cells = {}
    for place, one in enumerate(host.ranks):
        colour = COLOURS[place % len(COLOURS)]
        compute = Cell("compute", one.rank, f"black on {colour}")
        if one.share.floating:
            compute = Cell("floating", style="bold cyan")
        cells.update(dict.fromkeys(one.share.cpus, compute))
        cells.update(
            dict.fromkeys(one.share.comm_cpus, Cell("communicate", one.rank, f"bold {colour}"))
        )
        cells.update(dict.fromkeys(one.share.loader_cpus, Cell("load", one.rank, colour)))
    return cells


def cell_of(core: Core, used: Mapping[int, Cell], allowed: frozenset[int]) -> Cell:
    """The cell of a core, of whichever of its CPUs a rank has."""
    for cpu in core:
        if cpu in used:
            return used[cpu]
    return Cell("forbidden" if allowed.isdisjoint(core) else "idle")


def cell_text(cell: Cell, *, digits: int, marked: bool) -> str:
    """All of one width: a number, and where any is marked a column for the mark."""
    mark = MARKS[cell.use]
    if cell.rank is None:
        return mark.rjust(digits) + " " * marked
    return f"{cell.rank:>{digits}}" + mark.ljust(1) * marked
