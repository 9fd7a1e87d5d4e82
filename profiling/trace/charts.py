"""Charts of a trace: phases by category, costliest operators, and the timeline of one step.

The timeline shows the step of median duration: phases, a lane for each thread, how often operators
change, and a closer look, calls within calls, where most spans begin.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from common.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Bar,
    Piece,
    colour_legend,
    horizontal_bars,
    new_figure,
    shortened,
)
from common.console import significant
from profiling.trace.analysis import Analysis, Row, clipped
from profiling.trace.operators import CATEGORIES, EVALUATE, Category, Cell
from profiling.trace.trace import BETWEEN, stretches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    Category.ONEDNN: BLUE,
    Category.OURS: GREEN,
    Category.PRODUCTS: PURPLE,
    Category.COMMUNICATION: RED,
    Category.OTHER: ORANGE,
}
GAPS = "#dee2e6"
PHASES = ("#343a40", GREY)
"""Neighbours differ."""


def category_colours(analysis: Analysis) -> Mapping[str, str]:
    """Return the colours of what occurs, by name."""
    used = {category.value: COLOURS[category] for category in analysis.categories}
    return {**used, "gaps: no operator runs": GAPS}


SMALLEST_LABELLED = 0.045  # Share of the longest bar from which a piece has its milliseconds in it


def draw_split(analysis: Analysis, *, title: str) -> "Figure":
    """Draw a bar for each phase, in pieces by category; lengths are milliseconds a step."""
    phases = analysis.steps.phases
    times = [analysis.times_ms(phase) for phase in phases]
    longest = max(wall for wall, *_ in times)
    whole = sum(wall for wall, *_ in times)
    colours = category_colours(analysis)
    bars = []
    for phase, (wall, *parts) in zip(phases, times, strict=True):
        texts = (f"{part:,.0f}" if part >= SMALLEST_LABELLED * longest else "" for part in parts)
        pieces = list(map(Piece, parts, colours.values(), texts))
        bars.append(Bar(phase, pieces, note=f"{significant(wall)} ms, {wall / whole:.1%}"))
    figure = new_figure(height=1.9 + 0.55 * len(phases))
    axes = figure.subplots()
    horizontal_bars(axes, bars)
    axes.set_xlabel("time per step [ms]" if analysis.steps.are_marked else "time [ms]")
    colour_legend(figure, colours, columns=len(colours), loc="outside lower center", frameon=False)
    figure.suptitle(title)
    return figure


LONGEST_NAME = 52


def draw_operators(analysis: Analysis, costliest: Sequence[Row], *, title: str) -> "Figure":
    """Draw a bar for each operator and phase, with its calls and the module that costs most."""
    bars = []
    for operator in costliest:
        module = f", {operator.module}" if analysis.modules_are_known else ""
        time, calls = significant(operator.self_ms), significant(operator.calls)
        bars.append(
            Bar(
                f"{shortened(operator.operator, LONGEST_NAME)}  [{operator.phase}]",
                [Piece(operator.self_ms, COLOURS[Category(operator.category)])],
                note=f"{time} ms, {operator.share:.1%}, {calls} calls{module}",
            )
        )
    figure = new_figure(width=12, height=1.7 + 0.36 * max(1, len(costliest)))
    axes = figure.subplots()
    horizontal_bars(axes, bars, room=2.0, fontsize=8, name_size=9)
    axes.set_xlabel(
        "self time [ms]; share of wall time"
        + "; costliest module with its share, + number of others" * analysis.modules_are_known
    )
    if costliest:
        used = dict.fromkeys(operator.category for operator in costliest)
        colours = {category: COLOURS[Category(category)] for category in used}
        colour_legend(axes, colours, loc="lower right", frameon=False)
    figure.suptitle(title)
    return figure


SLIVERS = 1000  # Parts of a step in its lane; each about as wide as a dot of the chart


def draw_timeline(analysis: Analysis, *, title: str) -> "Figure":
    """Draw the step of median duration: phases, lanes of threads, changes, and a closer look."""
    cells = median_step(analysis)
    window = Window(cells[0].start, cells[-1].end)
    whole_ms = (window.end - window.start) / 1e6
    threads = analysis.steps.training_threads
    figure = new_figure(width=14, height=5.6 + 1.0 * len(threads))
    heights = [0.25, *(1.0 for _ in threads), 0.7, 2.6]
    axes = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
    strip, *lanes, density, closer_look = axes
    draw_phases(strip, cells, window)
    starts = [analysis.trace.operators.start[span] for span in analysis.working]
    starts = [start for start in starts if window.start <= start < window.end]
    closer = busiest(starts, window)
    for lane, thread in zip(lanes, threads, strict=True):
        draw_lane(lane, analysis, cells, thread=thread)
        lane.set_ylabel("main\nthread" if lane is lanes[0] else "backward\nthread")
        lane.sharex(strip)
    # How many working spans begin in each millisecond.
    since = [(start - window.start) / 1e6 for start in starts]
    counts, edges = np.histogram(since, bins=250, range=(0, whole_ms))
    density.stairs(counts / (edges[1] - edges[0]), edges, fill=True, color=DARK)
    density.set_ylabel("working\nspans\nper ms")
    density.spines[["top", "right"]].set_visible(False)
    density.sharex(strip)
    for upper in (strip, *lanes):
        upper.tick_params(bottom=False, labelbottom=False)
    strip.set_xlim(0, whole_ms)
    density.set_xlabel(
        "time since the beginning of the step [ms]; height of a colour: its share of each "
        f"{whole_ms / SLIVERS:.2g} ms"
    )
    left, right = ((edge - window.start) / 1e6 for edge in closer)
    frame = {"facecolor": "none", "edgecolor": "black", "linewidth": 1.5, "clip_on": False}
    for lane in lanes:
        lane.axvspan(left, right, **frame)
    draw_closer(closer_look, analysis, closer, window)
    colours = category_colours(analysis)
    colour_legend(figure, colours, columns=len(colours), loc="outside lower center", frameon=False)
    figure.suptitle(title)
    return figure


def median_step(analysis: Analysis) -> list[Cell]:
    """Return the cells of the step of median duration."""
    durations = sorted(analysis.steps.durations.items(), key=lambda item: item[1])
    # The lower of two in the middle: a real step is drawn, not a mean.
    number = durations[(len(durations) - 1) // 2][0]
    return [cell for cell in analysis.steps.cells if cell.step == number]


class Window(NamedTuple):
    """A piece of time. [ns]"""

    start: int
    end: int


def draw_phases(axes: "Axes", cells: Sequence[Cell], window: Window) -> None:
    """Draw a strip with the names of phases."""
    whole = window.end - window.start
    marked = (cell for cell in cells if cell.phase != BETWEEN)
    for place, cell in enumerate(marked):
        left, width = (cell.start - window.start) / 1e6, (cell.end - cell.start) / 1e6
        axes.barh(0, width, left=left, color=PHASES[place % len(PHASES)], height=1.0)
        # A letter is about 0.6 % of the strip wide; names that do not fit are left out.
        if cell.end - cell.start > 0.006 * whole * len(cell.phase):
            axes.text(left + width / 2, 0, cell.phase, color="white", ha="center", va="center",
                      fontsize=9)  # fmt: skip
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_lane(axes: "Axes", analysis: Analysis, cells: Sequence[Cell], *, thread: int) -> None:
    """Draw a thread's step in slivers; the height of a colour is its share of the sliver."""
    start, end = cells[0].start, cells[-1].end
    edges = np.linspace(0, end - start, SLIVERS + 1)
    shares = np.zeros((len(CATEGORIES), SLIVERS))
    trace = analysis.trace
    lane = stretches(trace.operators, trace.by_thread.get(thread, ()))
    for (begin, over, span), _ in clipped(lane, cells):
        # A stretch may cover slivers in part: each gets the length of its overlap.
        first = min(SLIVERS - 1, int((begin - start) * SLIVERS / (end - start)))
        last = min(SLIVERS - 1, int((over - start) * SLIVERS / (end - start)))
        inside = slice(first, last + 1)
        width = np.minimum(edges[first + 1 : last + 2], over - start) - np.maximum(
            edges[inside], begin - start
        )
        shares[analysis.origins.category[span], inside] += np.maximum(width, 0.0)
    shares /= edges[1]
    # What no operator covers stays in the colour of gaps.
    axes.set_facecolor(GAPS)
    below = np.zeros(SLIVERS)
    for place, category in enumerate(CATEGORIES):
        above = below + shares[place]
        if shares[place].any():
            axes.stairs(above, edges / 1e6, baseline=below, fill=True, color=COLOURS[category],
                        linewidth=0)  # fmt: skip
        below = above
    axes.set_ylim(0, 1)
    axes.set_yticks([])


