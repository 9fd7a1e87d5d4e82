"""Steps cut into phases."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from profiling.trace.spans import Spans, stretches


class Cell(NamedTuple):
    """A piece of a step that lies in one phase. [ns]"""

    start: int
    end: int
    step: int | None
    phase: str


def cut(
    windows: dict[int | None, tuple[int, int]],
    phases: Sequence[tuple[int, int, str]],
    rest: str,
) -> Iterator[Cell]:
    """Cut the steps into phases; where several overlap, the one that began last counts.

    `phases`: begin, end and name.
    """
    spans = Spans()
    for begin, end, name in phases:
        spans.add(name, thread=0, start=begin, end=end)
    pieces = list(stretches(spans, spans.by_thread().get(0, ())))
    for number, (begin, end) in sorted(windows.items(), key=lambda item: item[1]):
        now, cells = begin, list[Cell]()
        for place in range(bisect_right(pieces, begin, key=lambda one: one.end), len(pieces)):
            left, right, span = pieces[place]
            if left >= end:
                break
            if left > now:
                cells.append(Cell(now, left, number, rest))
            now = min(right, end)
            cells.append(Cell(max(left, begin), now, number, spans.name_of(span)))
        if now < end:
            cells.append(Cell(now, end, number, rest))
        yield from joined(cells)


def joined(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Neighbours of one phase as one."""
    last: Cell | None = None
    for cell in cells:
        if last and last.phase == cell.phase:
            last = last._replace(end=cell.end)
            continue
        if last:
            yield last
        last = cell
    if last:
        yield last
