"""The time of a training step on one host, by ranks, threads and local batch: a fit.

A step of a rank takes `(fixed + per_image · images) · (serial + (1 - serial) / threads)`, which is
Amdahl's law, times `1 + contention · neighbours`, where neighbours is the share of the host's other
cores on which ranks compute: they share memory and its bandwidth. To this comes what the exchange
of gradients adds where there are several ranks.

TODO-DOC The time of an all-reduce between hosts: a ring, with a latency and a bandwidth.

TODO-DOC Epochs until the target against the global batch size: the statistical half of the choice.

Larger batches take fewer steps, but more epochs. MLPerf's reference convergence points say how many
for OpenImages (Fu et al. 2023, Figure 7); for other data short trainings do.

TODO-DOC MLPerf's reference convergence points as a model of epochs.

TODO-DOC A number that is known only within a range.

TODO-DOC What compute groups change in a forecast: smaller batches, no common waiting, a busy first rank.

Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 3): groups take steps of their own batch,
and each step ends with an exchange with the one that has the weights, who serves one at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from retinanet.mlperf.rules import TARGET_MAP, Rules, reference_points

TINY = 1e-9
"""The upper bound of what a fit shall take for none."""


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """Ranks on one host."""

    ranks: int
    threads: int
    """That compute, of each rank."""
    batch_size: int
    """Images of each rank in a step."""

    @property
    def images(self) -> int:
        """Of a step, over the host's ranks."""
        return self.ranks * self.batch_size

    @property
    def name(self) -> str:
        """Such as `2 × 1 × 4`, ranks × threads × images."""
        return f"{self.ranks} × {self.threads} × {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A measured step."""

    shape: Shape
    seconds: float
    """Median, of the slowest rank, without exchange of gradients."""


@dataclass(frozen=True, kw_only=True)
class StepTimeModel:
    """What the steps of any shape take on one host, without exchange of gradients."""

    fixed: float
    """Of a step of one thread, whatever its images. [seconds]"""
    per_image: float
    """[seconds of one thread]"""
    serial: float
    """Share of it that more threads do not make shorter."""
    contention: float
    """How much longer a step is when all other cores compute too, as a share."""
    cores: int
    """Of the host."""

    def seconds(self, shape: Shape) -> float:
        """Of a step."""
        by_threads = self.serial + (1 - self.serial) / shape.threads
        of_thread = self.fixed + self.per_image * shape.batch_size
        return of_thread * by_threads * (1 + self.contention * neighbours(shape, self.cores))


def neighbours(shape: Shape, cores: int) -> float:
    """Share of the cores beside a rank's own on which other ranks compute."""
    others = cores - shape.threads
    return (shape.ranks - 1) * shape.threads / others if others > 0 else 0.0


def fit_step_time(times: Sequence[StepTime], *, cores: int) -> StepTimeModel:
    """The model nearest to the measurements, by least squares of relative errors.

    Args:
        times: Of at least two batch sizes. What they do not tell apart comes out as none: without
            shapes of several threads `serial`, without several ranks `contention`.
        cores: Of the host.
    """
    from scipy.optimize import least_squares  # type: ignore[import-untyped]  # noqa: PLC0415

    first = min(times, key=lambda one: one.shape)
    scale = first.seconds / first.shape.batch_size
    has_threads = any(one.shape.threads > 1 for one in times)
    has_ranks = any(one.shape.ranks > 1 for one in times)
    upper = [np.inf, np.inf, 1.0 if has_threads else TINY, np.inf if has_ranks else TINY]

    def model(values: NDArray[np.float64]) -> StepTimeModel:
        fixed, per_image, serial, contention = (float(value) for value in values)
        return StepTimeModel(
            fixed=fixed * scale,
            per_image=per_image * scale,
            serial=serial,
            contention=contention,
            cores=cores,
        )

    def errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
        made = model(values)
        return np.array([np.log(made.seconds(one.shape) / one.seconds) for one in times])

    start = np.array([0.1, 0.9, min(0.1, upper[2] / 2), min(0.1, upper[3] / 2)])
    found = least_squares(errors, start, bounds=(np.zeros(len(start)), np.array(upper)))
    return model(found.x)


def held_out(times: Sequence[StepTime]) -> list[StepTime]:
    """Those that a fit can do without, to be held against what it predicts: about a third.

    As in a Latin square: of each pair of ranks and threads another batch size, so that the rest
    still has every batch size and every pair.
    """
    pairs = sorted({(one.shape.ranks, one.shape.threads) for one in times})
    sizes = sorted({one.shape.batch_size for one in times})
    of_square = max(len(sizes), 2)
    return [
        one
        for one in times
        if (pairs.index((one.shape.ranks, one.shape.threads)) + sizes.index(one.shape.batch_size))
        % of_square
        == 1
    ]


MOST_ON_HOST = 8
"""Ranks of one host between which all-reduces are timed: it has fewer sockets than so many."""
SMALL_ERROR = 0.1
"""Of a fit, a share: errors below it count by their squares."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins the ranks."""

    latency: float
    """Of a message. [seconds]"""
    bandwidth: float
    """Of each host's link, in one direction. [bytes/s]"""
    source: str
    """Whether it was given, or measured where."""

    def all_reduce_seconds(self, size: int, *, ranks: int) -> float:
        """Of so many bytes over a ring of ranks, hosts one after another in it.

        Each rank sends a part of `size / ranks` to the next 2 (ranks - 1) times, all at once; so
        each host's link carries one part at a time in each direction (Thakur et al. 2005).
        """
        messages, transferred = ring(ranks, size)
        return messages * self.latency + transferred / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class AllReduceTime:
    """A measured all-reduce."""

    ranks: int
    size: int
    """[bytes]"""
    seconds: float
    """Median."""


