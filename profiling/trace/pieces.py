"""How fragmented a trace is: which spans work, and which are short."""

from array import array
from collections.abc import Sequence
from enum import IntEnum

from profiling.trace.spans import ByThread, Spans, stretches

SHORT_NS = 100_000
"""Spans below 0.1 ms are short: calling an operator takes some 0.01 to 0.05 ms of them."""


class Piece(IntEnum):
    """Of what length the pieces are into which operator time falls.

    A piece is a span that works, with all that it calls, or the time between two calls of a span
    that mostly calls others.
    """

    CALLING = 0
    """Between calls, less than 0.1 ms."""
    SHORT = 1
    """Work of less than 0.1 ms."""
    LONG = 2
    """Either, of 0.1 ms or longer."""


def own_times(spans: Spans, by_thread: ByThread) -> "array[int]":
    """Of each span the time in which none of its children runs. [ns]"""
    own = array("q", bytes(8 * len(spans)))
    for ordered in by_thread.values():
        for start, end, span in stretches(spans, ordered):
            own[span] += end - start
    return own


def working_spans(
    spans: Spans, by_thread: ByThread, *, around: Sequence[int], own: Sequence[int]
) -> tuple["array[int]", bytes]:
    """Find the spans that work, and tell for each span what it is.

    A span works if at least half of its duration is its own, and it lies in no other that does: a
    convolution works, and the allocations inside are parts of its work; `aten::conv2d` around it
    only calls.

    Args:
        spans: The operators.
        by_thread: In order, see `Spans.by_thread`.
        around: Of each span the one that called it, or -1.
        own: Of each span its own time. [ns]

    Returns:
        The places of working spans, and of each span the kind of piece it is in; `CALLING` stands
        for all that only call, however long.
    """
    pieces = bytearray(len(spans))
    works = array("q")
    for ordered in by_thread.values():
        for span in ordered:
            parent = around[span]
            if parent >= 0 and pieces[parent] != Piece.CALLING:
                pieces[span] = pieces[parent]
                continue
            duration = spans.end[span] - spans.start[span]
            if 2 * own[span] >= duration:
                pieces[span] = Piece.SHORT if duration < SHORT_NS else Piece.LONG
                works.append(span)
    return works, bytes(pieces)
