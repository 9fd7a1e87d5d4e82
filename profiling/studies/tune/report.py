"""The planner's answer: tables and sentences for a person, and the landscape of allocations.

The landscape shows the time to the target and its price by number of hosts and local batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from rich.console import Console
from rich.table import Table

from common.charts import as_png, new_figure
from profiling.bench.results import disturbance
from profiling.studies.tune.forecast import (
    Forecast,
    Plan,
    soonest_by_hosts,
    turning_point,
    unit_of,
    why_it_loses,
)
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import (
    AllReduceTime,
    EpochsModel,
    Estimate,
    Fitted,
    Network,
    WithGroups,
)

BEST_SHOWN = 5
OTHERS_SHOWN = 8
BATCHES_NAMED = 4
COLOURS = ("#3c8ddc", "#2f9e44", "#f08c00", "#9c36b5", "#e6194b", "#333333")


def print_plan(
    plan: Plan,
    measured: Measurements,
    epochs: EpochsModel,
    *,
    given: Network | None,
    with_groups: WithGroups,
    console: Console,
) -> None:
    """Print fit, forecasts and choice.

    Args:
        plan: The choice.
        measured: What it rests on.
        epochs: Until the target.
        given: The network that the command line names, if it does.
        with_groups: The groups that are allowed.
        console: Where to.
    """
    console.print(fit_table(plan.fitted))
    console.print(fit_words(plan.fitted), soft_wrap=True)
    if given is None:
        between = measured.between_hosts
        times = between.all_reduces if between is not None else measured.all_reduces
        if times:
            console.print(network_table(times, plan.network))
    if math.isfinite(plan.network.bandwidth):
        console.print(network_words(plan.network), soft_wrap=True)
    disturbed = disturbance(measured.busy_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    console.print(choice_table(rows_shown(plan.ranking), target=epochs.target))
    console.print(epochs_words(epochs), soft_wrap=True)
    winner, obvious = plan.winner, plan.obvious
    console.print(f"\ntake {winner.allocation.name}", soft_wrap=True)
    if obvious is not None and obvious is not winner:
        reasons = why_it_loses(obvious, winner)
        console.print(f"not {obvious.allocation.name}: {reasons}", soft_wrap=True)
    for line in turning_words(plan.forecasts, winner):
        console.print(line, soft_wrap=True)
    if with_groups.most > 1:
        console.print(groups_words(with_groups), soft_wrap=True)


def fit_table(fitted: Fitted) -> Table:
    """Return each measured step beside the model's; what was left out of the fit is marked."""
    table = Table(title="a step: measured, and by the model", title_justify="left")
    for heading in ("ranks", "threads", "images a rank", "measured", "model", "error"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for check in fitted.checked:
        shape = check.time.shape
        table.add_row(
            str(shape.ranks),
            str(shape.threads),
            str(shape.batch_size),
            f"{check.time.seconds:.3g} s",
            f"{check.predicted:.3g} s",
            f"{check.error:+.1%}",
            "predicted without it" if check.was_left_out else "",
        )
    return table


def fit_words(fitted: Fitted) -> str:
    """Return the model's numbers, and its error."""
    model = fitted.model
    left_out = [check for check in fitted.checked if check.was_left_out]
    tested = f"of {len(left_out)} predicted" if left_out else "of those fitted (too few to test)"
    return (
        f"one thread: {model.fixed:.3g} s a step and {model.per_image:.3g} s an image; "
        f"{model.serial:.1%} of it is not shared by threads; {model.contention:+.1%} where all "
        f"other cores compute too; largest error {tested}: {fitted.largest_error:.1%}"
    )


def network_table(times: Sequence[AllReduceTime], network: Network) -> Table:
    """Return each measured all-reduce beside the model's."""
    table = Table(title="an all-reduce: measured, and by the model", title_justify="left")
    for heading in ("ranks", "MB", "measured", "model", "error"):
        table.add_column(heading, justify="right")
    for time in times:
        predicted = network.all_reduce_seconds(time.size, ranks=time.ranks)
        table.add_row(
            str(time.ranks),
            f"{time.size / 1e6:.3g}",
            f"{1e3 * time.seconds:.3g} ms",
            f"{1e3 * predicted:.3g} ms",
            f"{predicted / time.seconds - 1:+.1%}",
        )
    return table


def network_words(network: Network) -> str:
    """Return latency and bandwidth."""
    gigabits, microseconds = 8e-9 * network.bandwidth, 1e6 * network.latency
    latency = f"{microseconds:,.0f}" if microseconds >= 1000 else f"{microseconds:.3g}"
    return f"network: {gigabits:.3g} Gbit/s a host, {latency} µs a message ({network.source})"


def choice_table(chosen: Sequence[Forecast], *, target: str) -> Table:
    """Return the best allocations, one a row."""
    table = Table(title=f"until {target}", title_justify="left")
    has_groups = any(one.allocation.groups > 1 for one in chosen)
    shape = ("ranks a host", "threads", "images a rank", "global batch", "epochs")
    results = ("images/s", "waiting for gradients", "time", "core-hours")
    for heading in ("hosts", *(["groups"] if has_groups else []), *shape, *results):
        table.add_column(heading, justify="right")
    for one in chosen:
        on_host = one.allocation.on_host
        beyond = "*" if one.is_extrapolated else ""
        table.add_row(
            str(one.allocation.hosts),
            *([str(one.allocation.groups)] if has_groups else []),
            str(on_host.ranks),
            str(on_host.threads),
            str(on_host.batch_size),
            f"{one.allocation.global_batch:,}",
            f"{one.epochs.middle:.2f}{beyond}",
            throughput(one.images_per_second),
            f"{one.exchange_seconds / one.step_seconds:.1%}",
            time_words(one.hours),
            f"{one.core_hours.middle:,.0f}",
        )
    return table


def rows_shown(ranking: Sequence[Forecast]) -> list[Forecast]:
    """Return the best, then the best of other numbers of hosts, so that a table shows them all."""
    best = list(ranking[:BEST_SHOWN])
    others = [one for one in soonest_by_hosts(ranking) if one not in best]
    return best + others[:: max(1, len(others) // OTHERS_SHOWN)]


def throughput(images_per_second: float) -> str:
    """Return a rate with three digits, or all before the point."""
    return f"{images_per_second:,.0f}" if images_per_second >= 100 else f"{images_per_second:.3g}"


def time_words(hours: Estimate) -> str:
    """Return `12.3 h (11.0–14.2)`; short times in minutes, long ones in days."""
    unit, name = unit_of(hours.middle)
    low, middle, high = (value / unit for value in (hours.low, hours.middle, hours.high))
    return f"{middle:.1f} {name} ({low:.1f}–{high:.1f})"


def turning_words(forecasts: Sequence[Forecast], winner: Forecast) -> list[str]:
    """Return where more hosts take longer, for each local batch and the winner's ranks."""
    lines = []
    for size in sorted({one.allocation.on_host.batch_size for one in forecasts}):
        shape = replace(winner.allocation.on_host, batch_size=size)
        of_shape = [
            one
            for one in forecasts
            if one.allocation.groups == 1 and one.allocation.on_host == shape
        ]
        turn = turning_point(soonest_by_hosts(of_shape)) if of_shape else None
        if turn is not None:
            lines.append(
                f"{turn.allocation.name}: more hosts make it longer, by the epochs that global "
                f"batches above {turn.allocation.global_batch:,} need"
            )
    return lines


def epochs_words(model: EpochsModel) -> str:
    """Return what the epochs rest on."""
    sizes = model.batch_sizes
    names = ", ".join(f"{size:,}" for size in sizes)
    if len(sizes) > BATCHES_NAMED:
        names = f"{sizes[0]:,} to {sizes[-1]:,}"
    return (
        f"epochs until {model.target}: {model.source}, global batches of {names}; below, those of "
        "the smallest; beyond (*), the last line goes on"
    )


def groups_words(allowed: WithGroups) -> str:
    """Return what the epochs of groups rest on."""
    return (
        f"groups: the global batch is a group's, whose epochs are taken {allowed.epochs:g} times, "
        "as --groups says; how often it is, python -m launch groups --whole measures"
    )


def landscape(forecasts: Sequence[Forecast], winner: Forecast, *, title: str) -> bytes:
    """Return a PNG: hours until the target (left) and core-hours (right) by number of hosts.

    Args:
        forecasts: Of all allocations; drawn are, for each local batch, the soonest of each number
            of hosts.
        winner: Is marked.
        title: What is trained, on what.
    """
    figure = new_figure(width=13, height=5.4)
    time, cost = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_by_hosts(time, forecasts, winner, value_of=lambda one: one.hours.middle)
    time.set_ylabel("hours until the target")
    draw_by_hosts(cost, forecasts, winner, value_of=lambda one: one.core_hours.middle)
    cost.set_ylabel("core-hours until the target")
    cost.legend(loc="upper left", fontsize=9)
    return as_png(figure)


def draw_by_hosts(
    axes: Axes,
    forecasts: Sequence[Forecast],
    winner: Forecast,
    *,
    value_of: Callable[[Forecast], float],
) -> None:
    """Draw a line for each local batch, dotted where no known training had so large a batch."""

    def draw(line: Sequence[Forecast], **style: Any) -> None:
        hosts = [one.allocation.hosts for one in line]
        axes.plot(hosts, [value_of(one) for one in line], **style)

    for place, size in enumerate(sorted({one.allocation.on_host.batch_size for one in forecasts})):
        line = soonest_by_hosts(
            [one for one in forecasts if one.allocation.on_host.batch_size == size]
        )
        colour = COLOURS[place % len(COLOURS)]
        known = [one for one in line if not one.is_extrapolated]
        beyond = line[max(0, len(known) - 1) :]
        draw(known, color=colour, label="1 image a rank" if size == 1 else f"{size} images a rank")
        if len(beyond) > 1:
            draw(beyond, color=colour, linestyle=":")
    axes.plot([], [], color="#777777", linestyle=":", label="batches that nobody trained with")
    star = {"marker": "*", "markersize": 14, "linestyle": "none"}
    draw([winner], color="black", label="chosen", **star)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("hosts")
    axes.grid(alpha=0.3, which="both")
