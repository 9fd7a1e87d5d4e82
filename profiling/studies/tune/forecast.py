"""How long a training until the target takes on an allocation, and what it costs.

TODO-DOC The allocations that there are: hosts, ranks of each, their threads and local batch.

TODO-DOC From measurements to the model of a host, and how far it can be trusted.

TODO-DOC How many epochs a target takes, and the settings that a global batch size wants for it.

TODO-DOC Which allocation to take: the soonest, the cheapest in time, the soonest that can be paid.

TODO-DOC What a user asks the planner, as the command line has read it.

TODO-DOC From a host's measurements to the allocation to take.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import NoReturn

from common.errors import InputError
from profiling.studies.tune.measurements import Measurements, Probes, epochs_of_probes
from profiling.studies.tune.model import (
    EpochsModel,
    Estimate,
    Network,
    Shape,
    StepTime,
    StepTimeModel,
    Update,
    WithGroups,
    epochs_of_mlperf,
    fit_step_time,
    held_out,
)
from retinanet.mlperf.rules import Rules, expectation, reference_points

HOUR = 3600.0
PLAIN = WithGroups()
"""One group."""


@dataclass(frozen=True, kw_only=True, order=True)
class Allocation:
    """Alike hosts, each with ranks of one shape."""

    hosts: int
    on_host: Shape
    groups: int = 1
    """Compute groups, each of as many whole hosts."""

    @property
    def ranks(self) -> int:
        """Over all hosts."""
        return self.hosts * self.on_host.ranks

    @property
    def ranks_of_group(self) -> int:
        """Which exchange gradients with each other."""
        return self.ranks // self.groups

    @property
    def global_batch(self) -> int:
        """Images of a step: of all ranks of a group."""
        return self.hosts // self.groups * self.on_host.images

    @property
    def name(self) -> str:
        """In a line's words."""
        shape = self.on_host
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        ranks = "1 rank" if shape.ranks == 1 else f"{shape.ranks} ranks"
        threads = "1 thread" if shape.threads == 1 else f"{shape.threads} threads"
        images = "1 image" if shape.batch_size == 1 else f"{shape.batch_size} images"
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{hosts}{groups} × {ranks} × {threads}, {images} a rank"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What exchanging gradients adds to a step."""

    gradient_bytes: int
    """Of one rank, as they travel."""
    last_bytes: int
    """Of the last bucket, which no computing hides."""
    on_one_host: float
    """What it adds where all ranks are on one host, as a share of the step; measured."""
    hidden_share: float
    """Of a step, during which gradients can travel: the backward pass."""
    network: Network

    def seconds(self, allocation: Allocation, *, step: float) -> float:
        """Added to a step that takes so long without it."""
        added = self.on_one_host * step if allocation.on_host.ranks > 1 else 0.0
        if allocation.hosts == allocation.groups:
            return added
        ranks = allocation.ranks_of_group
        whole = self.network.all_reduce_seconds(self.gradient_bytes, ranks=ranks)
        last = self.network.all_reduce_seconds(self.last_bytes, ranks=ranks)
        return added + max(last, whole - self.hidden_share * step)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained until the target."""

    images: int
    """Of an epoch."""
    evaluated_images: int
    every: int
    """Epochs between two evaluations."""
    evaluation_seconds: float
    """Of an image, of one thread."""
    metric_seconds: float
    """Of an evaluation, on one rank: COCO's metric and the files."""


@dataclass(frozen=True, kw_only=True)
class HostModel:
    """What was measured of a host, and what joins several."""

    step_time: StepTimeModel
    exchange: Exchange
    update: Update | None
    """None: was not measured, and nobody asks for groups."""
    error: float
    """How wrong it was at most where it predicted what it had not seen, as a share."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Of one allocation."""

    allocation: Allocation
    epochs: Estimate
    step_seconds: float
    exchange_seconds: float
    """Of these."""
    hours: Estimate
    """Until the target, evaluations included."""
    core_hours: Estimate
    is_extrapolated: bool
    """Whether nobody trained with so large a global batch."""

    @property
    def images_per_second(self) -> float:
        """Over all ranks."""
        return self.allocation.groups * self.allocation.global_batch / self.step_seconds


