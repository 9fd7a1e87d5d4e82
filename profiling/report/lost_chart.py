"""The chart of what each kind of primitive would take at the roofline, and what it takes."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from profiling.directions import DIRECTION_COLOURS, direction_name
from profiling.efficiency.readable import kind_and_direction
from profiling.pictures import new_figure
from profiling.report.measured import MeasuredPart
from profiling.significant import significant

BARS = 12
PALE = 0.35


def draw_lost(parts: Sequence[MeasuredPart], *, unit: str) -> Figure:
    """A bar for each kind and direction: full up to the roofline, pale what is beyond it."""
    shown = [part for part in parts if part.bounded_ms][:BARS]
    figure = new_figure(10, 1.6 + 0.42 * len(shown))
    axes = figure.subplots()
    for place, part in enumerate(shown):
        name = direction_name(part.direction)
        colour = DIRECTION_COLOURS.get(name, DIRECTION_COLOURS[""])
        ideal = part.bounded_ms - part.lost_ms
        axes.barh(place, ideal, color=colour, height=0.7)
        axes.barh(place, part.lost_ms, left=ideal, color=colour, alpha=PALE, height=0.7)
        text = (
            f"  {significant(part.bounded_ms)} ms, {significant(part.lost_ms)} beyond the roofline"
        )
        axes.text(part.bounded_ms, place, text, va="center", fontsize=9)
    names = [kind_and_direction(part.kind, part.direction) for part in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * max(part.bounded_ms for part in shown))
    axes.set_xlabel(f"milliseconds {unit}; full: at the roofline, pale: beyond it")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
