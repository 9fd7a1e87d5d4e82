"""The time of a training step on one host, by ranks, threads and local batch: a fit.

A step of a rank takes `(fixed + per_image · images) · (serial + (1 - serial) / threads)`, which is
Amdahl's law, times `1 + contention · neighbours`, where neighbours is the share of the host's other
cores on which ranks compute: they share memory and its bandwidth. To this comes what the exchange
of gradients adds where there are several ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
