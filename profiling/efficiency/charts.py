"""The chart of a run's efficiency."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.charts import new_figure
from profiling.efficiency.analysis import (
    Efficiency,
    Part,
    Projection,
    cold_ratio,
    hot_ratio,
    kind_and_direction,
)
from profiling.onednn_log.problem import DIRECTION_COLOURS, direction_name

MOST = 12
"""Kinds and directions that are shown, the costliest."""
BAR = 0.38
ONEDNN, ELSEWHERE = "#3c8ddc", "#ced4da"
COLD_ALPHA = 0.45


def draw_efficiency(found: Efficiency, projection: Projection | None, *, title: str) -> Figure:
    """Left: ratios by kind and direction. Right: a step as measured and as it could be."""
    parts = found.parts[:MOST]
    figure = new_figure(13, 2.6 + 0.42 * max(5, len(parts)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_ratios(left, parts, found.total)
    draw_projection(right, projection)
    figure.suptitle(title)
    return figure


def draw_ratios(axes: Axes, parts: Sequence[Part], total: Part) -> None:
    """Two bars for each part: hot above, cold below and paler."""
    axes.set_title("speed in the run, of the speed alone")
    if not parts:
        axes.text(0.5, 0.5, "nothing was replayed", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, part in enumerate(parts):
        colour = DIRECTION_COLOURS.get(direction_name(part.direction), DIRECTION_COLOURS[""])
        hot, cold = hot_ratio(part), cold_ratio(part)
        for ratio, shift, alpha in ((hot, -BAR / 2, 1.0), (cold, BAR / 2, COLD_ALPHA)):
            if ratio is not None:
                axes.barh(place + shift, ratio, height=BAR, color=colour, alpha=alpha)
                axes.text(ratio, place + shift, f" {ratio:.2f}", va="center", fontsize=8)
    shares = [part.measured_ms / total.measured_ms if total.measured_ms else 0 for part in parts]
    names = [
        f"{kind_and_direction(part.kind, part.direction)}\n{share:.1%} of the time"
        for part, share in zip(parts, shares, strict=True)
    ]
    axes.set_yticks(range(len(parts)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    overall = hot_ratio(total)
    if overall is not None:
        axes.axvline(
            overall, color="#e6194b", linestyle="--", linewidth=1, label=f"all, hot: {overall:.2f}"
        )
    axes.set_xlim(0, 1.08 * max(1.0, axes.get_xlim()[1]))
    axes.set_xlabel("replayed time / measured time: 1 is as fast as alone, less is slower")
    axes.barh(0, 0, color=DIRECTION_COLOURS[""], label="hot replay")
    axes.barh(0, 0, color=DIRECTION_COLOURS[""], alpha=COLD_ALPHA, label="cold replay (paler)")
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(axes)


def draw_projection(axes: Axes, projection: Projection | None) -> None:
    """A bar for each speed: oneDNN's primitives, and all else."""
    if projection is None:
        axes.text(0.5, 0.5, "the log marks no steps", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    whole = projection.elsewhere_s is not None
    axes.set_title("seconds a step" if whole else "oneDNN's seconds a step")
    longest = max(speed.step_s or speed.onednn_s for speed in projection.speeds)
    for place, speed in enumerate(projection.speeds):
        axes.barh(place, speed.onednn_s, color=ONEDNN, height=0.6)
        if projection.elsewhere_s is not None:
            axes.barh(place, projection.elsewhere_s, left=speed.onednn_s, color=ELSEWHERE,
                      height=0.6)  # fmt: skip
        end = speed.step_s or speed.onednn_s
        images = f", {speed.images_per_s:.3g} images/s" if speed.images_per_s else ""
        axes.text(end, place, f" {end:.3g} s{images}", va="center", fontsize=8)
    axes.set_yticks(range(len(projection.speeds)), [speed.name for speed in projection.speeds])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * longest)
    axes.set_xlabel("seconds")
    axes.barh(0, 0, color=ONEDNN, label="oneDNN's primitives")
    if whole:
        axes.barh(0, 0, color=ELSEWHERE, label="everything else, as measured")
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(axes)


def legend_below(axes: Axes) -> None:
    """What colours mean, where no bar is."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3, fontsize=8)
