"""The planner's models, fitted to measurements: step time, network, epochs, compute groups.

- A step takes `(fixed + per_image · images) · (serial + (1 - serial) / threads)`, Amdahl's law,
  times `1 + contention · neighbours`: the share of the host's other cores on which ranks compute.
- A network between hosts has a latency and a bandwidth; an all-reduce is a ring's. Gradients go as
  the trainer sends them (`Exchange`).
- Larger batches take fewer steps, but more epochs: MLPerf's reference convergence points (Fu et al.
  2023, Figure 7) show how many for OpenImages, short trainings for other data.
- Each step of a compute group ends with an exchange with the rank that has the weights, which
  serves one group at a time (Omnivore, Hadjis et al. 2016, arXiv 1606.04487, section 3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from profiling.bench.job import ExchangeTime
from profiling.bench.measured_rank import bucket_sizes
from profiling.studies.rounds import Shape
from retinanet.mlperf.rules import TARGET_MAP, Rules, reference_points

TINY = 1e-9  # The upper bound of a value that a fit is to leave out
LEAST_TO_FIT = 4  # As many measurements as the model has numbers
FLOAT, BF16 = 4, 2  # [bytes]
PART = 1 << 20
"""The trainer divides buckets into parts of so many gradients, whose messages alternate."""
PARTS_ON_THEIR_WAY = 4
SMALL_ERROR = 0.1  # Errors of the network's fit below this share count by their squares
RUNS_THAT_ARE_SCORED = 3
"""From so many on the best and the worst run do not count for the mean, as MLPerf scores."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A measured step: the median of the slowest rank, without exchange of gradients."""

    shape: Shape
    seconds: Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class StepTimeModel:
    """The step time of any shape on one host, without exchange of gradients."""

    fixed: float  # Time of a step of one thread, whatever its images. [seconds]
    per_image: float  # [seconds of one thread]
    serial: float  # Share of it that more threads do not make shorter
    contention: float  # How much longer a step is when all other cores compute too, as a share
    cores: int

    def seconds(self, shape: Shape) -> float:
        """Return the time of a step."""
        by_threads = self.serial + (1 - self.serial) / shape.threads
        of_thread = self.fixed + self.per_image * shape.batch_size
        # Contention grows with the share of the other cores on which ranks compute.
        others = self.cores - shape.threads
        neighbours = (shape.ranks - 1) * shape.threads / others if others > 0 else 0.0
        return of_thread * by_threads * (1 + self.contention * neighbours)


def fit_step_time(times: Sequence[StepTime], *, cores: int) -> StepTimeModel:
    """Return the model nearest to the measurements, by least squares of relative errors.

    The measurements have at least two batch sizes. Values that they do not determine are zero:
    `serial` without shapes of several threads, `contention` without several ranks.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]  # noqa: PLC0415

    first = min(times, key=lambda time: time.shape)
    # In units of about one image, so that the parameters are near 1 for the solver.
    scale = first.seconds / first.shape.batch_size
    has_threads = any(time.shape.threads > 1 for time in times)
    has_ranks = any(time.shape.ranks > 1 for time in times)
    # scipy rejects equal bounds, so a value to leave out has a tiny range.
    upper = [np.inf, np.inf, 1.0 if has_threads else TINY, np.inf if has_ranks else TINY]

    def model(values: NDArray[np.float64]) -> StepTimeModel:
        fixed, per_image, serial, contention = values.tolist()
        return StepTimeModel(
            fixed=fixed * scale,
            per_image=per_image * scale,
            serial=serial,
            contention=contention,
            cores=cores,
        )

    def errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = model(values)
        # Logarithms are relative errors: short steps count as much as long ones.
        return np.array([np.log(fitted.seconds(time.shape) / time.seconds) for time in times])

    # The start has to lie within the bounds.
    start = np.array([0.1, 0.9, min(0.1, upper[2] / 2), min(0.1, upper[3] / 2)])
    return model(least_squares(errors, start, bounds=(np.zeros(len(start)), np.array(upper))).x)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured step beside the model's prediction."""

    time: StepTime
    predicted: float
    """Seconds, by the fit to all measurements, or without this one where it was left out."""
    was_left_out: bool

    @property
    def error(self) -> float:
        """The difference to the measurement, as a share of it; negative: the model is below."""
        return self.predicted / self.time.seconds - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The model of a step, fitted to all measurements, and its test."""

    model: StepTimeModel
    checked: tuple[Checked, ...]

    @property
    def largest_error(self) -> float:
        """The largest relative error of held-out measurements, or of all if there are none."""
        tested = [check for check in self.checked if check.was_left_out] or self.checked
        return max(abs(check.error) for check in tested)


def fitted_to(times: Sequence[StepTime], *, cores: int) -> Fitted:
    """Fit without a third of the measurements, to test the model on these; then fit to all."""
    left_out = held_out(times)
    others = [time for time in times if time not in left_out]
    if len(others) < LEAST_TO_FIT:
        # Fewer measurements than parameters: the model is fitted to all, and not tested.
        left_out, others = [], list(times)
    before, model = (fit_step_time(subset, cores=cores) for subset in (others, times))
    checked = [
        Checked(
            time=time,
            predicted=(before if time in left_out else model).seconds(time.shape),
            was_left_out=time in left_out,
        )
        for time in times
    ]
    return Fitted(model=model, checked=tuple(checked))


def held_out(times: Sequence[StepTime]) -> list[StepTime]:
    """Return about a third of the measurements, to test a fit without them.

    As in a Latin square: of each pair of ranks and threads another batch size, so that the others
    still have every batch size and every pair.
    """
    pairs = sorted({(time.shape.ranks, time.shape.threads) for time in times})
    sizes = sorted({time.shape.batch_size for time in times})
    cells = [
        pairs.index((time.shape.ranks, time.shape.threads)) + sizes.index(time.shape.batch_size)
        for time in times
    ]
    # With one batch size, every second pair is left out.
    return [time for time, cell in zip(times, cells, strict=True) if cell % max(len(sizes), 2) == 1]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network between the ranks."""

    latency: float  # Latency of a message. [seconds]
    bandwidth: float  # Bandwidth of each host's link, in one direction. [bytes/s]
    source: str

    def all_reduce_seconds(self, size: int, *, ranks: int) -> float:
        """Return the time of an all-reduce over a ring of ranks, host after host. [s]"""
        messages, transferred = ring(ranks, size)
        return messages * self.latency + transferred / self.bandwidth


