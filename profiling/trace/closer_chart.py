"""The closer look of a timeline: calls within calls, where most spans begin."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from profiling.trace.analysis import Analysis
from profiling.trace.categories import CATEGORIES
from profiling.trace.colours import COLOURS, GAPS
from profiling.trace.phases import EVALUATE
from profiling.trace.trace import Trace

CLOSER = 300
"""The closer look shows so small a part of the step."""
MOST_SPANS = 60
"""That the closer look has; if there are more, it is closer still."""
DEEPEST = 9
"""Levels of calls that the closer look shows."""
LABELLED = 0.006, 0.04
"""Shares of the closer look's width from which a span has its name in it, upright and lying."""
SEPARATED = 0.003
"""Share of its width from which a span is set off from its neighbours."""
LETTERS = 150
"""Of a name that spans the whole width."""
UPRIGHT_LETTERS = 12


class Window(NamedTuple):
    """A piece of time. [ns]"""

    start: int
    end: int


def busiest(starts: Sequence[int], window: Window) -> Window:
    """The part of a step in which most working spans begin, short enough to see each."""
    length = max(1, (window.end - window.start) // CLOSER)
    begin, count = densest(starts, length)
    while count > MOST_SPANS and length > 2:
        length //= 2
        begin, count = densest(starts, length)
    begin = begin if count else window.start
    return Window(begin - length // 50, begin - length // 50 + length)


def densest(starts: Sequence[int], length: int) -> tuple[int, int]:
    """Where most of the starts fit into a length, and how many those are."""
    best, most, first = 0, 0, 0
    for place, start in enumerate(starts):
        while starts[first] <= start - length:
            first += 1
        if place - first + 1 > most:
            best, most = starts[first], place - first + 1
    return best, most


def draw_closer(
    axes: Axes, trace: Trace, analysis: Analysis, closer: Window, window: Window
) -> None:
    """Spans of the main thread one below the other, as they call each other."""
    spans, origins = trace.operators, analysis.origins
    depth: dict[int, int] = {}
    whole = closer.end - closer.start
    axes.barh(0, whole / 1e6, left=(closer.start - window.start) / 1e6, height=0.9, color=GAPS)
    for span in trace.by_thread.get(analysis.steps.main_thread, ()):
        if spans.end[span] < closer.start or spans.start[span] >= closer.end:
            continue
        depth[span] = depth.get(origins.around[span], -1) + 1
        if depth[span] >= DEEPEST:
            continue
        begin = max(spans.start[span], closer.start)
        width = min(spans.end[span], closer.end) - begin
        left = (begin - window.start) / 1e6
        axes.barh(depth[span], width / 1e6, left=left, height=0.9, edgecolor="white",
                  linewidth=0.5 if width > SEPARATED * whole else 0,
                  color=COLOURS[CATEGORIES[origins.category[span]]])  # fmt: skip
        name = spans.name_of(span).removeprefix(EVALUATE).removeprefix("aten::")
        label(axes, name, left=left, depth=depth[span], width=width / 1e6, share=width / whole)
    axes.set_xlim(*((edge - window.start) / 1e6 for edge in closer))
    axes.set_ylim(min(DEEPEST, max(depth.values(), default=0) + 1) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_ylabel("closer:\ncalls within\ncalls")
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(useOffset=False)
    axes.set_xlabel(f"milliseconds; the {whole / 1e6:.3g} ms framed above, where most spans begin")


def label(axes: Axes, name: str, *, left: float, depth: int, width: float, share: float) -> None:
    """As much of a span's name as fits in it: lying, upright, or nothing."""
    upright, lying = LABELLED
    if share >= lying:
        axes.text(left, depth, f" {name[: int(LETTERS * share)]}", va="center", fontsize=7,
                  color="white", clip_on=True)  # fmt: skip
    elif share >= upright:
        axes.text(left + width / 2, depth, name[:UPRIGHT_LETTERS], rotation=90, ha="center",
                  va="center", fontsize=6, color="white", clip_on=True)  # fmt: skip
