"""Epochs until the target against the global batch size: the statistical half of the choice.

Larger batches take fewer steps, but more epochs. MLPerf's reference convergence points say how many
for OpenImages (Fu et al. 2023, Figure 7); for other data short trainings do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from launch.tune.estimate import Estimate

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