def ring(ranks: int, size: int) -> tuple[int, float]:
    """Return messages one after another, and bytes through each link, of a ring's all-reduce.

    Each rank sends a part of `size / ranks` to the next 2 (ranks - 1) times, all at once; so each
    host's link carries one part at a time in each direction (Thakur et al. 2005).
    """
    messages = 2 * (ranks - 1)
    return messages, messages * size / ranks


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The averages of a step's gradients over equal hosts, as the trainer makes them.

    `retinanet.engine.gradient_sync` and `retinanet.engine.host_gradients` average in three ways, in
    the buckets of torch's DistributedDataParallel:

    - on one host: the computing threads write to shared memory, and add what all ranks wrote;
    - on several hosts, in two levels: the computing threads write float32 to shared memory. A
      thread of each rank adds a slice of it, averages that with the ranks of the same number on the
      other hosts (BF16: all-to-all and all-gather, of two hosts all-gather alone; float32:
      all-reduce), and reads the others;
    - in compute groups on several hosts: an all-reduce over all ranks of the group, a ring.

    What the computing threads do makes a step longer. The rest goes on during the backward pass,
    and only what is left after it makes the step longer. Its bytes pass through the memory
    meanwhile (`bytes_beside`). All passes count as if no cache kept anything.
    """

    values: int  # Gradients of a rank
    compress: bool  # Whether they are BF16 on the wire
    hosts: int
    ranks: int  # Of a host
    network: Network
    rank_bandwidth: float  # Memory bandwidth of a rank's computing threads. [bytes/s]
    core_bandwidth: float  # That of one thread. [bytes/s]
    has_own_core: bool = True
    """Whether the thread that averages runs on a core that does not compute."""
    in_levels: bool = True
    """Whether hosts exchange in two levels, as all ranks of a job do; not so compute groups."""

    @property
    def wire(self) -> int:
        """The bytes of a gradient between hosts, or in the memory of a single host."""
        return BF16 if self.compress else FLOAT

    @property
    def peers(self) -> int:
        """The ranks among which a gradient is averaged through the network."""
        return self.hosts if self.in_levels else self.hosts * self.ranks

    def computing_bytes(self, values: int) -> float:
        """Return the bytes that a rank's computing threads read and write for some gradients."""
        if self.hosts * self.ranks == 1:
            return 0.0
        if self.hosts == 1:
            # Each rank writes its own, and adds those of all ranks.
            return values * (FLOAT + self.wire + self.ranks * self.wire + FLOAT)
        if not self.in_levels:
            # torch's BF16 gradients are a copy, which returns.
            return values * (2 * (FLOAT + BF16) if self.compress else 2 * FLOAT)
        is_rounded = self.compress and self.ranks == 1
        return values * (FLOAT + (BF16 if is_rounded else FLOAT))

    def thread_bytes(self, values: int) -> float:
        """Return the bytes that the averaging thread of a rank reads and writes."""
        if self.hosts == 1:
            return 0.0
        peers, others = self.peers, (self.peers - 1) / self.peers
        if not self.in_levels:
            return values * others * 3 * self.wire
        own, in_memory = values / self.ranks, 0.0
        if self.ranks > 1:
            in_memory = own * (self.ranks * FLOAT + FLOAT)  # adds this rank's slice
            in_memory += own * 2 * FLOAT  # writes its average
            in_memory += (values - own) * 2 * FLOAT  # reads the other slices
        if not self.compress:
            return in_memory + own * others * 3 * FLOAT  # MPI or gloo adds
        rounding = FLOAT + BF16
        between = own * rounding if self.ranks > 1 else 0.0
        if peers == 2:
            return in_memory + between + own * (2 * BF16 + FLOAT)  # adds what both sent
        # A share of the slice is added and rounded, and the averages of all shares are read.
        between += own * BF16 + own / peers * (FLOAT + rounding) + own * rounding
        return in_memory + between

    def card_bytes(self, values: int) -> float:
        """Return the bytes that a rank's network card reads from memory and writes to it."""
        if self.hosts == 1:
            return 0.0
        own = values / self.ranks if self.in_levels else values
        return 2 * ring(self.peers, math.ceil(own * self.wire))[1]

    def network_seconds(self, values: int) -> float:
        """Return the time of some gradients on the network. [s]

        All-to-all and all-gather send as many bytes and messages as a ring's all-reduce. All ranks
        of a host share its link. The messages of some parts wait at the same time.
        """
        if self.hosts == 1:
            return 0.0
        once = self.network.all_reduce_seconds(values * self.wire, ranks=self.peers)
        rounds = math.ceil(self.parts(values) / PARTS_ON_THEIR_WAY)
        messages, _ = ring(self.peers, 0)
        return once + (rounds - 1) * messages * self.network.latency

    def parts(self, values: int) -> int:
        """Return into how many parts a bucket is divided."""
        return math.ceil(values / PART) if self.in_levels else 1

    def average_seconds(self, values: int) -> float:
        """Return the time of a bucket from its last gradient on, without the computing threads. [s]

        While one part is added, others are on their way: the longer of both counts, and the shorter
        for one part.
        """
        thread = self.thread_bytes(values) / self.core_bandwidth
        short, long = sorted((thread, self.network_seconds(values)))
        return long + short / self.parts(values)

    def added_seconds(self, backward: float) -> float:
        """Return the time that the exchange adds to a step. [s]

        The backward pass takes `backward` seconds without it. Gradients become ready evenly.
        Without a core of its own, the thread that averages holds up the computing threads, which
        share each operation evenly.
        """
        ready = averaged = held_up = 0.0
        for bucket in bucket_sizes(self.values):
            ready += held_up + backward * bucket / self.values
            ready += self.computing_bytes(bucket) / self.rank_bandwidth
            averaged = max(averaged, ready) + self.average_seconds(bucket)
            if not self.has_own_core:
                held_up = self.thread_bytes(bucket) / self.core_bandwidth
        return max(0.0, averaged - backward)

    @property
    def bytes_beside(self) -> float:
        """The bytes that pass through a rank's memory while it computes its backward pass."""
        hidden = self.values - bucket_sizes(self.values)[-1]
        return self.thread_bytes(hidden) + self.card_bytes(hidden)


