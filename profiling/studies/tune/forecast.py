"""How long a training until the target takes on an allocation, and what it costs.

TODO-DOC The allocations that there are: hosts, ranks of each, their threads and local batch.

TODO-DOC From measurements to the model of a host, and how far it can be trusted.

TODO-DOC How many epochs a target takes, and the settings that a global batch size wants for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from profiling.studies.tune.measurements import Measurements
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
from profiling.studies.tune.probes import Probes, epochs_of_probes
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
