"""The chart of a comparison."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.charts import new_figure, short
from common.console import significant
from profiling.compare.comparison import Comparison, KindPair, Pair, kinds_of

FIRST, SECOND = "#3c8ddc", "#f08c00"
BARS = 10
BAR = 0.38
LONGEST_SHAPE = 44


def draw_comparison(comparison: Comparison) -> Figure:
    """Left: time by kind and direction. Right: the costliest calls that only one side makes."""
    kinds = kinds_of(comparison.pairs)[:BARS]
    only_one = comparison.only_one[:BARS]
    rows = max(len(kinds), len(only_one), 3)
    figure = new_figure(15, 1.8 + 0.55 * rows)
    left, right = figure.subplots(1, 2)
    draw_kinds(left, kinds, names=(comparison.first.name, comparison.second.name), rows=rows)
    draw_only_one(right, only_one, comparison, rows=rows)
    of = "a step" if comparison.is_by_step else "whole logs"
    figure.suptitle(f"{comparison.first.name} against {comparison.second.name}: oneDNN in {of}")
    return figure


def draw_kinds(axes: Axes, kinds: Sequence[KindPair], *, names: tuple[str, str], rows: int) -> None:
    """Two bars for each kind and direction."""
    for place, kind in enumerate(kinds):
        for offset, value, colour in (
            (-BAR / 2, kind.first_ms, FIRST),
            (BAR / 2, kind.second_ms, SECOND),
        ):
            axes.barh(place + offset, value, height=BAR, color=colour)
            axes.text(value, place + offset, f" {short(value)}", va="center", fontsize=8)
    for name, colour in zip(names, (FIRST, SECOND), strict=True):
        axes.barh(0, 0, color=colour, label=name)
    axes.set_yticks(range(len(kinds)), [kind.name for kind in kinds])
    axes.set_ylim(rows - 0.5, -0.6)
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.15)
    axes.set_title("by kind and direction")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def draw_only_one(axes: Axes, pairs: Sequence[Pair], comparison: Comparison, *, rows: int) -> None:
    """What extra calls cost whoever makes them, and how many there are."""
    axes.set_title("calls that only one side makes")
    if not pairs:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, pair in enumerate(pairs):
        is_first = pair.extra_calls > 0
        axes.barh(place, pair.extra_ms, height=0.7, color=FIRST if is_first else SECOND)
        who = comparison.first.name if is_first else comparison.second.name
        count = significant(abs(pair.extra_calls))
        axes.text(pair.extra_ms, place, f" {count} × {who}", va="center", fontsize=8)
    axes.set_yticks(range(len(pairs)), [label_of(pair) for pair in pairs], fontsize=8)
    axes.set_ylim(rows - 0.5, -0.6)
    axes.set_xlabel("milliseconds in those calls")
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def label_of(pair: Pair) -> str:
    """Two short lines: the kind, the shape's beginning."""
    question = pair.question
    shape = question.shape
    if len(shape) > LONGEST_SHAPE:
        shape = shape[: LONGEST_SHAPE - 1] + "…"
    return f"{question.kind} {question.direction}".strip() + "\n" + shape