def predicted_seconds(time: ExchangeTime, exchange: Exchange, network: Network) -> float:
    """Return the time of a measured exchange: as `exchange`, a rank on each host, all at once."""
    values = max(1, time.size // exchange.wire)
    measured = replace(exchange, values=values, hosts=time.ranks, ranks=1, network=network)
    return measured.added_seconds(0.0)


def fit_network(times: Sequence[ExchangeTime], *, exchange: Exchange, source: str) -> Network:
    """Return latency and bandwidth from measurements of at least two sizes.

    The measurements are as `predicted_seconds` describes. Errors are logarithms of prediction over
    measurement, so that small messages count as much as large ones. A large error counts only in
    proportion, as a network that buffers whole messages passes them faster than its link.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415

    work = np.array([ring(time.ranks, time.size) for time in times])
    seconds = np.array([time.seconds for time in times])
    # The start of the fit: each cost as if there were no other.
    costs = np.min(seconds[:, None] / work, axis=0)

    def network(logs: NDArray[np.float64]) -> Network:
        latency, per_byte = np.exp(logs)
        return Network(latency=float(latency), bandwidth=1 / float(per_byte), source=source)

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = [predicted_seconds(time, exchange, network(logs)) for time in times]
        return np.asarray(np.log(np.array(predicted) / seconds))

    # Logarithms as parameters keep latency and time per byte positive.
    return network(least_squares(errors, np.log(costs), loss="soft_l1", f_scale=SMALL_ERROR).x)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Trainings until the target at one global batch size."""

    batch_size: int
    epochs: tuple[float, ...]  # Epochs of each run, ascending; at least one

    @property
    def mean_epochs(self) -> float:
        """The mean, without the best and the worst run if there are enough."""
        # MLPerf drops the best and the worst run from the mean.
        return fmean(self.epochs[1:-1] if len(self.epochs) >= RUNS_THAT_ARE_SCORED else self.epochs)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A quantity with a range of uncertainty."""

    low: float
    middle: float
    high: float

    def times(self, factor: "float | Estimate") -> "Estimate":
        """Return the estimate times a factor that is not negative."""
        by = factor if isinstance(factor, Estimate) else Estimate.exactly(factor)
        return Estimate(
            low=self.low * by.low, middle=self.middle * by.middle, high=self.high * by.high
        )

    def plus(self, term: "float | Estimate") -> "Estimate":
        """Return the sum; the ranges add up, as they do where both have the same cause."""
        by = term if isinstance(term, Estimate) else Estimate.exactly(term)
        return Estimate(
            low=self.low + by.low, middle=self.middle + by.middle, high=self.high + by.high
        )

    @staticmethod
    def exactly(value: float) -> "Estimate":
        """Return a value without uncertainty."""
        return Estimate(low=value, middle=value, high=value)

    def widened(self, share: float) -> "Estimate":
        """Return the range widened by a relative error to either side."""
        low, high = self.low * (1 - share), self.high * (1 + share)
        return Estimate(low=low, middle=self.middle, high=high)

    def spanning(self, other: "Estimate") -> "Estimate":
        """Return the estimate with a range that has the other's range too."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Estimate(low=low, middle=self.middle, high=high)


@dataclass(frozen=True, kw_only=True)
class EpochsModel:
    """The epochs until a target, by global batch size."""

    runs: tuple[Runs, ...]  # At least one, by batch size, ascending
    target: str  # Such as `mAP 0.34`
    source: str  # Whose trainings they are, and on what

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes of the runs, ascending."""
        return [runs.batch_size for runs in self.runs]

    def epochs(self, batch_size: int) -> Estimate:
        """Return mean, best and worst run, between two batch sizes on straight lines.

        Below the smallest batch size, its epochs are used, as fewer may not suffice. Above the
        largest, the last line is extrapolated, as the epochs of large batches grow in proportion to
        them (McCandlish et al. 2018, from steps traded against samples).
        """
        sizes = self.batch_sizes

        def on_line(epochs: Sequence[float]) -> float:
            # Outside of the sizes, `interp` holds the values at their ends.
            if batch_size <= sizes[-1] or len(sizes) == 1:
                return float(np.interp(batch_size, sizes, epochs))
            # Larger batches do not need fewer epochs, even if two noisy runs suggest it.
            slope = max(0.0, (epochs[-1] - epochs[-2]) / (sizes[-1] - sizes[-2]))
            return epochs[-1] + slope * (batch_size - sizes[-1])

        return Estimate(
            low=on_line([runs.epochs[0] for runs in self.runs]),
            middle=on_line([runs.mean_epochs for runs in self.runs]),
            high=on_line([runs.epochs[-1] for runs in self.runs]),
        )


def epochs_of_mlperf(rules: Rules) -> EpochsModel:
    """Return the epochs of RetinaNet on MLPerf's part of OpenImages."""
    points = reference_points(rules)
    return EpochsModel(
        runs=tuple(Runs(batch_size=point.batch_size, epochs=point.epochs) for point in points),
        target=f"mAP {TARGET_MAP:g}",
        source=f"MLPerf's reference convergence points, rules {rules}",
    )


@dataclass(frozen=True, kw_only=True)
class WithGroups:
    """The compute groups that a user allows, and their factor on the number of epochs."""

    most: int = 1  # Compute groups, each of whole hosts
    epochs: float = 1.0
    """Times the epochs that plain training needs at a group's batch; see `launch groups`."""
