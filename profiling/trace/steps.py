"""What was marked in a trace: steps, and the phases of each.

TODO-DOC Phases of a training in which none are marked.

TODO-DOC Steps cut into phases.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.errors import InputError
from profiling.trace.trace import Annotation, Spans, Trace, parents, stretches

STEP_MARKS = (re.compile(r"step (\d+)"), re.compile(r"ProfilerStep#(\d+)"))
"""Ours, and those of `torch.profiler.schedule`. The first that a trace has are taken."""
PHASE_MARK = "phase: "
UNMARKED = "between phases"
WHOLE = None
"""The number of the one window of a trace in which no steps are marked."""


class Cell(NamedTuple):
    """A piece of a step that lies in one phase. [ns]"""

    start: int
    end: int
    step: int | None
    phase: str


@dataclass(frozen=True)
class Steps:
    """The part of a trace that counts."""

    cells: tuple[Cell, ...]
    """By time; together they cover the steps, and nothing twice."""
    main_thread: int
    """The one that takes the steps."""
    training_threads: tuple[int, ...]
    """The main one, then those that run autograd's backward pass."""
    are_marked: bool
    phases_are_marked: bool

    @property
    def numbers(self) -> list[int | None]:
        """Of the steps."""
        return list(dict.fromkeys(cell.step for cell in self.cells))

    @property
    def phases(self) -> list[str]:
        """In order of appearance; what is in none is last."""
        found = list(dict.fromkeys(cell.phase for cell in self.cells))
        return sorted(found, key=lambda phase: phase == UNMARKED)

    @property
    def durations(self) -> dict[int | None, int]:
        """Wall time of each step. [ns]"""
        found: Counter[int | None] = Counter()
        for cell in self.cells:
            found[cell.step] += cell.end - cell.start
        return dict(found)


def find_steps(trace: Trace, chosen: Sequence[int] | None = None) -> Steps:
    """The steps and phases that annotations mark; the whole trace where there are none.

    Where no phases are marked: backward is from the first node that autograd runs to the last
    before another operator; optimizer and data are torch's own annotations; forward is the rest.

    Args:
        trace: As it was read.
        chosen: Numbers of steps; all that are marked where it is None.

    Raises:
        InputError: A step that was chosen is not there, or there is no time at all.
    """
    marks = step_marks(trace.annotations)
    main = marks[0][1].thread if marks else busiest_thread(trace)
    backward = set(threads_of(trace, EVALUATE)) - {main}
    training = (main, *sorted(backward))
    by_number = {number: (one.start, one.end) for number, one in marks if one.thread == main}
    windows = windows_of(trace, by_number, training, chosen)
    marked = [
        (one.start, one.end, one.text.removeprefix(PHASE_MARK))
        for one in trace.annotations
        if one.thread == main and one.text.startswith(PHASE_MARK)
    ]
    rest = UNMARKED if marked else "forward"
    intervals = marked or sorted(unmarked_phases(trace, main, training))
    cells = tuple(cut(windows, intervals, rest))
    if not cells:
        raise InputError(f"{trace.file}: its operators take no time")
    return Steps(
        cells=cells,
        main_thread=main,
        training_threads=training,
        are_marked=bool(marks),
        phases_are_marked=bool(marked),
    )


def step_marks(annotations: Iterable[Annotation]) -> list[tuple[int, Annotation]]:
    """Each step's number and annotation, by time."""
    for pattern in STEP_MARKS:
        found = [
            (int(match[1]), one) for one in annotations if (match := pattern.fullmatch(one.text))
        ]
        if found:
            return found
    return []


def busiest_thread(trace: Trace) -> int:
    """The thread with most forward operators, or with most operators where no forward is told."""
    operators = trace.operators
    forward = Counter(
        thread
        for thread, sequence, is_backward in zip(
            operators.thread, operators.sequence, operators.is_backward, strict=True
        )
        if sequence >= 0 and not is_backward
    )
    return (forward or Counter(operators.thread)).most_common(1)[0][0]


def threads_of(trace: Trace, beginning: str) -> set[int]:
    """The threads that run operators with such names."""
    operators = trace.operators
    wanted = {place for place, name in enumerate(operators.names) if name.startswith(beginning)}
    return {
        thread
        for thread, name in zip(operators.thread, operators.name, strict=True)
        if name in wanted
    }


def windows_of(
    trace: Trace,
    marked: dict[int, tuple[int, int]],
    training: Sequence[int],
    chosen: Sequence[int] | None,
) -> dict[int | None, tuple[int, int]]:
    """Begin and end of each step that counts, by number."""
    if chosen is not None:
        if not marked:
            raise InputError(f"--step: {trace.file} marks no steps; leave --step out")
        for number in chosen:
            if number not in marked:
                have = ", ".join(map(str, sorted(marked)))
                raise InputError(f"--step: {trace.file} has no step {number}; it has {have}")
    if marked:
        return {number: marked[number] for number in (chosen or whole_steps(trace, marked))}
    operators = trace.operators
    places = [span for span, thread in enumerate(operators.thread) if thread in training]
    begin = min(operators.start[span] for span in places)
    return {WHOLE: (begin, max(operators.end[span] for span in places))}


def whole_steps(trace: Trace, marked: dict[int, tuple[int, int]]) -> list[int]:
    """All steps, without those that a file that was cut off holds in part; at least one."""
    if not trace.is_cut_off:
        return list(marked)
    last = max(trace.operators.start)
    return [number for number, (_, end) in marked.items() if end <= last] or [min(marked)]


EVALUATE = "autograd::engine::evaluate_function: "
"""How the wrapper of each node begins that the backward pass runs."""
OF_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
OF_DATA = "enumerate(DataLoader)#"


def unmarked_phases(
    trace: Trace, main: int, training: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Backward, optimizer and data, as torch itself lets one see them."""
    for one in trace.annotations:
        if one.thread == main and one.text.startswith(OF_OPTIMIZER):
            yield one.start, one.end, "optimizer"
        elif one.thread == main and one.text.startswith(OF_DATA):
            yield one.start, one.end, "data"
    operators = trace.operators
    outermost = sorted(
        (operators.start[span], span)
        for thread in training
        for span, parent in parents(operators, trace.by_thread.get(thread, ()))
        if parent < 0
    )
    run: tuple[int, int] | None = None
    for start, span in outermost:
        if operators.name_of(span).startswith(EVALUATE):
            first, last = run or (start, start)
            run = first, max(last, operators.end[span])
        elif run:
            yield *run, "backward"
            run = None
    if run:
        yield *run, "backward"


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
