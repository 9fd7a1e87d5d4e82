"""Curves of a run: losses and mAP against steps."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from retinanet.output_files import write_whole

LOSSES = (("loss", "both", "#333333"), ("classification", "classification", "#e6194b"),
          ("bbox_regression", "boxes", "#3c8ddc"))  # fmt: skip
PRECISIONS = (("map", "mAP", "#2f9e44"), ("map_50", "mAP50", "#f08c00"),
              ("map_75", "mAP75", "#9c36b5"))  # fmt: skip


def draw_curves(
    records: Sequence[dict[str, Any]], file: Path, *, title: str, target_map: float | None
) -> None:
    """Write a PNG with the losses (left) and the precisions (right).

    Args:
        records: Of a run's `metrics.jsonl`.
        file: Where to.
        title: The run's name.
        target_map: Drawn as a line if given.
    """
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    figure = Figure(figsize=(12, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_losses(left, steps)
    draw_precisions(right, evaluations, target_map=target_map)
    for axes in (left, right):
        axes.set_xlabel("optimizer steps")
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(file, content.getvalue())


def draw_losses(axes: Axes, steps: Sequence[dict[str, Any]]) -> None:
    """Every step's losses, pale, and their running mean."""
    places = [record["step"] for record in steps]
    for name, label, colour in LOSSES:
        values = np.array([record[name] for record in steps], dtype=float)  # null becomes NaN
        axes.plot(places, values, color=colour, alpha=0.2, linewidth=0.7)
        axes.plot(places, running_mean(values), color=colour, label=label)
    axes.set_title("training loss (mean of 20 steps)")
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_precisions(
    axes: Axes, evaluations: Sequence[dict[str, Any]], *, target_map: float | None
) -> None:
    """The evaluations' precisions."""
    places = [record["step"] for record in evaluations]
    for name, label, colour in PRECISIONS:
        values = [np.nan if record[name] is None else record[name] for record in evaluations]
        axes.plot(places, values, color=colour, marker="o", label=label)
    if target_map is not None:
        axes.axhline(target_map, color="#2f9e44", linestyle="--", label=f"target {target_map:g}")
    axes.set_title("validation")
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left")


def running_mean(values: NDArray[np.float64], *, window: int = 20) -> NDArray[np.float64]:
    """Mean of up to `window` values that end at each place; NaN, of skipped steps, is left out."""
    counted = np.isfinite(values)
    sums = np.cumsum(np.insert(np.where(counted, values, 0.0), 0, 0.0))
    counts = np.cumsum(np.insert(counted, 0, 0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    with np.errstate(invalid="ignore"):  # no value at all has no mean
        means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (counts[ends] - counts[starts])
    return means
