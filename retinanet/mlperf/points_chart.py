"""The paper's Figure 7: epochs to converge against the global batch size, normalized."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from retinanet.mlperf.rules import Expectation, ReferencePoint, Rules

BLUE = "#3c8ddc"


def points_chart(
    points: Sequence[ReferencePoint], asked: Sequence[Expectation], *, rules: Rules
) -> bytes:
    """A PNG with the points, the range of their runs, and the batch sizes that were asked for."""
    smallest = points[0]
    figure = Figure(figsize=(9, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = [point.batch_size for point in points]
    unit = smallest.mean_epochs
    between = np.geomspace(sizes[0], sizes[-1], 400)  # a straight line is bent on this axis

    def drawn(epochs: Sequence[float]) -> NDArray[np.float64]:
        return np.interp(between, sizes, epochs) / unit

    lowest, highest = ([point.epochs[place] for point in points] for place in (0, -1))
    axes.fill_between(
        between, drawn(lowest), drawn(highest), color=BLUE, alpha=0.2, label="best to worst run"
    )
    means = [point.mean_epochs for point in points]
    axes.plot(between, drawn(means), color=BLUE)
    axes.plot(
        sizes,
        [mean / unit for mean in means],
        color=BLUE,
        marker="o",
        linestyle="none",
        label="reference runs, mean",
    )
    axes.plot(
        [one.batch_size for one in asked],
        [one.mean_epochs / unit for one in asked],
        color="#e6194b",
        marker="D",
        linestyle="none",
        fillstyle="none",
        label="asked for" if asked else None,
    )
    for one in asked:
        place = (one.batch_size, one.mean_epochs / unit)
        text = f"{one.batch_size}: {one.mean_epochs:.2f} epochs"
        axes.annotate(text, place, xytext=(8, -12), textcoords="offset points", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="global batch size, images", ylim=(0, None))
    axes.set_ylabel(f"epochs to mAP 0.34, batch {smallest.batch_size} is 1")
    in_epochs = axes.twinx()
    in_epochs.set_ylim(0, axes.get_ylim()[1] * unit)
    in_epochs.set_ylabel("epochs")
    axes.set_title(f"MLPerf's reference convergence points, rules {rules}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
