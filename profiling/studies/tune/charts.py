"""The landscape of allocations: time to the target and its price, by hosts and local batch."""

import io
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from profiling.studies.tune.choice import soonest_by_hosts
from profiling.studies.tune.forecast import Forecast

COLOURS = ("#3c8ddc", "#2f9e44", "#f08c00", "#9c36b5", "#e6194b", "#333333")


def landscape(forecasts: Sequence[Forecast], winner: Forecast, *, title: str) -> bytes:
    """A PNG: hours until the target (left) and core-hours (right) by number of hosts.

    Args:
        forecasts: Of all allocations; drawn are, for each local batch, the soonest of each number
            of hosts.
        winner: Is marked.
        title: What is trained, on what.
    """
    figure = Figure(figsize=(13, 5.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    draw(left, forecasts, winner, of=lambda one: one.hours.middle)
    left.set_ylabel("hours until the target")
    draw(right, forecasts, winner, of=lambda one: one.core_hours.middle)
    right.set_ylabel("core-hours until the target")
    right.legend(loc="upper left", fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def draw(
    axes: Axes,
    forecasts: Sequence[Forecast],
    winner: Forecast,
    *,
    of: Callable[[Forecast], float],
) -> None:
    """A line for each local batch, dotted where nobody has trained with so large a batch."""
    sizes = sorted({one.allocation.on_host.batch_size for one in forecasts})
    for place, size in enumerate(sizes):
        line = soonest_by_hosts(
            [one for one in forecasts if one.allocation.on_host.batch_size == size]
        )
        colour = COLOURS[place % len(COLOURS)]
        known = [one for one in line if not one.is_extrapolated]
        beyond = line[max(0, len(known) - 1) :]
        label = "1 image a rank" if size == 1 else f"{size} images a rank"
        axes.plot(hosts_of(known), [of(one) for one in known], color=colour, label=label)
        if len(beyond) > 1:
            axes.plot(hosts_of(beyond), [of(one) for one in beyond], color=colour, linestyle=":")
    axes.plot([], [], color="#777777", linestyle=":", label="batches that nobody trained with")
    axes.plot(
        [winner.allocation.hosts],
        [of(winner)],
        color="black",
        marker="*",
        markersize=14,
        linestyle="none",
        label="chosen",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("hosts")
    axes.grid(alpha=0.3, which="both")


def hosts_of(line: Sequence[Forecast]) -> list[int]:
    """The numbers of hosts."""
    return [one.allocation.hosts for one in line]
