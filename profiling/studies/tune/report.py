"""The planner's plan: tables and sentences for a person, and the landscape of allocations.

The landscape shows the time to the target and its price by number of hosts and local batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    Column,
    Table,
    as_png,
    new_figure,
    table_rows,
)
from common.console import print_line
from profiling.bench.job import AllReduceTime
from profiling.bench.results import disturbance
from profiling.studies.tune.forecast import (
    Forecast,
    Plan,
    soonest_by_hosts,
    time_unit,
    turning_point,
    why_it_loses,
)
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import EpochsModel, Estimate, Fitted, Network, WithGroups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST_SHOWN = 5
OTHERS_SHOWN = 8
BATCHES_NAMED = 4
COLOURS = (BLUE, GREEN, ORANGE, PURPLE, RED, "#333333")


def print_plan(
    plan: Plan,
    measured: Measurements,
    epochs: EpochsModel,
    *,
    given: Network | None,
    with_groups: WithGroups,
    console: Console,
) -> None:
    """Print fit, forecasts and choice; `given` is the network that the command line names."""
    network, winner, obvious = plan.network, plan.winner, plan.obvious
    console.print(fit_table(plan.fitted).for_console())
    print_line(console, format_fit(plan.fitted))
    if given is None:
        between = measured.between_hosts
        times = between.all_reduces if between is not None else measured.all_reduces
        if times:
            console.print(network_table(times, network).for_console())
    if math.isfinite(network.bandwidth):
        gigabits, microseconds = 8e-9 * network.bandwidth, 1e6 * network.latency
        latency = f"{microseconds:,.0f}" if microseconds >= 1000 else f"{microseconds:.3g}"
        print_line(
            console,
            f"network: {gigabits:.3g} Gbit/s per host, latency {latency} µs ({network.source})",
        )
    if disturbed := disturbance(measured.busy_cores):
        print_line(console, disturbed)
    console.print(choice_table(plan.ranking, target=epochs.target).for_console())
    sizes = epochs.batch_sizes
    names = ", ".join(f"{size:,}" for size in sizes)
    if len(sizes) > BATCHES_NAMED:
        names = f"{sizes[0]:,} to {sizes[-1]:,}"
    print_line(
        console,
        f"epochs to {epochs.target}: {epochs.source}, global batch sizes {names}; smaller batches "
        "need as many as the smallest, larger ones (*) are extrapolated linearly",
    )
    print_line(console, f"\nbest: {winner.allocation.name}")
    if obvious is not None and obvious is not winner:
        reasons = why_it_loses(obvious, winner)
        print_line(console, f"not {obvious.allocation.name}: {reasons}")
    for line in turning_points(plan.forecasts, winner):
        print_line(console, line)
    if with_groups.most > 1:
        print_line(
            console,
            "groups: the global batch is that of a group; --groups multiplies its epochs by "
            f"{with_groups.epochs:g}; python -m launch groups --whole measures this factor",
        )


def fit_table(fitted: Fitted) -> Table:
    """Return each measured step beside the model's; held-out measurements are marked."""
    columns = (
        Column("ranks", name="time.shape.ranks"),
        Column("threads", name="time.shape.threads"),
        Column("images/rank", name="time.shape.batch_size"),
        Column("measured", ".3g", name="time.seconds", unit=" s"),
        Column("model", ".3g", name="predicted", unit=" s"),
        Column("error", "+.1%"),
        Column("", ("", "not in fit").__getitem__, name="was_left_out", is_number=False),
    )
    return Table(
        "step time: measured and by the model", columns, table_rows(columns, fitted.checked)
    )


def format_fit(fitted: Fitted) -> str:
    """Return the model's numbers, and its error."""
    model = fitted.model
    left_out = sum(check.was_left_out for check in fitted.checked)
    tested = f"on {left_out} not in fit" if left_out else "of the fit (too few to test)"
    return (
        f"one thread: {model.fixed:.3g} s per step and {model.per_image:.3g} s per image; serial "
        f"part {model.serial:.1%}; {model.contention:+.1%} if all other cores compute; "
        f"largest error {tested}: {fitted.largest_error:.1%}"
    )


def network_table(times: Sequence[AllReduceTime], network: Network) -> Table:
    """Return each measured all-reduce beside the model's."""
    columns = (
        Column("ranks"),
        Column("MB", ".3g"),
        Column("measured", ".3g", unit=" ms"),
        Column("model", ".3g", unit=" ms"),
        Column("error", "+.1%"),
    )
    rows = []
    for time in times:
        predicted = network.all_reduce_seconds(time.size, ranks=time.ranks)
        error = predicted / time.seconds - 1
        rows.append((time.ranks, time.size / 1e6, 1e3 * time.seconds, 1e3 * predicted, error))
    return Table("all-reduce time: measured and by the model", columns, rows)


