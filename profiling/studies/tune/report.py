"""The planner's plan: tables and sentences for a person, and the landscape of allocations.

The landscape shows the time to the target and its price by number of hosts and local batch. The
forecast of a described cluster has its parts, what each assumption changes, and the reasons for its
difference to published times.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import PALETTE, Column, Table, new_figure, save_chart, table_rows, text_column
from common.console import print_line, three_digits
from profiling.bench.results import disturbance
from profiling.studies.tune.cluster import (
    ASSUMED,
    Cluster,
    ClusterForecast,
    Published,
    changed_step,
    explaining_factor,
)
from profiling.studies.tune.forecast import (
    Forecast,
    Plan,
    gradient_exchange,
    soonest_by_hosts,
    time_unit,
    turning_point,
    why_it_loses,
)
from profiling.studies.tune.measurements import BetweenHosts, Measurements
from profiling.studies.tune.model import (
    EpochsModel,
    Estimate,
    Fitted,
    Network,
    WithGroups,
    predicted_seconds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST_SHOWN = 5
OTHERS_SHOWN = 8
BATCHES_NAMED = 4
STEP_CHANGED = 0.25  # By how much each assumption is changed to show what depends on it
EXCHANGE_ASSUMED = (
    "gradients are exchanged as ours does, whichever program trains; they become ready evenly",
    "a thread that exchanges gradients reads and writes as fast as one where a step was measured, "
    "unless core_memory_gb_per_s is given",
)
CLOSE = 0.25
"""A forecast within this share of a published time is in agreement with it."""


def print_plan(
    plan: Plan, *, given: Network | None, with_groups: WithGroups, console: Console
) -> None:
    """Print fit, forecasts and choice; `given` is the network that the command line names."""
    host, epochs, winner, obvious = plan.host, plan.epochs, plan.winner, plan.obvious
    measured, network = host.measured, host.network
    console.print(fit_table(host.fitted).for_console())
    print_line(console, format_fit(host.fitted))
    if given is None and measured.between_hosts is not None:
        console.print(network_table(measured, measured.between_hosts, network).for_console())
    if math.isfinite(network.bandwidth):
        gigabits, microseconds = 8e-9 * network.bandwidth, 1e6 * network.latency
        latency = f"latency {three_digits(microseconds)} µs"
        print_line(
            console, f"network: {gigabits:.3g} Gbit/s per host, {latency} ({network.source})"
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
    if line := memory_line(plan):
        print_line(console, line)
    if obvious is not None and obvious is not winner:
        reasons = why_it_loses(obvious, winner)
        print_line(console, f"not {obvious.allocation.name}: {reasons}")
    for line in turning_points(plan.forecasts, winner):
        print_line(console, line)
    if with_groups.most > 1:
        print_line(
            console,
            "groups: the global batch is that of a group; --groups multiplies its epochs by "
            f"{with_groups.epochs:g}; retinanet launch groups --whole measures this factor",
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


def memory_line(plan: Plan) -> str | None:
    """Return what the best allocation's exchange could add by its use of memory; None: nothing."""
    exchange = plan.host.exchange(plan.winner.allocation)
    if exchange.hosts == 1:
        return None
    if plan.host.measured.peaks is None:
        return (
            "exchange: the plan has no peak rates (it was measured by an older version), so that "
            "passes over memory take no time in this forecast"
        )
    beside = exchange.bytes_beside
    seconds = beside / exchange.rank_bandwidth
    return (
        f"exchange: {beside / 1e9:.2g} GB pass through the memory of a rank during its backward "
        f"pass; if memory bandwidth bounds that, a step takes up to {1e3 * seconds:.0f} ms more "
        f"({seconds / plan.winner.step_seconds:.1%}), which the forecast leaves out"
    )


def network_table(measured: Measurements, between: BetweenHosts, network: Network) -> Table:
    """Return each measured exchange beside the model's."""
    exchange = gradient_exchange(measured, network=network, hosts=2, ranks=1)
    columns = (
        Column("ranks"),
        Column("MB", ".3g"),
        Column("measured", ".3g", unit=" ms"),
        Column("model", ".3g", unit=" ms"),
        Column("error", "+.1%"),
    )
    rows = []
    for time in between.exchanges:
        predicted = predicted_seconds(time, exchange, network)
        error = predicted / time.seconds - 1
        rows.append((time.ranks, time.size / 1e6, 1e3 * time.seconds, 1e3 * predicted, error))
    return Table("exchange between hosts: measured and by the model", columns, rows)


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
        Column("images/s", three_digits, name="images_per_second"),
        Column("exchange of gradients", ".1%", name="exchange_share"),
        Column("time", format_range, name="hours"),
        Column("core-hours", ",.0f", name="core_hours.middle"),
    ]
    if all(result.allocation.groups == 1 for result in chosen):
        # The number of groups is 1 in all rows.
        del columns[1]
    return Table(f"forecast to {target}", columns, table_rows(columns, chosen))


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


