"""Spans of a trace as columns: 60 bytes each, where a dict takes a thousand."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NO_SEQUENCE = -1
ByThread = dict[int, "array[int]"]
"""Spans by thread."""


class Stretch(NamedTuple):
    """A piece of time in which a span is the innermost on its thread."""

    start: int
    end: int
    span: int
    """Its place in the columns."""


class Spans:
    """Calls of operators, in the trace's order. Times in ns."""

    def __init__(self) -> None:
        """None yet."""
        self.names: list[str] = []
        """Each once; `name` holds places in it."""
        self.name = array("i")
        self.thread = array("i")
        self.start = array("q")
        self.end = array("q")
        self.sequence = array("q")
        """Autograd's number of the graph node that a forward operator makes, or that a backward
        operator runs; `NO_SEQUENCE` where there is none."""
        self.is_backward = array("b")
        """Whether the sequence number is that of a node being run."""
        self._place_of_name: dict[str, int] = {}

    def __len__(self) -> int:
        """How many calls."""
        return len(self.start)

    def add(
        self,
        name: str,
        *,
        thread: int,
        start: int,
        end: int,
        sequence: int = NO_SEQUENCE,
        is_backward: bool = False,
    ) -> None:
        """Append a call."""
        place = self._place_of_name.setdefault(name, len(self.names))
        if place == len(self.names):
            self.names.append(name)
        self.name.append(place)
        self.thread.append(thread)
        self.start.append(start)
        self.end.append(end)
        self.sequence.append(sequence)
        self.is_backward.append(is_backward)

    def name_of(self, span: int) -> str:
        """The operator."""
        return self.names[self.name[span]]

    def by_thread(self) -> ByThread:
        """The spans of each thread by begin; of two that begin together the longer first."""
        found: dict[int, array[int]] = {}
        for span, thread in enumerate(self.thread):
            found.setdefault(thread, array("q")).append(span)
        start, end = self.start, self.end
        return {
            thread: array("q", sorted(spans, key=lambda span: (start[span], -end[span])))
            for thread, spans in found.items()
        }


def parents(spans: Spans, ordered: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each span of a thread, and the span around it, or -1.

    `ordered`: as `Spans.by_thread` gives them.
    """
    end = spans.end
    around: list[int] = []
    for span in ordered:
        while around and end[around[-1]] <= spans.start[span]:
            around.pop()
        yield span, around[-1] if around else -1
        around.append(span)


def stretches(spans: Spans, ordered: Sequence[int]) -> Iterator[Stretch]:
    """Cut a thread's time up by the innermost span: the one that began last of those not over.

    Over a span's stretches the time adds up to its duration minus its children's.
    `ordered`: as `Spans.by_thread` gives them. Times in which no span runs are left out.
    """
    start, end = spans.start, spans.end
    around: list[int] = []
    now = 0
    for span in ordered:
        begin = start[span]
        while around and end[around[-1]] <= begin:
            over = around.pop()
            if end[over] > now:
                yield Stretch(now, end[over], over)
                now = end[over]
        if around and begin > now:
            yield Stretch(now, begin, around[-1])
        now = begin
        around.append(span)
    while around:
        over = around.pop()
        if end[over] > now:
            yield Stretch(now, end[over], over)
            now = end[over]


def overlay(over: Iterator[Stretch], under: Iterator[Stretch]) -> Iterator[Stretch]:
    """All of `over`, and of `under` what lies where `over` has nothing; by time, as both are."""
    rest = next(under, None)
    free_from = 0
    for stretch in over:
        while rest is not None and rest.start < stretch.start:
            begin, end = max(rest.start, free_from), min(rest.end, stretch.start)
            if begin < end:
                yield Stretch(begin, end, rest.span)
            if rest.end > stretch.start:
                break
            rest = next(under, None)
        yield stretch
        free_from = stretch.end
    while rest is not None:
        if rest.end > free_from:
            yield Stretch(max(rest.start, free_from), rest.end, rest.span)
        rest = next(under, None)
