"""An ablation's picture from its result."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.bars import draw_bars
from profiling.ablate.charts.curves import draw_curves
from profiling.ablate.charts.grid import draw_grid
from profiling.ablate.charts.points import draw_points
from profiling.ablate.charts.ratios import draw_ratios, shown_outcomes
from profiling.ablate.charts.shares import draw_shares
from profiling.ablate.outcome import Outcome
from profiling.ablate.result import Result
from profiling.pictures import new_figure

KINDS: Mapping[str, Callable[[Axes, Ablation, Result], None]] = {
    "bars": draw_bars,
    "shares": draw_shares,
    "curves": draw_curves,
    "grid": draw_grid,
    "points": draw_points,
}
ROW = 0.42
"""Height of a bar. [inches]"""


def picture(ablation: Ablation, result: Result, outcomes: Sequence[Outcome]) -> Figure:
    """The figure; there is at least one round."""
    ratios = shown_outcomes(outcomes)
    bars = len(result.definition["variants"])
    rows = max(len(ratios), bars if ablation.chart.kind in ("bars", "shares") else 0)
    figure = new_figure(12.5, max(3.2, 1.7 + ROW * rows))
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    KINDS[ablation.chart.kind](left, ablation, result)
    draw_ratios(right, ratios)
    return figure
