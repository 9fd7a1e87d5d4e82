"""The chart of a step's time: phases, and what each is spent in."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiling.pictures import new_figure
from profiling.significant import significant
from profiling.trace.analysis import Analysis
from profiling.trace.colours import COLOURS, GAPS
from profiling.trace.report import times_of

SMALLEST_LABELLED = 0.045
"""Share of the longest bar from which a piece has its milliseconds in it."""


def draw_split(analysis: Analysis, *, title: str) -> Figure:
    """A bar for each phase, in pieces by category; lengths are milliseconds a step."""
    phases = analysis.steps.phases
    times = [times_of(analysis, phase) for phase in phases]
    longest = max(wall for wall, *_ in times)
    figure = new_figure(10, 1.9 + 0.55 * len(phases))
    axes = figure.subplots()
    names = [one.value for one in analysis.categories] + ["gaps: no operator runs"]
    colours = [COLOURS[one] for one in analysis.categories] + [GAPS]
    for place, (wall, *parts) in enumerate(times):
        draw_bar(axes, place, parts, colours, longest=longest)
        share = wall / sum(of_phase for of_phase, *_ in times)
        axes.text(wall, place, f"  {significant(wall)} ms, {share:.1%}", va="center", fontsize=9)
    axes.set_yticks(range(len(phases)), phases)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * longest)
    axes.set_xlabel(f"milliseconds {'a step' if analysis.steps.are_marked else 'in all'}")
    axes.spines[["top", "right"]].set_visible(False)
    for name, colour in zip(names, colours, strict=True):
        axes.bar(0, 0, color=colour, label=name)
    figure.legend(loc="outside lower center", ncol=len(names), frameon=False)
    figure.suptitle(title)
    return figure


def draw_bar(
    axes: Axes, place: int, parts: list[float], colours: list[str], *, longest: float
) -> None:
    """The pieces of one phase, one after the other."""
    start = 0.0
    for part, colour in zip(parts, colours, strict=True):
        axes.barh(place, part, left=start, color=colour, height=0.7)
        if part >= SMALLEST_LABELLED * longest:
            ink = "black" if colour == GAPS else "white"
            axes.text(start + part / 2, place, f"{part:,.0f}", ha="center", va="center",
                      color=ink, fontsize=9)  # fmt: skip
        start += part
