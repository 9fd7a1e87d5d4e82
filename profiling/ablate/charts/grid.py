"""Throughput by ranks, a line for each number of threads."""

from statistics import median

from matplotlib.axes import Axes

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.colours import DOTS, LINES
from profiling.ablate.result import Result


def draw_grid(axes: Axes, ablation: Ablation, result: Result) -> None:
    """Normalized to the smallest combination, as the paper's Table 3 is."""
    variants = result.definition["variants"]
    places = {
        name: (int(one["options"]["threads"]), int(one["options"]["ranks"]))
        for name, one in variants.items()
    }
    smallest = min(places, key=lambda name: places[name][::-1])
    unit = median(result.values(smallest, ablation.chart.of))
    by_threads: dict[int, list[tuple[int, float]]] = {}
    for name, (threads, ranks) in places.items():
        value = median(result.values(name, ablation.chart.of)) / unit
        by_threads.setdefault(threads, []).append((ranks, value))
    for colour, (threads, points) in zip(LINES, sorted(by_threads.items()), strict=False):
        points.sort()
        label = f"{threads} thread{'s' if threads > 1 else ''} of each rank"
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label)
        for ranks, value in points:
            axes.annotate(
                f"{value:.2f}",
                (ranks, value),
                xytext=(6, -10),
                textcoords="offset points",
                fontsize=8,
            )
    most = max(ranks for _, ranks in places.values())
    axes.plot([1, most], [1, most], "--", color=DOTS, linewidth=0.8, label="ideal")
    axes.set_xticks(sorted({ranks for _, ranks in places.values()}))
    axes.set(xlabel="ranks", ylabel=ablation.chart.unit, ylim=(0, None))
    axes.margins(x=0.12)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
