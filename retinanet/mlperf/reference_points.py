"""MLPerf's reference convergence points (RCPs): how many epochs a global batch size takes.

They come inside MLCommons' package, and are what a submission's runs are compared with. Fu et al.
(2023) draw them in Figure 7: larger batches take more epochs, which more machines must make up for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from retinanet.mlperf.rules import TRAINING_IMAGES, Rules, benchmark_name


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """Runs of the reference implementation at one global batch size."""

    batch_size: int
    """Images a step, of all ranks."""
    learning_rate: float
    warmup_epochs: float
    warmup_factor: float
    """Of the learning rate, from which the warm-up begins."""
    epochs: tuple[float, ...]
    """Until mAP 0.34 of each run, ascending."""
    least_epochs: float
    """From which mean on the official checker takes runs for converged as the reference does."""

    @property
    def mean_epochs(self) -> float:
        """Without the best and the worst run, as MLPerf scores."""
        return fmean(self.epochs[1:-1])


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the points say of a global batch size."""

    batch_size: int
    mean_epochs: float
    learning_rate: float
    warmup_epochs: float
    warmup_factor: float
    basis: str
    """Whether it was measured, lies between points, or outside of all, in words."""
    is_within: bool
    """Whether it lies among the points: outside nobody has measured."""

    @property
    def steps(self) -> int:
        """Optimizer steps until the target, on MLPerf's training images."""
        return round(self.mean_epochs * TRAINING_IMAGES / self.batch_size)


def reference_points(rules: Rules) -> list[ReferencePoint]:
    """The points of a rule set, in order of batch size, with the official checker's statistics."""
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415 - scipy: 1 s

    checker = RCP_Checker("training", rules, benchmark_name(rules), verbose=False)
    points = []
    for record in checker.rcp_data.values():
        settings = record["Hyperparams"]
        points.append(
            ReferencePoint(
                batch_size=record["BS"],
                learning_rate=settings["opt_base_learning_rate"],
                warmup_epochs=settings["opt_learning_rate_warmup_epochs"],
                warmup_factor=settings["opt_learning_rate_warmup_factor"],
                epochs=tuple(sorted(record["Epochs to converge"])),
                least_epochs=float(record["Min Epochs"]),
            )
        )
    return points


def expectation(points: Sequence[ReferencePoint], batch_size: int) -> Expectation:
    """Epochs, learning rate and warm-up for any global batch size.

    Between two points all are interpolated linearly, epochs as the official checker does. Outside
    the nearest point's are given.
    """
    sizes = [point.batch_size for point in points]

    def between(name: str) -> float:
        return float(np.interp(batch_size, sizes, [getattr(point, name) for point in points]))

    return Expectation(
        batch_size=batch_size,
        mean_epochs=between("mean_epochs"),
        learning_rate=between("learning_rate"),
        warmup_epochs=between("warmup_epochs"),
        warmup_factor=between("warmup_factor"),
        basis=basis_of(sizes, batch_size),
        is_within=sizes[0] <= batch_size <= sizes[-1],
    )


def basis_of(sizes: Sequence[int], batch_size: int) -> str:
    """Where a batch size lies among those of the points, which ascend."""
    if batch_size in sizes:
        return "measured"
    if batch_size < sizes[0]:
        return f"nobody measured less than {sizes[0]}: its numbers"
    if batch_size > sizes[-1]:
        return f"nobody measured more than {sizes[-1]}: its numbers, expect worse"
    above = next(place for place, size in enumerate(sizes) if size > batch_size)
    return f"between {sizes[above - 1]} and {sizes[above]}"