def rank_counts(most: int) -> list[int]:
    """Over how many ranks all-reduces are timed: 2, 4, 8 and so on, and the most there can be."""
    return [2**power for power in range(1, (most - 1).bit_length())] + [most]


def rank_counts_of_host(cores: int, *, sockets: int) -> list[int]:
    """Those up to 8 that share a host's cores evenly; and 2."""
    counts = rank_counts(MOST_ON_HOST)
    return [one for one in counts if one == 2 or (cores % one == 0 and one % sockets == 0)]


def ring(ranks: int, size: int) -> tuple[int, float]:
    """Messages one after another, and bytes through each link, of a ring's all-reduce."""
    messages = 2 * (ranks - 1)
    return messages, messages * size / ranks


def fit_network(times: Sequence[AllReduceTime], *, source: str) -> Network:
    """Latency and bandwidth from measurements of several sizes.

    Errors are logarithms of what the model says over what was measured, so that small messages
    count as much as large ones; and a large error counts but in proportion, as what buffers a
    message whole lets it pass faster than the link is.

    Args:
        times: Of at least two sizes, with two ranks or more.
        source: Where they were measured.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import least_squares  # noqa: PLC0415

    work = np.array([ring(one.ranks, one.size) for one in times])
    seconds = np.array([one.seconds for one in times])
    costs = np.min(seconds[:, None] / work, axis=0)  # each as if there were no other
    found = least_squares(
        lambda logs: np.log(work @ np.exp(logs) / seconds),
        np.log(costs),
        loss="soft_l1",
        f_scale=SMALL_ERROR,
    )
    latency, per_byte = np.exp(found.x)
    return Network(latency=float(latency), bandwidth=1 / float(per_byte), source=source)


RUNS_THAT_ARE_SCORED = 3
"""From so many on the best and the worst run do not count for the mean, as MLPerf scores."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Trainings until the target at one global batch size."""

    batch_size: int
    """Images of all ranks in a step."""
    epochs: tuple[float, ...]
    """Of each run, ascending; at least one."""

    @property
    def mean_epochs(self) -> float:
        """Without the best and the worst run where there are enough."""
        counted = self.epochs[1:-1] if len(self.epochs) >= RUNS_THAT_ARE_SCORED else self.epochs
        return fmean(counted)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one quantity, all in its unit."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """So many times as much; the factor is not negative."""
        return Estimate(low=factor * self.low, middle=factor * self.middle, high=factor * self.high)

    def widened(self, share: float) -> "Estimate":
        """What it may be where it is also wrong by a share, to either side."""
        low, high = self.low * (1 - share), self.high * (1 + share)
        return Estimate(low=low, middle=self.middle, high=high)


@dataclass(frozen=True, kw_only=True)
class EpochsModel:
    """What is known of the epochs until a target."""

    runs: tuple[Runs, ...]
    """Of at least one batch size, ascending."""
    target: str
    """Such as `mAP 0.34`."""
    source: str
    """Who trained until then, and on what."""

    @property
    def batch_sizes(self) -> list[int]:
        """Those that somebody trained with, ascending."""
        return [one.batch_size for one in self.runs]

    def epochs(self, batch_size: int) -> Estimate:
        """Mean of the runs, best and worst run, between two batch sizes on straight lines.

        Below the smallest batch size its epochs stand: that fewer might do is a hope. Beyond the
        largest the last straight line goes on, as the epochs of large batches grow in proportion to
        them (McCandlish et al. 2018, from steps and samples traded against each other).
        """
        return Estimate(
            low=self._between(batch_size, [one.epochs[0] for one in self.runs]),
            middle=self._between(batch_size, [one.mean_epochs for one in self.runs]),
            high=self._between(batch_size, [one.epochs[-1] for one in self.runs]),
        )

    def _between(self, batch_size: int, epochs: Sequence[float]) -> float:
        sizes = self.batch_sizes
        if batch_size <= sizes[-1] or len(sizes) == 1:
            return float(np.interp(batch_size, sizes, epochs))
        slope = max(0.0, (epochs[-1] - epochs[-2]) / (sizes[-1] - sizes[-2]))
        return epochs[-1] + slope * (batch_size - sizes[-1])


def epochs_of_mlperf(rules: Rules) -> EpochsModel:
    """Of RetinaNet on MLPerf's part of OpenImages."""
    return EpochsModel(
        runs=tuple(
            Runs(batch_size=one.batch_size, epochs=one.epochs) for one in reference_points(rules)
        ),
        target=f"mAP {TARGET_MAP:g}",
        source=f"MLPerf's reference convergence points, rules {rules}",
    )


@dataclass(frozen=True, kw_only=True)
class WithGroups:
    """Groups that a user allows, and what they cost."""

    most: int = 1
    """Compute groups, each of whole hosts."""
    epochs: float = 1.0
    """Times the epochs that plain training needs at a group's batch; see `launch groups`."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """Of the common weights, once for each step of a group."""

    weight_bytes: int
    """That a group gives and gets."""
    seconds: float
    """Of the optimizer's step by one thread; the weights are held as long."""
    network: Network

    def added_seconds(self) -> float:
        """To a group's step: gradients there, the optimizer's step, weights back."""
        travel = self.network.latency + self.weight_bytes / self.network.bandwidth
        return 2 * travel + self.seconds

    def least_seconds(self, groups: int) -> float:
        """Of a group's step, below which rank 0 could not serve so many."""
        travel = self.weight_bytes / self.network.bandwidth
        return groups * max(travel, self.seconds)
