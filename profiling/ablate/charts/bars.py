"""Medians as bars, with a dot for every round."""

from statistics import median

from matplotlib.axes import Axes

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.colours import DOTS, PHASES, PLAIN
from profiling.ablate.result import Result


def draw_bars(axes: Axes, ablation: Ablation, result: Result) -> None:
    """A bar for each variant, the first on top; of parts where the result has them."""
    choice = ablation.chart
    names = [name for name in result.definition["variants"] if result.values(name, choice.of)]
    parts = [part for part in choice.parts if any(result.values(name, part) for name in names)]
    for place, name in enumerate(names):
        start = 0.0
        for part in parts:
            values = result.values(name, part)
            if values:
                axes.barh(place, median(values), left=start, color=PHASES[part], height=0.62)
                start += median(values)
        whole = result.values(name, choice.of)
        if not start:
            axes.barh(place, median(whole), color=PLAIN, height=0.62)
        axes.plot(whole, [place] * len(whole), ".", color=DOTS, markersize=4, alpha=0.7)
        # At the edge, as beside the farthest dot it would be taken for that one's.
        edge = axes.get_yaxis_transform()
        axes.text(1.01, place, f"{median(whole):.3g}", transform=edge, va="center", fontsize=8)
    axes.set_yticks(range(len(names)), [label_of(result, name) for name in names], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.04)
    axes.set_xlim(0, None)
    axes.set_xlabel(f"{choice.unit}, {choice.per}" if choice.per else choice.unit)
    axes.spines[["top", "right"]].set_visible(False)
    if parts:
        handles = [axes.barh(0, 0, color=PHASES[part], label=part) for part in parts]
        axes.figure.legend(
            handles=handles, loc="outside upper left", ncols=len(parts), fontsize=8, frameon=False
        )


def label_of(result: Result, name: str) -> str:
    """The variant, and its allocator where that is not the usual one."""
    variant = result.definition["variants"][name]
    extra = "" if variant["allocator"] == "tuned" else variant["allocator"]
    if variant["huge_pages"]:
        extra = f"{extra}, huge pages".lstrip(", ")
    return f"{name}\n({extra})" if extra and extra not in name else name
