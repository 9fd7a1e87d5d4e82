"""The chart of the operators that cost most outside oneDNN."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from profiling.pictures import new_figure
from profiling.significant import significant
from profiling.trace.categories import Category
from profiling.trace.colours import COLOURS
from profiling.trace.report import module_text
from profiling.trace.rows import Costly

LONGEST_NAME = 52


def draw_operators(costly: Sequence[Costly], *, title: str, modules_are_known: bool) -> Figure:
    """A bar for each operator and phase, with its calls and the module that costs most."""
    figure = new_figure(12, 1.7 + 0.36 * max(1, len(costly)))
    axes = figure.subplots()
    for place, one in enumerate(costly):
        axes.barh(place, one.self_ms, color=COLOURS[Category(one.category)], height=0.7)
        module = f", {module_text(one)}" if modules_are_known else ""
        calls = f"{significant(one.calls)} calls"
        text = f"  {significant(one.self_ms)} ms, {one.share:.1%}, {calls}{module}"
        axes.text(one.self_ms, place, text, va="center", fontsize=8)
    names = [f"{shortened(one.operator)}  [{one.phase}]" for one in costly]
    axes.set_yticks(range(len(costly)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 2.0 * max((one.self_ms for one in costly), default=1.0))
    axes.set_xlabel(
        "milliseconds of self time; share of the wall time"
        + (", the costliest module with its part, + how many others" if modules_are_known else "")
    )
    axes.spines[["top", "right"]].set_visible(False)
    for category in dict.fromkeys(Category(one.category) for one in costly):
        axes.bar(0, 0, color=COLOURS[category], label=category.value)
    if costly:
        axes.legend(loc="lower right", frameon=False)
    figure.suptitle(title)
    return figure


def shortened(name: str) -> str:
    """What fits beside a bar."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
