"""`mlperf points`: the reference convergence points, as a table, a chart and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.charts import BLUE, RED, Column, Table, new_figure, save_chart
from common.console import make_console, print_line
from common.errors import FINISHED
from common.files import write_json
from retinanet.mlperf.commands import PointsOptions
from retinanet.mlperf.rules import (
    TARGET_MAP,
    Expectation,
    ReferencePoint,
    Rules,
    benchmark_name,
    expectation,
    reference_points,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def points(options: PointsOptions) -> int:
    """Print the reference points of a rule set, and expected values for other batch sizes."""
    rules, batch_sizes = options.rules, options.batch_size or []
    measured = reference_points(rules)
    expected = [expectation(measured, size) for size in batch_sizes]
    title = f"epochs to mAP {TARGET_MAP} of the reference implementation, rules {rules}"
    rows = [
        (
            point.batch_size,
            point.mean_epochs,
            point.mean_epochs / measured[0].mean_epochs,
            point.least_epochs,
            point.learning_rate,
            f"{point.warmup_epochs:g} epoch{'' if point.warmup_epochs == 1 else 's'}",
            len(point.epochs),
        )
        for point in measured
    ]
    console = make_console(pipe_width=100)
    console.print(Table(title, POINT_COLUMNS, rows).for_console())
    for point in expected:
        print_line(
            console,
            f"batch size {point.batch_size} ({point.basis}): {point.mean_epochs:.2f} epochs, "
            f"{point.steps:,} steps\n  training.learning_rate={point.learning_rate:.3g} "
            f"training.warmup_epochs={point.warmup_epochs:g} training.warmup_factor="
            f"{point.warmup_factor:g}",
        )
    if options.chart is not None:
        save_chart(points_figure(measured, expected, rules=rules), options.chart)
        print_line(console, f"chart: {options.chart}")
    if options.json is not None:
        content = {
            "rules": rules,
            "benchmark": benchmark_name(rules),
            "points": [{**asdict(point), "mean_epochs": point.mean_epochs} for point in measured],
            "asked": [{**asdict(point), "steps": point.steps} for point in expected],
        }
        write_json(options.json, content)
    return FINISHED


POINT_COLUMNS = (
    Column("batch size"),
    Column("epochs", ".2f"),
    Column("normalized", ".2f"),
    Column("accepted from", ".2f"),
    Column("learning rate", "g"),
    Column("warm-up"),
    Column("runs"),
)


def points_figure(
    points: Sequence[ReferencePoint], expected: Sequence[Expectation], *, rules: Rules
) -> "Figure":
    """Draw the points, the range of their runs, and the values for the given batch sizes."""
    figure = new_figure(width=9, height=5)
    axes = figure.subplots()
    sizes = [point.batch_size for point in points]
    unit = points[0].mean_epochs
    # Linear interpolation is a curve on a logarithmic axis.
    between = np.geomspace(sizes[0], sizes[-1], 400)

    def interpolated(epochs: Sequence[float]) -> NDArray[np.float64]:
        return np.interp(between, sizes, epochs) / unit

    lowest = interpolated([point.epochs[0] for point in points])
    highest = interpolated([point.epochs[-1] for point in points])
    means = [point.mean_epochs for point in points]
    axes.fill_between(between, lowest, highest, color=BLUE, alpha=0.2, label="best to worst run")
    axes.plot(between, interpolated(means), color=BLUE)
    heights = [mean / unit for mean in means]
    axes.plot(sizes, heights, "o", color=BLUE, label="reference runs, mean")
    for number, point in enumerate(expected):
        position = (point.batch_size, point.mean_epochs / unit)
        label = None if number else "given batch sizes"
        axes.plot(*position, "D", color=RED, fillstyle="none", label=label)
        text = f"{point.batch_size}: {point.mean_epochs:.2f} epochs"
        axes.annotate(text, position, xytext=(8, -12), textcoords="offset points", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="global batch size [images]", ylim=(0, None))
    axes.set_ylabel(f"epochs to mAP {TARGET_MAP} (batch size {sizes[0]}: 1)")
    # Added last: matplotlib sets the limits of the left axis, used here, as curves are drawn.
    in_epochs = axes.twinx()
    in_epochs.set_ylim(0, axes.get_ylim()[1] * unit)
    in_epochs.set_ylabel("epochs")
    axes.set_title(f"MLPerf's reference convergence points, rules {rules}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    return figure
