"""Epochs by global batch size, with the range of the runs."""

from statistics import median

from matplotlib.axes import Axes

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.colours import PLAIN
from profiling.ablate.result import Result


def draw_points(axes: Axes, ablation: Ablation, result: Result) -> None:
    """Normalized to the smallest batch, as the paper's Figure 7 is."""
    prefix = ablation.chart.of
    [name] = result.definition["variants"]
    keys = sorted(key for key in result.rounds[0][name].details if key.startswith(prefix))
    sizes = [int(key.removeprefix(prefix)) for key in keys]

    def drawn(before: str) -> list[float]:
        return [median(result.values(name, before + key)) / unit for key in keys]

    unit = median(result.values(name, keys[0]))
    low, high = drawn("least "), drawn("most ")
    axes.fill_between(sizes, low, high, color=PLAIN, alpha=0.2, label="best to worst run")
    axes.plot(sizes, drawn(""), color=PLAIN, marker="o", label="mean of the runs")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45, fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="global batch size, images", ylim=(0, None))
    axes.set_ylabel(ablation.chart.unit)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")