def choice_table(ranking: Sequence[Forecast], *, target: str) -> Table:
    """Return the best allocations, then the best of other numbers of hosts, one per row."""
    best = list(ranking[:BEST_SHOWN])
    others = [result for result in soonest_by_hosts(ranking) if result not in best]
    chosen = best + others[:: max(1, len(others) // OTHERS_SHOWN)]
    columns = [
        Column("hosts", name="allocation.hosts"),
        Column("groups", name="allocation.groups"),
        Column("ranks/host", name="allocation.on_host.ranks"),
        Column("threads", name="allocation.on_host.threads"),
        Column("images/rank", name="allocation.on_host.batch_size"),
        Column("global batch", ",", name="allocation.global_batch"),
        Column("epochs", name="epochs_text"),
        Column("images/s", format_rate, name="images_per_second"),
        Column("waiting for gradients", ".1%", name="waiting_share"),
        Column("time", format_range, name="hours"),
        Column("core-hours", ",.0f", name="core_hours.middle"),
    ]
    if all(result.allocation.groups == 1 for result in chosen):
        # The number of groups is 1 in all rows.
        del columns[1]
    return Table(f"forecast to {target}", columns, table_rows(columns, chosen))


def format_rate(images_per_second: float) -> str:
    """Return a rate with three digits, or all before the point."""
    return f"{images_per_second:,.0f}" if images_per_second >= 100 else f"{images_per_second:.3g}"


def format_range(hours: Estimate) -> str:
    """Return `12.3 h (11.0–14.2)`; short times in minutes, long ones in days."""
    unit, name = time_unit(hours.middle)
    low, middle, high = (value / unit for value in (hours.low, hours.middle, hours.high))
    return f"{middle:.1f} {name} ({low:.1f}–{high:.1f})"


def turning_points(forecasts: Sequence[Forecast], winner: Forecast) -> Iterator[str]:
    """Yield the number of hosts beyond which training takes longer, by local batch."""
    for size in sorted({result.allocation.on_host.batch_size for result in forecasts}):
        shape = replace(winner.allocation.on_host, batch_size=size)
        of_shape = [
            result
            for result in forecasts
            if result.allocation.groups == 1 and result.allocation.on_host == shape
        ]
        turn = turning_point(soonest_by_hosts(of_shape)) if of_shape else None
        if turn is not None:
            yield (
                f"{turn.allocation.name}: more hosts take longer, because global batches above "
                f"{turn.allocation.global_batch:,} need more epochs"
            )


def landscape(forecasts: Sequence[Forecast], winner: Forecast, *, title: str) -> bytes:
    """Return a PNG: hours until the target (left) and core-hours (right) by number of hosts.

    For each local batch, the fastest allocation of each number of hosts; the best is marked.
    """
    figure = new_figure(width=13, height=5.4)
    time, cost = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_by_hosts(time, forecasts, winner, value=lambda result: result.hours.middle)
    time.set_ylabel("hours to the target")
    draw_by_hosts(cost, forecasts, winner, value=lambda result: result.core_hours.middle)
    cost.set_ylabel("core-hours to the target")
    cost.legend(loc="upper left", fontsize=9)
    return as_png(figure)


def draw_by_hosts(
    axes: "Axes",
    forecasts: Sequence[Forecast],
    winner: Forecast,
    *,
    value: Callable[[Forecast], float],
) -> None:
    """Draw a line for each local batch, dotted beyond the largest batch with known epochs."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter  # noqa: PLC0415

    def draw(line: Sequence[Forecast], **style: Any) -> None:
        axes.plot([result.allocation.hosts for result in line], list(map(value, line)), **style)

    by_size: dict[int, list[Forecast]] = {}
    for result in forecasts:
        by_size.setdefault(result.allocation.on_host.batch_size, []).append(result)
    for place, size in enumerate(sorted(by_size)):
        line = soonest_by_hosts(by_size[size])
        colour = COLOURS[place % len(COLOURS)]
        known = [result for result in line if not result.is_extrapolated]
        # From the last known point on, so that both parts of the line connect.
        beyond = line[max(0, len(known) - 1) :]
        draw(
            known,
            color=colour,
            label="1 image per rank" if size == 1 else f"{size} images per rank",
        )
        if len(beyond) > 1:
            draw(beyond, color=colour, linestyle=":")
    # Without points: only an entry of the legend.
    axes.plot([], [], color="#777777", linestyle=":", label="extrapolated batch size")
    draw([winner], color="black", label="chosen", marker="*", markersize=14, linestyle="none")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("hosts")
    axes.grid(alpha=0.3, which="both")
