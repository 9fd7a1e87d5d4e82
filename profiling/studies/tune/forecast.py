"""Forecast the training on every allocation of hosts, ranks, threads and images, and choose one.

An allocation is a number of equal hosts, each with ranks of one shape. The time to the target and
its cost follow from a host's measurements and the number of epochs. The fastest allocation is
chosen; with a deadline the cheapest within it, with a budget the fastest within it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import NoReturn

from common.errors import InputError
from common.wording import counted
from profiling.bench.job import wire_bytes
from profiling.studies.rounds import Shape
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import (
    EpochsModel,
    Estimate,
    Exchange,
    Fitted,
    Network,
    WithGroups,
    fitted_to,
)

HOUR = 3600.0
PLAIN = WithGroups()  # One group
STEPS = 8  # Up to so many hosts every number is forecast; then the distance to the next one doubles
SHORT, LONG = 2.0, 48.0  # Times that are better printed in minutes, and in days. [hours]
WORTH_SAYING = 0.05  # Share of a step from which on the exchange is part of the reason


@dataclass(frozen=True, kw_only=True, order=True)
class Allocation:
    """Equal hosts, each with ranks of one shape."""

    hosts: int
    on_host: Shape
    groups: int = 1  # Compute groups, each of as many whole hosts

    @property
    def ranks(self) -> int:
        """Ranks over all hosts."""
        return self.hosts * self.on_host.ranks

    @property
    def global_batch(self) -> int:
        """Images of a step, of all ranks of a group."""
        return self.hosts // self.groups * self.on_host.images

    @property
    def name(self) -> str:
        """The name, such as `2 hosts × 1 rank × 28 threads, 4 images per rank`."""
        shape = self.on_host
        counts = (self.hosts, shape.ranks, shape.threads, shape.batch_size)
        hosts, ranks, threads, images = (
            counted(count, noun)
            for count, noun in zip(counts, ("host", "rank", "thread", "image"), strict=True)
        )
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{hosts}{groups} × {ranks} × {threads}, {images} per rank"


def allocations(
    shapes: Sequence[Shape], *, most_hosts: int, most_groups: int = 1
) -> Iterator[Allocation]:
    """Yield every shape on `host_counts` hosts, with every number of groups that divides them."""
    for shape, hosts in product(shapes, host_counts(most_hosts)):
        for groups in range(1, min(hosts, most_groups) + 1):
            if hosts % groups == 0:
                yield Allocation(hosts=hosts, on_host=shape, groups=groups)


def host_counts(most: int) -> list[int]:
    """Return 1, 2, … 8, 10, 12, 14, 16, 20, … and `most`: each at most a quarter above the last."""
    counts = []
    count, step = 1, 1
    while count < most:
        counts.append(count)
        if count == STEPS * step:
            step *= 2
        count += step
    return [*counts, most]


def gradient_exchange(
    measured: Measurements, *, network: Network, hosts: int, ranks: int, in_levels: bool = True
) -> Exchange:
    """Return the exchange of gradients between hosts like the measured one, `ranks` on each."""
    peaks = measured.peaks
    # Without peak rates, as in old files, passes over memory take no time.
    memory = math.inf if peaks is None else 1e9 * peaks.memory_gb_per_s
    return Exchange(
        values=measured.gradient_bytes // wire_bytes(measured.compress),
        compress=measured.compress == "bf16",
        hosts=hosts,
        ranks=ranks,
        network=network,
        rank_bandwidth=memory / max(ranks, measured.sockets),
        core_bandwidth=memory / measured.cores,
        has_own_core=measured.comm_cores > 0,
        in_levels=in_levels,
    )


@dataclass(frozen=True, kw_only=True)
class HostModel:
    """A measured host, the model of its step, and the network that joins it to others like it."""

    measured: Measurements
    fitted: Fitted
    network: Network

    def exchange(self, allocation: Allocation) -> Exchange:
        """Return the exchange of gradients within each group of an allocation."""
        return gradient_exchange(
            self.measured,
            network=self.network,
            hosts=allocation.hosts // allocation.groups,
            ranks=allocation.on_host.ranks,
            in_levels=allocation.groups == 1,
        )

    def exchange_seconds(self, allocation: Allocation, *, step: float) -> float:
        """Return the time that the gradient exchange adds to a step of `step` seconds. [s]

        On one host it was measured, as a share of the step. What of that is not the exchange itself
        is waiting for the slowest rank, which is also added between hosts.
        """
        measured, exchange = self.measured, self.exchange(allocation)
        backward = measured.backward_share * step
        shares = [added.share for added in measured.added] or [0.0]
        # Around zero, noise makes shares negative.
        added = max(0.0, median(shares)) * step if allocation.on_host.ranks > 1 else 0.0
        # Each group is one host: no gradients travel between hosts within a group.
        if exchange.hosts == 1:
            return added
        on_host = replace(exchange, hosts=1).added_seconds(backward)
        return exchange.added_seconds(backward) + max(0.0, added - on_host)

    def update_seconds(self, groups: int, *, within: float, step: float) -> float:
        """Return the time that the weight update adds to a step of one of several groups. [s]

        `within` is the time of the exchange within the group. After it, the gradients are sent to
        rank 0, which runs the optimizer and sends the weights back. Rank 0 serves one group at a
        time, which delays steps if there are many groups.
        """
        measured, network = self.measured, self.network
        assert measured.update_seconds is not None
        # Weights are float32; BF16 gradients have half their bytes.
        weight_bytes = measured.gradient_bytes * (2 if measured.compress == "bf16" else 1)
        travel = weight_bytes / network.bandwidth
        added = within + (2 * (network.latency + travel) + measured.update_seconds)
        # The slower of rank 0's link and its optimizer limits how often a group can be served.
        return max(added, groups * max(travel, measured.update_seconds) - step)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The training on one allocation, until the target."""

    allocation: Allocation
    epochs: Estimate
    step_seconds: float
    exchange_seconds: float  # The part of the step that is exchange of gradients, or waiting for it
    hours: Estimate  # Evaluations included
    core_hours: Estimate
    is_extrapolated: bool  # Whether no known training had so large a global batch

    @property
    def images_per_second(self) -> float:
        """Throughput of all ranks."""
        return self.allocation.groups * self.allocation.global_batch / self.step_seconds

    @property
    def exchange_share(self) -> float:
        """Share of a step that exchange of gradients and waiting for it add."""
        return self.exchange_seconds / self.step_seconds

    @property
    def epochs_text(self) -> str:
        """The epochs, with `*` beyond the largest global batch with known epochs."""
        return f"{self.epochs.middle:.2f}{'*' if self.is_extrapolated else ''}"