def forecast(
    allocation: Allocation,
    *,
    host: HostModel,
    epochs: EpochsModel,
    workload: Workload,
    with_groups: WithGroups = PLAIN,
) -> Forecast:
    """Time = epochs × images / throughput + evaluations; cost = time × cores of all hosts.

    The range is that of the best and the worst training known, times the step's error.
    """
    batch = allocation.global_batch
    step = host.step_time.seconds(allocation.on_host)
    exchange = host.exchange.seconds(allocation, step=step)
    needed = epochs.epochs(batch)
    if allocation.groups > 1:
        exchange = exchange_of_group(allocation, host, step=step, exchange=exchange)
        needed = needed.times(with_groups.epochs)
    steps_of_epoch = max(1, workload.images // (batch * allocation.groups))
    of_epoch = steps_of_epoch * (step + exchange)
    of_epoch += evaluation_seconds(allocation, workload) / workload.every
    hours = needed.times(of_epoch / HOUR).widened(host.error)
    return Forecast(
        allocation=allocation,
        epochs=needed,
        step_seconds=step + exchange,
        exchange_seconds=exchange,
        hours=hours,
        core_hours=hours.times(allocation.hosts * host.step_time.cores),
        is_extrapolated=batch > epochs.batch_sizes[-1],
    )


def exchange_of_group(
    allocation: Allocation, host: HostModel, *, step: float, exchange: float
) -> float:
    """What is added to a group's step, which rank 0 may hold up where there are many groups."""
    assert host.update is not None
    added = exchange + host.update.added_seconds()
    return max(added, host.update.least_seconds(allocation.groups) - step)


def evaluation_seconds(allocation: Allocation, workload: Workload) -> float:
    """Of one evaluation: ranks share the images, one of them computes the metric."""
    threads = allocation.ranks * allocation.on_host.threads
    shared = workload.evaluated_images * workload.evaluation_seconds / threads
    return shared + workload.metric_seconds


STEPS = 8
"""To a number of hosts at which the distance to the next one doubles."""


def allocations(
    shapes: Sequence[Shape], *, most_hosts: int, most_groups: int = 1
) -> Iterator[Allocation]:
    """Every shape on 1 to `most_hosts` hosts, see `host_counts`, in as many groups as divide them.

    Args:
        shapes: Of the ranks of a host.
        most_hosts: That there are.
        most_groups: That are allowed.
    """
    for shape, hosts in product(shapes, host_counts(most_hosts)):
        for groups in range(1, min(hosts, most_groups) + 1):
            if hosts % groups == 0:
                yield Allocation(hosts=hosts, on_host=shape, groups=groups)


def host_counts(most: int) -> list[int]:
    """1, 2, … 8, 10, 12, 14, 16, 20, … and `most`: each at most a quarter more than the last."""
    found = []
    count, step = 1, 1
    while count < most:
        found.append(count)
        if count == STEPS * step:
            step *= 2
        count += step
    return [*found, most]


LEAST_TO_FIT = 4
"""As many measurements as the model has numbers."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured step beside what the model says of it."""

    time: StepTime
    predicted: float
    """Seconds, by the fit to all measurements, or without this one where it was left out."""
    was_left_out: bool

    @property
    def error(self) -> float:
        """Above the measurement (or below: negative), as a share of it."""
        return self.predicted / self.time.seconds - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The model of a step, and its test."""

    model: StepTimeModel
    """From all measurements."""
    checked: tuple[Checked, ...]

    @property
    def largest_error(self) -> float:
        """Of the predictions of what was left out; of all where nothing could be. As a share."""
        tested = [one for one in self.checked if one.was_left_out] or self.checked
        return max(abs(one.error) for one in tested)


def fitted_to(times: Sequence[StepTime], *, cores: int) -> Fitted:
    """Fit without a third of the measurements, predict these; then fit to all.

    Args:
        times: Measured steps.
        cores: Of the host.
    """
    left_out = held_out(times)
    kept = [one for one in times if one not in left_out]
    if len(kept) < LEAST_TO_FIT:
        left_out, kept = [], list(times)
    before = fit_step_time(kept, cores=cores)
    model = fit_step_time(times, cores=cores)
    checked = [
        Checked(
            time=one,
            predicted=(before if one in left_out else model).seconds(one.shape),
            was_left_out=one in left_out,
        )
        for one in times
    ]
    return Fitted(model=model, checked=tuple(checked))


def workload_of(measured: Measurements) -> Workload:
    """What forecasts need of the data."""
    return Workload(
        images=measured.images,
        evaluated_images=measured.evaluated_images,
        every=measured.every,
        evaluation_seconds=measured.evaluation_seconds,
        metric_seconds=measured.metric_seconds,
    )


def host_model(measured: Measurements, fitted: Fitted, network: Network) -> HostModel:
    """What forecasts need of a host."""
    shares = [one.share for one in measured.added]
    return HostModel(
        step_time=fitted.model,
        exchange=Exchange(
            gradient_bytes=measured.gradient_bytes,
            last_bytes=measured.last_bytes,
            on_one_host=max(0.0, median(shares)) if shares else 0.0,
            hidden_share=measured.backward_share,
            network=network,
        ),
        update=update_of(measured, network),
        error=fitted.largest_error,
    )


def update_of(measured: Measurements, network: Network) -> Update | None:
    """Of the common weights of groups; None where the optimizer's step was not measured."""
    if measured.update_seconds is None:
        return None
    return Update(
        weight_bytes=measured.gradient_bytes * (2 if measured.compress == "bf16" else 1),
        seconds=measured.update_seconds,
        network=network,
    )


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Of one configuration."""

    epochs: EpochsModel
    settings: Callable[[int], list[str]]
    """From a global batch size to the `section.field=value` that it asks for."""


def convergence_of_mlperf(rules: Rules) -> Convergence:
    """On MLPerf's part of OpenImages v6, until mAP 0.34."""

    def settings(batch_size: int) -> list[str]:
        found = expectation(reference_points(rules), batch_size)
        return [
            f"training.learning_rate={found.learning_rate:.3g}",
            f"training.warmup_epochs={found.warmup_epochs:g}",
            f"training.warmup_factor={found.warmup_factor:g}",
        ]

    return Convergence(epochs=epochs_of_mlperf(rules), settings=settings)


def convergence_of_probes(probes: Probes, *, config: str) -> Convergence:
    """Of a configuration's own data, with the rule for the learning rate that its probe runs had.

    Raises:
        InputError: A run did not reach the target.
    """

    def settings(batch_size: int) -> list[str]:
        return [
            f"training.learning_rate={probes.rule.scaled(batch_size):.3g}",
            f"training.target_map={probes.target_map:g}",
        ]

    return Convergence(epochs=epochs_of_probes(probes, config=config), settings=settings)


WORTH_SAYING = 0.05
"""A share of a step in waiting that is part of the reason."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a user has to keep to; nothing: the soonest."""

    deadline_hours: float | None = None
    budget_core_hours: float | None = None

    def allows(self, one: Forecast) -> bool:
        """Whether even its worst case keeps to the limits."""
        in_time = self.deadline_hours is None or one.hours.high <= self.deadline_hours
        paid = self.budget_core_hours is None or one.core_hours.high <= self.budget_core_hours
        return in_time and paid


def best(forecasts: Sequence[Forecast], wish: Constraints) -> list[Forecast]:
    """Those that the wish allows, the best first.

    With a deadline the cheapest is the best, else the soonest. Among those whose numbers are the
    same it is the one of the fewest hosts.
    """

    def cost(one: Forecast) -> tuple[float, int]:
        counted = one.hours if wish.deadline_hours is None else one.core_hours
        return counted.middle, one.allocation.hosts

    return sorted((one for one in forecasts if wish.allows(one)), key=cost)


def soonest_by_hosts(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """The soonest of each number of hosts, by number."""
    found: dict[int, Forecast] = {}
    for one in forecasts:
        kept = found.setdefault(one.allocation.hosts, one)
        if one.hours.middle < kept.hours.middle:
            found[one.allocation.hosts] = one
    return [found[hosts] for hosts in sorted(found)]


def turning_point(by_hosts: Sequence[Forecast]) -> Forecast | None:
    """The soonest, where more hosts make the training longer again; None where none does.

    Args:
        by_hosts: Of one shape of ranks, by number of hosts, ascending.
    """
    soonest = min(by_hosts, key=lambda one: one.hours.middle)
    return soonest if soonest is not by_hosts[-1] else None


def why_it_loses(one: Forecast, winner: Forecast) -> str:
    """What makes another allocation take longer than the winner, in a sentence."""
    times = one.hours.middle / winner.hours.middle
    epochs = one.epochs.middle / winner.epochs.middle
    throughput = one.images_per_second / winner.images_per_second
    cost = one.core_hours.middle / winner.core_hours.middle
    reasons = []
    if epochs > 1.0:
        reasons.append(
            f"its global batch of {one.allocation.global_batch:,} images needs "
            f"{one.epochs.middle:.1f} epochs, that of {winner.allocation.global_batch:,} "
            f"{winner.epochs.middle:.1f}"
        )
    faster = f"{throughput:.2f} times the images a second"
    reasons.append(f"it trains {faster}")
    waiting = one.exchange_seconds / one.step_seconds
    if waiting > WORTH_SAYING:
        reasons.append(f"{waiting:.0%} of its steps is waiting for gradients")
    return f"{times:.2f} times as long and {cost:.2f} times the core-hours: {'; '.join(reasons)}"


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """Fields are options of `python -m launch tune`."""

    hosts: int
    network: Network | None
    measure_hosts: str | None
    hostfile: Path | None
    data: str | None
    """None: the plan's, else OpenImages."""
    rules: Rules
    overrides: list[str]
    probe: tuple[int, ...] | None
    """Global batch sizes, ascending; None: the plan's."""
    probe_target: float | None
    """mAP; None: the plan's, else the configuration's."""
    probe_seeds: int | None
    """None: the plan's, else `probing.SEEDS`."""
    groups: WithGroups
    deadline: float | None
    budget: float | None
    plan: Path | None
    chart: Path | None
    slurm: Path | None
    json_file: Path | None
    mpirun: Path | None

    @property
    def outputs(self) -> list[Path]:
        """Files that must not be there yet."""
        return [file for file in (self.chart, self.slurm, self.json_file) if file is not None]

    @property
    def wish(self) -> Constraints:
        """What the choice has to keep to."""
        return Constraints(deadline_hours=self.deadline, budget_core_hours=self.budget)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All forecasts, and which of them to take."""

    fitted: Fitted
    network: Network
    forecasts: Sequence[Forecast]
    """Of every allocation."""
    ranking: Sequence[Forecast]
    """Those that the wish allows, the best first; at least one."""
    obvious: Forecast | None
    """All hosts, a rank a socket, the configuration's batch; None where that does not fit."""

    @property
    def winner(self) -> Forecast:
        """The best."""
        return self.ranking[0]


def answer(
    measured: Measurements,
    epochs: EpochsModel,
    *,
    hosts: int,
    network: Network,
    wish: Constraints,
    with_groups: WithGroups = PLAIN,
) -> Plan:
    """Forecast every allocation, and rank them.

    Args:
        measured: Of one host, like which all are.
        epochs: Until the target.
        hosts: That there are.
        network: Between them.
        wish: What the choice has to keep to.
        with_groups: Groups that are allowed.

    Raises:
        InputError: Groups are asked for, and the plan lacks what they need; or nothing keeps to
            the wish; names the field, and what would.
    """
    fitted = fitted_to(measured.steps, cores=measured.cores)
    host = host_model(measured, fitted, network)
    workload = workload_of(measured)
    if with_groups.most > 1 and host.update is None:
        raise InputError(
            "--groups: the plan has no optimizer's step, as it is from before there were groups; "
            "measure anew, into another --plan"
        )
    forecasts = {
        one: forecast(one, host=host, epochs=epochs, workload=workload, with_groups=with_groups)
        for one in allocations(measured.shapes, most_hosts=hosts, most_groups=with_groups.most)
    }
    plain = Allocation(hosts=hosts, on_host=plain_shape(measured))
    found = list(forecasts.values())
    return Plan(
        fitted=fitted,
        network=network,
        forecasts=found,
        ranking=best(found, wish) or refuse(found, wish),
        obvious=forecasts.get(plain),
    )


def plain_shape(measured: Measurements) -> Shape:
    """A rank a socket with the configuration's batch, which most people would start."""
    threads = [one.threads for one in measured.shapes if one.ranks == measured.sockets]
    return Shape(
        ranks=measured.sockets, threads=max(threads, default=0), batch_size=measured.batch_size
    )


def refuse(forecasts: Sequence[Forecast], wish: Constraints) -> NoReturn:
    """Say that no allocation keeps to the wish, and what the nearest ones need.

    Raises:
        InputError: Always.
    """
    soonest = min(forecasts, key=lambda one: one.hours.high)
    cheapest = min(forecasts, key=lambda one: one.core_hours.high)
    if wish.deadline_hours is not None and soonest.hours.high > wish.deadline_hours:
        raise InputError(
            f"--deadline {wish.deadline_hours:g}: the soonest, {soonest.allocation.name}, may take "
            f"{soonest.hours.high:.1f} hours; give more --hosts or a later deadline"
        )
    if wish.budget_core_hours is not None and cheapest.core_hours.high > wish.budget_core_hours:
        raise InputError(
            f"--budget {wish.budget_core_hours:g}: the cheapest, {cheapest.allocation.name}, may "
            f"take {cheapest.core_hours.high:,.0f} core-hours; give more"
        )
    raise InputError("--deadline, --budget: no allocation keeps to both; give up one of them")