def print_cluster(
    cluster: Cluster,
    forecasts: Sequence[ClusterForecast],
    epochs: EpochsModel,
    *,
    console: Console,
) -> None:
    """Print forecasts, what they assume, and their difference to what is published."""
    print_line(
        console,
        f"{cluster.name}: {cluster.hosts} hosts × {cluster.ranks} ranks × {cluster.threads} "
        f"threads, {cluster.batch_size} images per rank: {cluster.global_batch:,} a step, "
        f"{cluster.steps:,} steps an epoch",
    )
    for number, assumption in enumerate([*cluster.assumptions, *EXCHANGE_ASSUMED]):
        print_line(console, f"{'assumed:' if number == 0 else '        '} {assumption}")
    for result in forecasts:
        print_line(
            console, f"\n{result.program.name}, measured with {result.program.threads} threads"
        )
        print_line(console, f"  {result.program.source}")
    console.print()
    console.print(forecast_table(cluster, forecasts).for_console())
    console.print(parts_table(cluster, forecasts).for_console())
    console.print(assumptions_table(cluster, forecasts).for_console())
    print_line(console, f"epochs to {epochs.target}: {epochs.source}\n")
    for result in forecasts:
        for line in reasons(cluster, result):
            print_line(console, line)
    if cluster.published is not None and cluster.comparable is None:
        published = cluster.published
        print_line(
            console,
            f"published: {published.hosts} hosts × {published.ranks} ranks × "
            f"{published.batch_size} images, which this forecast is not of; not compared",
        )


def format_seconds(seconds: Estimate) -> str:
    """Return `3,545 (3,249–3,842)`; short times with three digits."""
    low, middle, high = map(three_digits, (seconds.low, seconds.middle, seconds.high))
    return middle if low == high else f"{middle} ({low}–{high})"


def forecast_table(cluster: Cluster, forecasts: Sequence[ClusterForecast]) -> Table:
    """Return the times of each program, and what is published of one of them."""
    published = cluster.comparable
    images = cluster.global_batch

    def speed(seconds: Estimate) -> Estimate:
        return Estimate(
            low=images / seconds.high, middle=images / seconds.middle, high=images / seconds.low
        )

    step = None if published is None else published.epoch_seconds / cluster.steps
    steps = [result.step_seconds for result in forecasts]
    rows = [
        ["step [s]", step, *steps],
        ["images/s", images / step if step else None, *map(speed, steps)],
    ]
    for title, name in (
        ("epoch [s]", "epoch_seconds"),
        ("evaluation [s]", "evaluation_seconds"),
        ("time to target [min]", "minutes_to_target"),
    ):
        known = getattr(published, name, None)
        rows.append([title, known, *(getattr(result, name) for result in forecasts)])
    columns = [
        text_column(""),
        Column(f"published\n({published.program})" if published else "published", three_digits),
        *(Column(result.program.name, format_seconds) for result in forecasts),
    ]
    if published is None:
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    return Table("forecast (limits: bytes moved beside computing, or after it)", columns, rows)


def parts_table(cluster: Cluster, forecasts: Sequence[ClusterForecast]) -> Table:
    """Return the parts of a step of as many images, where they were measured and on the cluster."""
    rows: list[list[object]] = []
    for result in forecasts:
        program, step = result.program, result.step
        batch = cluster.batch_size
        serial = program.seconds("nothing", batch_size=batch)
        computing = program.seconds("rate", "cores", batch_size=batch)
        gigabytes = program.gigabytes(batch)
        whole = step.seconds.middle
        for name, there, here in (
            ("serial", serial, step.serial),
            ("computing", computing, step.computing),
            (f"moving {gigabytes:.3g} GB", gigabytes / program.memory_gb_per_s, step.moving),
            (f"moving {step.beside:.2g} GB of the exchange", None, step.moving_beside),
            ("exchange not hidden", None, step.exchange),
        ):
            milliseconds = None if there is None else 1e3 * there
            rows.append([program.name, name, milliseconds, 1e3 * here, here / whole])
    columns = (
        text_column("program"),
        text_column("part of a step"),
        Column("where measured", ",.0f", unit=" ms"),
        Column("forecast", ",.0f", unit=" ms"),
        Column("share of the step", ".0%"),
    )
    title = f"a step of {cluster.batch_size} images; computing and moving bytes overlap in part"
    return Table(title, columns, rows)


