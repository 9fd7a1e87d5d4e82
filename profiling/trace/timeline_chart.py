"""The chart of one step in time: what runs when, and a closer look where it changes most."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from profiling.pictures import new_figure
from profiling.trace.analysis import Analysis
from profiling.trace.analyze import clipped
from profiling.trace.categories import CATEGORIES
from profiling.trace.cells import Cell
from profiling.trace.closer_chart import Window, busiest, draw_closer
from profiling.trace.colours import COLOURS, GAPS, PHASES
from profiling.trace.spans import stretches
from profiling.trace.steps import UNMARKED
from profiling.trace.trace import Trace

SLIVERS = 1000
"""Of the step; each about as wide as a dot of the picture."""


def draw_timeline(trace: Trace, analysis: Analysis, *, title: str) -> Figure:
    """The step of median duration: phases, a lane for each thread, changes, and a closer look."""
    cells = median_step(analysis)
    window = Window(cells[0].start, cells[-1].end)
    threads = analysis.steps.training_threads
    figure = new_figure(14, 5.6 + 1.0 * len(threads))
    heights = [0.25, *(1.0 for _ in threads), 0.7, 2.6]
    axes = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
    draw_phases(axes[0], cells, window)
    for place, thread in enumerate(threads):
        draw_lane(axes[1 + place], trace, analysis, cells, thread=thread)
        axes[1 + place].set_ylabel("backward\nthread" if place else "main\nthread")
        axes[1 + place].sharex(axes[0])
    starts = [trace.operators.start[one] for one in analysis.working]
    starts = [start for start in starts if window.start <= start < window.end]
    draw_density(axes[-2], starts, window)
    axes[-2].sharex(axes[0])
    for one in axes[:-2]:
        one.tick_params(bottom=False, labelbottom=False)
    axes[0].set_xlim(0, (window.end - window.start) / 1e6)
    sliver = (window.end - window.start) / SLIVERS / 1e6
    axes[-2].set_xlabel(
        "milliseconds since the step began; the height of a colour is its share of each "
        f"{sliver:.2g} ms"
    )
    closer = busiest(starts, window)
    for one in axes[1:-2]:
        mark_closer(one, closer, window)
    draw_closer(axes[-1], trace, analysis, closer, window)
    add_legend(figure, analysis)
    figure.suptitle(title)
    return figure


def median_step(analysis: Analysis) -> list[Cell]:
    """The cells of the step of median duration."""
    durations = sorted(analysis.steps.durations.items(), key=lambda item: item[1])
    number = durations[(len(durations) - 1) // 2][0]
    return [cell for cell in analysis.steps.cells if cell.step == number]


def draw_phases(axes: Axes, cells: Sequence[Cell], window: Window) -> None:
    """A strip with the names of phases."""
    whole = window.end - window.start
    marked = (cell for cell in cells if cell.phase != UNMARKED)
    for place, cell in enumerate(marked):
        left, width = (cell.start - window.start) / 1e6, (cell.end - cell.start) / 1e6
        axes.barh(0, width, left=left, color=PHASES[place % len(PHASES)], height=1.0)
        if cell.end - cell.start > 0.006 * whole * len(cell.phase):
            axes.text(left + width / 2, 0, cell.phase, color="white", ha="center", va="center",
                      fontsize=9)  # fmt: skip
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_lane(
    axes: Axes, trace: Trace, analysis: Analysis, cells: Sequence[Cell], *, thread: int
) -> None:
    """Cut the step into slivers; the height of a colour is its share of the sliver."""
    start, end = cells[0].start, cells[-1].end
    edges = np.linspace(0, end - start, SLIVERS + 1)
    shares = np.zeros((len(CATEGORIES), SLIVERS))
    lane = stretches(trace.operators, trace.by_thread.get(thread, ()))
    for (begin, over, span), _ in clipped(lane, cells):
        first = min(SLIVERS - 1, int((begin - start) * SLIVERS / (end - start)))
        last = min(SLIVERS - 1, int((over - start) * SLIVERS / (end - start)))
        inside = slice(first, last + 1)
        width = np.minimum(edges[first + 1 : last + 2], over - start) - np.maximum(
            edges[inside], begin - start
        )
        shares[analysis.origins.category[span], inside] += np.maximum(width, 0.0)
    shares /= edges[1]
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


def draw_density(axes: Axes, starts: Sequence[int], window: Window) -> None:
    """How many working spans begin in each millisecond."""
    whole = (window.end - window.start) / 1e6
    counts, edges = np.histogram(
        [(start - window.start) / 1e6 for start in starts], bins=250, range=(0, whole)
    )
    axes.stairs(counts / (edges[1] - edges[0]), edges, fill=True, color="#495057")
    axes.set_ylabel("working\nspans\na ms")
    axes.spines[["top", "right"]].set_visible(False)


def mark_closer(axes: Axes, closer: Window, window: Window) -> None:
    """Where in the step the closer look is."""
    left, right = ((edge - window.start) / 1e6 for edge in closer)
    axes.axvspan(left, right, facecolor="none", edgecolor="black", linewidth=1.5, clip_on=False)


def add_legend(figure: Figure, analysis: Analysis) -> None:
    """Colours of what is there."""
    names = [one.value for one in analysis.categories] + ["gaps: no operator runs"]
    colours = [COLOURS[one] for one in analysis.categories] + [GAPS]
    handles = [Patch(color=colour) for colour in colours]
    figure.legend(handles, names, loc="outside lower center", ncol=len(names), frameon=False)
