"""How long a training until the target takes on an allocation, and what it costs."""

from dataclasses import dataclass

from launch.tune.allocation import Allocation
from launch.tune.asynchrony import Update, WithGroups
from launch.tune.epochs import EpochsModel
from launch.tune.estimate import Estimate
from launch.tune.network import Network
from launch.tune.step_time import StepTimeModel

HOUR = 3600.0
PLAIN = WithGroups()
"""One group."""


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