def assumptions_table(cluster: Cluster, forecasts: Sequence[ClusterForecast]) -> Table:
    """Return the epoch's time with each assumption changed to either side."""
    rows = []
    for result in forecasts:
        for name in ASSUMED:
            less, more = (
                cluster.steps * changed_step(result.program, cluster, name, factor)
                for factor in (1 - STEP_CHANGED, 1 + STEP_CHANGED)
            )
            rows.append([result.program.name, name, less, more])
    columns = (
        text_column("program"),
        text_column("assumption"),
        Column(f"{STEP_CHANGED:.0%} less", ",.0f", unit=" s"),
        Column(f"{STEP_CHANGED:.0%} more", ",.0f", unit=" s"),
    )
    return Table("time of an epoch if an assumption is wrong", columns, rows)


def reasons(cluster: Cluster, result: ClusterForecast) -> Iterator[str]:
    """Yield what bounds a step, the difference to published times, and what would explain it."""
    program, step, published = result.program, result.step, cluster.comparable
    name = program.name
    yield f"{name}: a step takes longest for {step.bound}"
    serial = result.serial_seconds
    if serial.low < serial.high:
        yield (
            f"{name}: its serial part follows from steps of up to {program.threads} threads: "
            f"{1e3 * serial.low:.0f} to {1e3 * serial.high:.0f} ms if one of them is left out, "
            "which the ranges have; a host of more cores determines it better"
        )
    if published is not None and published.program == name:
        yield from differences(cluster, result, published)
        return
    alone, computing = 1e3 * step.computing_alone, 1e3 * step.computing
    yield (
        f"{name}: not measured with {cluster.threads} threads; for this forecast such a step has "
        f"to show at most {1e3 * step.serial:.0f} ms outside of parallel work, {alone:.0f} ms of "
        f"computing without and {computing:.0f} ms with waiting for memory, and "
        f"{cluster.memory_of_rank:.3g} GB/s; each further millisecond adds "
        f"{cluster.steps / 1e3:.3g} s to an epoch"
    )
    if published is not None:
        times = published.epoch_seconds / result.epoch_seconds.middle
        yield f"{name}: an epoch is forecast {times:.2f} times as fast as {published.program}"


def differences(cluster: Cluster, result: ClusterForecast, published: Published) -> Iterator[str]:
    """Yield the difference of each published time to its forecast, and what would explain it."""
    epoch, name = result.epoch_seconds, result.program.name
    error = epoch.middle / published.epoch_seconds - 1
    verdict = "within" if abs(error) <= CLOSE else "not within"
    yield (
        f"{name}: epoch forecast {three_digits(epoch.middle)} s, published "
        f"{three_digits(published.epoch_seconds)} s: {error:+.1%}, {verdict} {CLOSE:.0%} "
        f"({published.source})"
    )
    step = published.epoch_seconds / cluster.steps
    explained = []
    for assumption in ASSUMED:
        factor = explaining_factor(result.program, cluster, assumption, step_seconds=step)
        explained.append(
            f"{assumption} × {factor:.2f}" if factor else f"no value of the {assumption}"
        )
    yield (
        f"{name}: the published step of {step:.3f} s instead of {result.step.seconds.middle:.3f} s "
        f"would follow from each of: {', '.join(explained)}"
    )
    if (evaluation := published.evaluation_seconds) is not None:
        missing = evaluation - result.evaluation_seconds.middle
        yield (
            f"{name}: an evaluation is published as {three_digits(evaluation)} s, "
            f"{three_digits(abs(missing))} s {'more' if missing > 0 else 'less'} than forecast"
        )
    for remark in published.remarks:
        yield f"{name}: {remark}"


def draw_landscape(
    forecasts: Sequence[Forecast], winner: Forecast, file: Path, *, title: str
) -> None:
    """Write a PNG or SVG: hours until the target (left) and core-hours (right) by number of hosts.

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
    save_chart(figure, file)


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
        colour = PALETTE[place % len(PALETTE)]
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
