"""The planner's answer as a person reads it.

TODO-DOC The landscape of allocations: time to the target and its price, by hosts and local batch.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from rich.table import Table

from profiling.studies.tune.forecast import Fitted, Forecast, soonest_by_hosts, turning_point
from profiling.studies.tune.model import AllReduceTime, EpochsModel, Estimate, Network, WithGroups

OTHERS_SHOWN = 8
BATCHES_NAMED = 4
SHORT, LONG = 2.0, 48.0
"""Times that are better told in minutes, and in days. [hours]"""


def fit_table(fitted: Fitted) -> Table:
    """Each measured step beside the model's; what was left out of the fit is marked."""
    table = Table(title="a step: measured, and by the model", title_justify="left")
    for heading in ("ranks", "threads", "images a rank", "measured", "model", "error"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in fitted.checked:
        shape = one.time.shape
        table.add_row(
            str(shape.ranks),
            str(shape.threads),
            str(shape.batch_size),
            f"{one.time.seconds:.3g} s",
            f"{one.predicted:.3g} s",
            f"{one.error:+.1%}",
            "predicted without it" if one.was_left_out else "",
        )
    return table


def fit_words(fitted: Fitted) -> str:
    """The model's numbers, and its error."""
    model = fitted.model
    left_out = [one for one in fitted.checked if one.was_left_out]
    tested = f"of {len(left_out)} predicted" if left_out else "of those fitted (too few to test)"
    return (
        f"one thread: {model.fixed:.3g} s a step and {model.per_image:.3g} s an image; "
        f"{model.serial:.1%} of it is not shared by threads; {model.contention:+.1%} where all "
        f"other cores compute too; largest error {tested}: {fitted.largest_error:.1%}"
    )


def network_table(times: Sequence[AllReduceTime], network: Network) -> Table:
    """Each measured all-reduce beside the model's."""
    table = Table(title="an all-reduce: measured, and by the model", title_justify="left")
    for heading in ("ranks", "MB", "measured", "model", "error"):
        table.add_column(heading, justify="right")
    for one in times:
        predicted = network.all_reduce_seconds(one.size, ranks=one.ranks)
        table.add_row(
            str(one.ranks),
            f"{one.size / 1e6:.3g}",
            milliseconds(one.seconds),
            milliseconds(predicted),
            f"{predicted / one.seconds - 1:+.1%}",
        )
    return table


def network_words(network: Network) -> str:
    """Latency and bandwidth."""
    gigabits, microseconds = 8e-9 * network.bandwidth, 1e6 * network.latency
    latency = f"{microseconds:,.0f}" if microseconds >= 1000 else f"{microseconds:.3g}"
    return f"network: {gigabits:.3g} Gbit/s a host, {latency} µs a message ({network.source})"


def milliseconds(seconds: float) -> str:
    """With three digits."""
    return f"{1e3 * seconds:.3g} ms"


def choice_table(chosen: Sequence[Forecast], *, target: str) -> Table:
    """The best allocations, one a row."""
    table = Table(title=f"until {target}", title_justify="left")
    has_groups = any(one.allocation.groups > 1 for one in chosen)
    groups = ("groups",) if has_groups else ()
    shape_headings = ("ranks a host", "threads", "images a rank", "global batch", "epochs")
    for heading in ("hosts", *groups, *shape_headings):
        table.add_column(heading, justify="right")
    table.add_column("images/s", justify="right")
    table.add_column("waiting for gradients", justify="right")
    table.add_column("time", justify="right")
    table.add_column("core-hours", justify="right")
    for one in chosen:
        shape = one.allocation.on_host
        beyond = "*" if one.is_extrapolated else ""
        table.add_row(
            str(one.allocation.hosts),
            *([str(one.allocation.groups)] if has_groups else []),
            str(shape.ranks),
            str(shape.threads),
            str(shape.batch_size),
            f"{one.allocation.global_batch:,}",
            f"{one.epochs.middle:.2f}{beyond}",
            throughput(one.images_per_second),
            f"{one.exchange_seconds / one.step_seconds:.1%}",
            time_words(one.hours),
            f"{one.core_hours.middle:,.0f}",
        )
    return table


def rows_shown(ranking: Sequence[Forecast], *, wanted: int) -> list[Forecast]:
    """The best, then the best of other numbers of hosts, so that a table shows the landscape."""
    best = list(ranking[:wanted])
    others = [one for one in soonest_by_hosts(ranking) if one not in best]
    return best + others[:: max(1, len(others) // OTHERS_SHOWN)]


def throughput(images_per_second: float) -> str:
    """With three digits, or all before the point."""
    return f"{images_per_second:,.0f}" if images_per_second >= 100 else f"{images_per_second:.3g}"


def time_words(hours: Estimate) -> str:
    """`12.3 h (11.0–14.2)`; short times in minutes, long ones in days."""
    unit, name = unit_of(hours.middle)
    low, middle, high = (one / unit for one in (hours.low, hours.middle, hours.high))
    return f"{middle:.1f} {name} ({low:.1f}–{high:.1f})"


def duration_words(hours: float) -> str:
    """`12.3 h`, `4.5 min`, `3.0 days`."""
    unit, name = unit_of(hours)
    return f"{hours / unit:.1f} {name}"


def unit_of(hours: float) -> tuple[float, str]:
    """In which a time is told: its length in hours, and its name."""
    if hours < SHORT:
        return 1 / 60, "min"
    return (24.0, "days") if hours >= LONG else (1.0, "h")


def turning_words(forecasts: Sequence[Forecast], winner: Forecast) -> list[str]:
    """Where more hosts make the training longer, for each local batch and the winner's ranks."""
    shape = winner.allocation.on_host
    found = []
    for size in sorted({one.allocation.on_host.batch_size for one in forecasts}):
        of_size = replace(shape, batch_size=size)
        plain = [one for one in forecasts if one.allocation.groups == 1]
        line = [one for one in plain if one.allocation.on_host == of_size]
        turn = turning_point(soonest_by_hosts(line)) if line else None
        if turn is not None:
            found.append(
                f"{turn.allocation.name}: more hosts make it longer, by the epochs that global "
                f"batches above {turn.allocation.global_batch:,} need"
            )
    return found


def epochs_words(model: EpochsModel) -> str:
    """What the epochs rest on."""
    return (
        f"epochs until {model.target}: {model.source}, global batches of "
        f"{batches_words(model.batch_sizes)}; below, those of the smallest; beyond (*), the last "
        "line goes on"
    )


def groups_words(allowed: WithGroups) -> str:
    """What the epochs of groups rest on."""
    return (
        f"groups: the global batch is a group's, whose epochs are taken {allowed.epochs:g} times, "
        "as --groups says; how often it is, python -m launch groups --whole measures"
    )


def batches_words(sizes: Sequence[int]) -> str:
    """`8, 16, 32`; of more than a few the first and the last."""
    if len(sizes) > BATCHES_NAMED:
        return f"{sizes[0]:,} to {sizes[-1]:,}"
    return ", ".join(f"{size:,}" for size in sizes)


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
