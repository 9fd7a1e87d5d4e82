"""Ratios with their intervals, and the paper's beside them."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from profiling.ablate.charts.colours import DOTS, PAPER, PLAIN
from profiling.ablate.outcome import Outcome, shown
from profiling.ablate.statistics import Ratio

WIDEST_LINEAR = 6.0
"""Ratios beyond are drawn on a logarithmic axis."""
WIDEST_DOUBLING = 200.0
"""Where they span more, the axis has a line for every factor of 10, else of 2."""


def shown_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that were measured."""
    return [one for one in outcomes if one.ratio is not None]


def draw_ratios(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """A line for each outcome, the first on top."""
    values = [value for one in outcomes for value in values_of(one)]
    is_wide = bool(values) and max(values) > WIDEST_LINEAR
    if is_wide:
        axes.set_xscale("log", base=2)
    for place, one in enumerate(outcomes):
        assert one.ratio is not None
        draw_ratio(axes, place, one.ratio, colour=PLAIN)
        if one.again is not None:
            draw_ratio(axes, place + 0.22, one.again, colour="#adb5bd")
        paper = one.comparison.paper
        if paper is not None:
            axes.plot(paper, place, marker="D", color=PAPER, markersize=6, zorder=3)
        axes.annotate(
            shown(one.ratio.median, one.comparison.ratio),
            (one.ratio.median, place),
            xytext=(0, 6),
            textcoords="offset points",
            ha="left" if one.ratio.median < 0.1 * max(values) else "center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over the line at 1
        )
    if any(one.comparison.ratio != "share" for one in outcomes):
        axes.axvline(1, color=DOTS, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(outcomes)), [labelled(one) for one in outcomes], fontsize=8)
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.margins(x=0.15)
    if not is_wide:
        axes.set_xlim(0, None)
    if is_wide and max(values) / min(values) > WIDEST_DOUBLING:
        axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    legend(axes, outcomes)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_ratio(axes: Axes, place: float, ratio: Ratio, *, colour: str) -> None:
    """A median on its interval."""
    axes.plot(
        [ratio.interval.low, ratio.interval.high], [place] * 2, color=colour, linewidth=3, alpha=0.5
    )
    axes.plot(ratio.median, place, "o", color=colour, markersize=6)


def legend(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """What the marks are, above the axes."""
    words = [("o", PLAIN, "here, with its interval")]
    if any(one.again for one in outcomes):
        words.append(("o", "#adb5bd", "a second run"))
    if any(one.comparison.paper for one in outcomes):
        words.append(("D", PAPER, "the paper"))
    for marker, colour, label in words:
        axes.plot([], [], marker, color=colour, label=label)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(words), fontsize=8, frameon=False
    )


def values_of(one: Outcome) -> list[float]:
    """Everything that is drawn of an outcome."""
    assert one.ratio is not None
    ratios = [one.ratio, *([one.again] if one.again else [])]
    paper = [one.comparison.paper] if one.comparison.paper else []
    return [*paper, *(value for r in ratios for value in (r.median, r.interval.high))]


def labelled(one: Outcome) -> str:
    """What is compared, and in which terms, on two lines."""
    terms = "share of it" if one.comparison.ratio == "share" else one.comparison.ratio
    return f"{one.what}\n{terms}"