def forecast(
    allocation: Allocation,
    *,
    host: HostModel,
    epochs: EpochsModel,
    with_groups: WithGroups = PLAIN,
) -> Forecast:
    """Return time = epochs × images / throughput + evaluations, and cost = time × all cores.

    The range is that of the best and the worst training known, times the step's error.
    """
    measured, model, batch = host.measured, host.fitted.model, allocation.global_batch
    step = model.seconds(allocation.on_host)
    exchange = host.exchange_seconds(allocation, step=step)
    needed = epochs.epochs(batch)
    if allocation.groups > 1:
        exchange = host.update_seconds(allocation.groups, within=exchange, step=step)
        needed = needed.times(with_groups.epochs)
    # As in training, an incomplete last batch is dropped.
    steps_of_epoch = max(1, measured.images // (batch * allocation.groups))
    # Ranks share the images of an evaluation; one of them computes the metric.
    threads = allocation.ranks * allocation.on_host.threads
    shared = measured.evaluated_images * measured.evaluation_seconds / threads
    evaluation = (shared + measured.metric_seconds) / measured.every
    of_epoch = steps_of_epoch * (step + exchange) + evaluation
    hours = needed.times(of_epoch / HOUR).widened(host.fitted.largest_error)
    return Forecast(
        allocation=allocation,
        epochs=needed,
        step_seconds=step + exchange,
        exchange_seconds=exchange,
        hours=hours,
        # All cores of a host are paid for, whether ranks use them or not.
        core_hours=hours.times(allocation.hosts * model.cores),
        is_extrapolated=batch > epochs.batch_sizes[-1],
    )


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """The limits of the choice; without any, the fastest allocation is chosen."""

    deadline_hours: float | None = None
    budget_core_hours: float | None = None

    def allows(self, result: Forecast) -> bool:
        """Return whether the worst case is within the limits."""
        in_time = self.deadline_hours is None or result.hours.high <= self.deadline_hours
        paid = self.budget_core_hours is None or result.core_hours.high <= self.budget_core_hours
        return in_time and paid


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All forecasts, ranked."""

    host: HostModel
    epochs: EpochsModel
    forecasts: Sequence[Forecast]
    ranking: Sequence[Forecast]  # The forecasts that keep the limits, the best first; at least one
    obvious: Forecast | None
    """All hosts, a rank a socket, the configuration's batch; None where that does not fit."""

    @property
    def winner(self) -> Forecast:
        """The best forecast."""
        return self.ranking[0]


def choose_allocation(
    measured: Measurements,
    epochs: EpochsModel,
    *,
    hosts: int,
    network: Network,
    constraints: Constraints,
    with_groups: WithGroups = PLAIN,
) -> Plan:
    """Forecast every allocation of up to `hosts` hosts, all like the measured one, and rank them.

    With a deadline the cheapest is first, else the fastest; of equal ones that with the fewest
    hosts.

    Raises:
        InputError: Groups are requested, and measurements for them are missing; or no allocation
            is within the limits; names the field, and what would be.
    """
    fitted = fitted_to(measured.steps, cores=measured.cores)
    host = HostModel(measured=measured, fitted=fitted, network=network)
    if with_groups.most > 1 and measured.update_seconds is None:
        raise InputError(
            "--groups: the plan was measured by an older version without the optimizer step; "
            "measure again with another --plan"
        )
    every = allocations(measured.shapes, most_hosts=hosts, most_groups=with_groups.most)
    forecasts = {
        allocation: forecast(allocation, host=host, epochs=epochs, with_groups=with_groups)
        for allocation in every
    }

    def cost(result: Forecast) -> tuple[float, int]:
        counted = result.hours if constraints.deadline_hours is None else result.core_hours
        return counted.middle, result.allocation.hosts

    # What most people would start: a rank a socket, with the configuration's batch.
    sockets = measured.sockets
    threads = max((shape.threads for shape in measured.shapes if shape.ranks == sockets), default=0)
    plain = Shape(ranks=sockets, threads=threads, batch_size=measured.batch_size)
    values = list(forecasts.values())
    return Plan(
        host=host,
        epochs=epochs,
        forecasts=values,
        # `refuse` raises an error that names what the nearest allocations need.
        ranking=sorted(filter(constraints.allows, values), key=cost) or refuse(values, constraints),
        obvious=forecasts.get(Allocation(hosts=hosts, on_host=plain)),
    )


def refuse(forecasts: Sequence[Forecast], constraints: Constraints) -> NoReturn:
    """Raise InputError: no allocation is within the limits; name what the nearest ones need.

    Raises:
        InputError: Always.
    """
    fastest = min(forecasts, key=lambda result: result.hours.high)
    cheapest = min(forecasts, key=lambda result: result.core_hours.high)
    deadline, budget = constraints.deadline_hours, constraints.budget_core_hours
    if deadline is not None and fastest.hours.high > deadline:
        raise InputError(
            f"--deadline {deadline:g}: the fastest allocation, {fastest.allocation.name}, may take "
            f"{fastest.hours.high:.1f} hours; give more --hosts or a later deadline"
        )
    if budget is not None and cheapest.core_hours.high > budget:
        raise InputError(
            f"--budget {budget:g}: the cheapest allocation, {cheapest.allocation.name}, may "
            f"take {cheapest.core_hours.high:,.0f} core-hours; give a larger budget"
        )
    raise InputError("--deadline, --budget: no allocation meets both; relax one of them")


def soonest_by_hosts(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """Return the fastest forecast for each number of hosts, by number."""
    soonest: dict[int, Forecast] = {}
    for result in sorted(forecasts, key=lambda result: result.hours.middle):
        soonest.setdefault(result.allocation.hosts, result)
    return [soonest[hosts] for hosts in sorted(soonest)]


def turning_point(by_hosts: Sequence[Forecast]) -> Forecast | None:
    """Return the fastest forecast, if more hosts make the training longer; else None.

    The forecasts are of one shape of ranks, by number of hosts, ascending.
    """
    soonest = min(by_hosts, key=lambda result: result.hours.middle)
    return soonest if soonest is not by_hosts[-1] else None


def why_it_loses(result: Forecast, winner: Forecast) -> str:
    """Return a sentence on why an allocation takes longer than the best one."""
    times = result.hours.middle / winner.hours.middle
    throughput = result.images_per_second / winner.images_per_second
    cost = result.core_hours.middle / winner.core_hours.middle
    reasons = []
    if result.epochs.middle > winner.epochs.middle:
        reasons.append(
            f"its global batch of {result.allocation.global_batch:,} images needs "
            f"{result.epochs.middle:.1f} epochs instead of {winner.epochs.middle:.1f} "
            f"({winner.allocation.global_batch:,} images)"
        )
    reasons.append(f"its throughput is {throughput:.2f} times as high")
    if result.exchange_share > WORTH_SAYING:
        reasons.append(f"it exchanges gradients during {result.exchange_share:.0%} of each step")
    return f"{times:.2f} times as long and {cost:.2f} times the core-hours: {'; '.join(reasons)}"


def time_unit(hours: float) -> tuple[float, str]:
    """Return the unit in which a time is best printed: its length in hours, and its name."""
    if hours < SHORT:
        return 1 / 60, "min"
    return (24.0, "days") if hours >= LONG else (1.0, "h")


def format_hours(hours: float) -> str:
    """Return `12.3 h`, `4.5 min`, `3.0 days`."""
    unit, name = time_unit(hours)
    return f"{hours / unit:.1f} {name}"