CLOSER = 300  # The closer look shows this part of the step, 1 / 300, or less
MOST_SPANS = 60  # Spans in the closer look; if there are more, it is closer still
DEEPEST = 9  # Levels of calls that the closer look shows
LABELLED = 0.006, 0.04
"""Shares of the closer look's width from which a span has its name in it, upright and lying."""
SEPARATED = 0.003  # Share of its width from which a span is set off from its neighbours
LETTERS = 150  # Letters of a name that spans the whole width
UPRIGHT_LETTERS = 12


def busiest(starts: Sequence[int], window: Window) -> Window:
    """Return the part of a step in which most working spans begin, short enough to see each."""
    length = max(1, (window.end - window.start) // CLOSER)
    begin, count = densest(starts, length)
    while count > MOST_SPANS and length > 2:
        # Within the part found before: calls of nanoseconds in a row, which do nothing, would else
        # be the densest of the whole step.
        starts = [start for start in starts if begin <= start < begin + length]
        length //= 2
        begin, count = densest(starts, length)
    # A fiftieth of the width is left free before the first span.
    begin = begin if count else window.start
    return Window(begin - length // 50, begin - length // 50 + length)


def densest(starts: Sequence[int], length: int) -> tuple[int, int]:
    """Return the window of a length with most starts, and their number."""
    if not starts:
        return 0, 0
    # The densest window ends with the begin of a span, so that only these are tried.
    firsts = np.searchsorted(starts, np.asarray(starts) - length, side="right")
    counts = np.arange(1, len(starts) + 1) - firsts
    last = int(counts.argmax())
    return starts[firsts[last]], int(counts[last])


def draw_closer(axes: "Axes", analysis: Analysis, closer: Window, window: Window) -> None:
    """Draw spans of the main thread, callees below their callers."""
    trace, origins, spans = analysis.trace, analysis.origins, analysis.trace.operators
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
        name = spans.span_name(span).removeprefix(EVALUATE).removeprefix("aten::")
        label(axes, name, left=left, depth=depth[span], width=width / 1e6, share=width / whole)
    axes.set_xlim(*((edge - window.start) / 1e6 for edge in closer))
    axes.set_ylim(min(DEEPEST, max(depth.values(), default=0) + 1) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_ylabel("closer view:\nnested calls")
    axes.spines[["top", "right"]].set_visible(False)
    # By default matplotlib writes ticks so close together as differences from an offset.
    axes.ticklabel_format(useOffset=False)
    axes.set_xlabel(f"time [ms]; the framed {whole / 1e6:.3g} ms, in which most spans begin")


def label(axes: "Axes", name: str, *, left: float, depth: int, width: float, share: float) -> None:
    """Write a span's name in it: horizontal, vertical, or omitted if it does not fit."""
    upright, lying = LABELLED
    if share >= lying:
        axes.text(left, depth, f" {name[: int(LETTERS * share)]}", va="center", fontsize=7,
                  color="white", clip_on=True)  # fmt: skip
    elif share >= upright:
        axes.text(left + width / 2, depth, name[:UPRIGHT_LETTERS], rotation=90, ha="center",
                  va="center", fontsize=6, color="white", clip_on=True)  # fmt: skip
