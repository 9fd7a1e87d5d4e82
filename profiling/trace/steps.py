"""What was marked in a trace: steps, and the phases of each."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.trace.cells import Cell, cut
from profiling.trace.phases import EVALUATE, unmarked_phases
from profiling.trace.trace import Annotation, Trace
from retinanet.errors import InputError

STEP_MARKS = (re.compile(r"step (\d+)"), re.compile(r"ProfilerStep#(\d+)"))
"""Ours, and those of `torch.profiler.schedule`. The first that a trace has are taken."""
PHASE_MARK = "phase: "
UNMARKED = "between phases"
WHOLE = None
"""The number of the one window of a trace in which no steps are marked."""


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
