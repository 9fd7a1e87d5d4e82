"""Losses by step, a line for each training."""

from statistics import median

from matplotlib.axes import Axes

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.colours import LINES
from profiling.ablate.result import Result


def draw_curves(axes: Axes, ablation: Ablation, result: Result) -> None:
    """Thin: each round; thick: their median."""
    prefix = ablation.chart.of
    for name, colour in zip(result.definition["variants"], LINES, strict=False):
        first = result.rounds[0][name].details
        keys = sorted(key for key in first if key.startswith(prefix))
        steps = [int(key.removeprefix(prefix)) for key in keys]
        for of_round in result.rounds:
            values = [of_round[name].details[key] for key in keys]
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.5)
        medians = [median(result.values(name, key)) for key in keys]
        axes.plot(steps, medians, color=colour, linewidth=2.4, marker="o", label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel(ablation.chart.unit)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
