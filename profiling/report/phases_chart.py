"""The chart of a step by phases: what oneDNN does in each, and what is not oneDNN's."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from profiling.pictures import new_figure
from profiling.report.phases import Phase, largest_kinds
from profiling.significant import significant

COLOURS = ("#3c8ddc", "#f08c00", "#2b8a3e", "#9c36b5", "#e6194b")
OTHER_KINDS, ELSEWHERE = "#495057", "#ced4da"
SMALLEST_LABELLED = 0.05
"""Of the longest phase, from which a piece has its milliseconds in it."""


def draw_phases(phases: Sequence[Phase]) -> Figure:
    """A bar for each phase, in pieces by kind of primitive; lengths are milliseconds a step."""
    figure = new_figure(10, 1.6 + 0.5 * len(phases))
    axes = figure.subplots()
    kinds = largest_kinds(phases, len(COLOURS))
    longest = max(phase.wall_ms for phase in phases)
    for place, phase in enumerate(phases):
        start = 0.0
        for value, colour in pieces_of(phase, kinds):
            axes.barh(place, value, left=start, color=colour, height=0.7)
            if value > SMALLEST_LABELLED * longest:
                ink = "black" if colour == ELSEWHERE else "white"
                axes.text(start + value / 2, place, f"{value:,.0f}", ha="center", va="center",
                          color=ink, fontsize=9)  # fmt: skip
            start += value
        axes.text(start, place, f"  {significant(phase.wall_ms)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * longest)
    axes.set_xlabel("milliseconds a step")
    axes.spines[["top", "right"]].set_visible(False)
    names = [(kind.replace("_", " "), colour) for kind, colour in zip(kinds, COLOURS, strict=False)]
    if any(set(phase.kinds_ms) - set(kinds) for phase in phases):
        names.append(("other kinds", OTHER_KINDS))
    for name, colour in (*names, ("not in oneDNN", ELSEWHERE)):
        axes.bar(0, 0, color=colour, label=name)
    figure.legend(loc="outside lower center", ncol=4, frameon=False)
    return figure


def pieces_of(phase: Phase, kinds: Sequence[str]) -> list[tuple[float, str]]:
    """Milliseconds and colours, from left to right."""
    pieces = [
        (phase.kinds_ms.get(kind, 0.0), colour)
        for kind, colour in zip(kinds, COLOURS, strict=False)
    ]
    others = sum(ms for kind, ms in phase.kinds_ms.items() if kind not in kinds)
    return [*pieces, (others, OTHER_KINDS), (phase.elsewhere_ms, ELSEWHERE)]
