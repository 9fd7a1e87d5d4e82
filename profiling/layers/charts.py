"""The chart of a network's layers (the 2017 study's Figures 3 and 5 above, 6 below)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.charts import new_figure, short
from common.console import significant
from profiling.layers.report import costliest
from profiling.layers.study import BETWEEN, Layer, Measured
from profiling.onednn_log.problem import DIRECTION_COLOURS

LAYERS = 30
"""With bars of their own; the others share one."""
COLOURS = ("#868e96", "#2f9e44", "#f08c00", "#9c36b5", "#15aabf", "#e8590c", "#5c7cfa", "#333333")
"""Of configurations; those of passes are others."""
ROW = 0.24
"""Inches for a layer with one bar."""
BARS = 0.8
"""Of the distance between layers, all bars of a layer together."""


def draw_layers(measured: Sequence[Measured], *, title: str) -> Figure:
    """Totals above, layers below: the forward pass on the left, the backward pass on the right.

    Where there are several configurations, each has a bar in every layer.
    """
    rows = layer_rows(measured)
    thickness = ROW * (0.55 + 0.45 * len(measured))
    totals = 1.0 + 0.32 * len(measured)
    body = 1.1 + thickness * len(rows)
    figure = new_figure(12, totals + body)
    above, below = figure.subfigures(2, 1, height_ratios=[totals, body], squeeze=False)[:, 0]
    draw_totals(above.subplots(), measured)
    left, right = below.subplots(1, 2, sharey=True)
    longest = max(max(one.get((name, work), 0.0) for one in rows.values())
                  for name in range(len(measured)) for work in ("forward", "backward"))  # fmt: skip
    for axes, work in ((left, "forward"), (right, "backward")):
        draw_pass(axes, rows, measured, work=work)
        axes.set_xlim(0, 1.16 * longest)
        axes.set_title(f"{work} pass")
    left.set_yticks(range(len(rows)), list(rows), fontsize=8)
    left.set_ylim(len(rows) - 0.4, -0.6)
    if len(measured) > 1:
        right.legend(loc="lower right")
    figure.suptitle(f"{title}; averages of {len(measured[0].watched)} iterations")
    return figure


def layer_rows(measured: Sequence[Measured]) -> dict[str, dict[tuple[int, str], float]]:
    """Milliseconds by configuration's number and pass, for each row from top to bottom."""
    names = [name for name in costliest(measured) if name != BETWEEN]
    in_order = [layer.name for layer in measured[0].layers() if layer.name in names[:LAYERS]]
    tables = [{layer.name: layer for layer in one.layers()} for one in measured]
    groups = {
        **{" ".join(dict.fromkeys((name, tables[0][name].type))): [name] for name in in_order},
        f"{len(names[LAYERS:])} other layers": names[LAYERS:],
        BETWEEN: [BETWEEN],
    }
    return {
        title: {
            (number, work): sum(milliseconds(table[name], work) for name in members)
            for number, table in enumerate(tables)
            for work in ("forward", "backward")
        }
        for title, members in groups.items()
        if members
    }


def milliseconds(layer: Layer, work: str) -> float:
    """Of one pass, on average; 0 where there is none."""
    found = layer.forward if work == "forward" else layer.backward
    return found.mean if found else 0.0


def draw_totals(axes: Axes, measured: Sequence[Measured]) -> None:
    """A bar for each configuration, forward and backward pass one after the other."""
    for place, one in enumerate(measured):
        start = 0.0
        for work in ("forward", "backward"):
            mean = one.whole(work).mean
            label = f"{work} pass" if place == 0 else None
            axes.barh(place, mean, left=start, color=DIRECTION_COLOURS[work], label=label)
            axes.text(start + mean / 2, place, significant(mean), ha="center", va="center",
                      color="white", fontsize=9)  # fmt: skip
            start += mean
        axes.text(start, place, f"  {significant(start)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(measured)), [one.label for one in measured])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(one.total_ms for one in measured))
    axes.set_xlabel("milliseconds an iteration")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=8)


def draw_pass(
    axes: Axes,
    rows: dict[str, dict[tuple[int, str], float]],
    measured: Sequence[Measured],
    *,
    work: str,
) -> None:
    """A bar for each layer and configuration."""
    height = BARS / len(measured)
    for number, one in enumerate(measured):
        several = len(measured) > 1
        colour = COLOURS[number % len(COLOURS)] if several else DIRECTION_COLOURS[work]
        places = [place + (number + 0.5) * height - BARS / 2 for place in range(len(rows))]
        values = [row[number, work] for row in rows.values()]
        bars = axes.barh(places, values, height=height, color=colour, label=one.label)
        axes.bar_label(bars, [short_or_dash(value) for value in values],
                       fontsize=7, padding=2)  # fmt: skip
    axes.set_axisbelow(True)
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)


def short_or_dash(milliseconds: float) -> str:
    """A dash where there is nothing."""
    return short(milliseconds) if milliseconds else "–"
