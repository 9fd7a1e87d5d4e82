"""MLPerf's rule sets: the benchmark's name and target, the closed division, reference points.

Reference convergence points (RCPs) are the epochs that the reference implementation needed at
several global batch sizes. They are part of MLCommons' package, and the runs of a submission are
compared with them. Fu et al. (2023) show them in Figure 7.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from retinanet.config_types import field_marks

Rules = Literal["5.1.0", "5.0.0", "4.1.0", "2.1.0"]
"""Rule sets of MLCommons' checkers in which RetinaNet on OpenImages is a benchmark."""

RULES: tuple[Rules, ...] = get_args(Rules)
NEWEST: Rules = "5.1.0"
TRAINING_IMAGES, VALIDATION_IMAGES = 1_170_301, 24_781  # In MLPerf's subset of OpenImages v6
TARGET_MAP = 0.34
RUNS_OF_SUBMISSION = 5  # The fastest and the slowest are dropped


def benchmark_name(rules: Rules) -> str:
    """Return `retinanet`, or `ssd` before rules 5.0: the name of the model it replaced in 2.0."""
    return "retinanet" if rules.startswith("5.") else "ssd"


def counts_batches(samples: object, batch_size: int) -> bool:
    """Return whether a `train_samples` is MLPerf's training images in batches, as logs may count.

    Accepted submissions round down or up, 4,571 and 4,572 batches of 256 images, or fill up to a
    multiple: 576 of 2,048. A number from the batch size on is images, unless it is rounded.
    """
    fewest, most = TRAINING_IMAGES // batch_size, -(-TRAINING_IMAGES // batch_size)
    if type(samples) is int and samples < batch_size:
        most = round(1.01 * TRAINING_IMAGES) // batch_size
    return batch_size > 1 and type(samples) is int and fewest <= samples <= most


class Closed(NamedTuple):
    """The closed division's rule on a field of the configuration: a mark in its annotation.

    Batch size, learning rate and warm-up are free (MLPerf Training Rules, Hyperparameters; the
    official checker's closed_retinanet.yaml); other fields must equal the reference's. The data
    set is not part of it: `retinanet mlperf check` counts its images.
    """

    expected: str
    allows: Callable[[Any], bool]


def closed(value: object, *equivalent: object) -> Closed:
    """Return the rule that a field has this value or an equivalent one."""
    allowed = (value, *equivalent)
    return Closed("null" if value is None else str(value), lambda actual: actual in allowed)


def broken_rules(sections: Mapping[str, Any]) -> list[str]:
    """Return a text for each rule of the closed division that a configuration breaks."""
    broken = []
    for section, fields in sections.items():
        for name, rule in field_marks(type(fields), Closed).items():
            value = getattr(fields, name)
            if not rule.allows(value):
                actual = list(value) if isinstance(value, tuple) else value
                actual = "null" if actual is None else actual
                broken.append(f"{section}.{name} is {rule.expected}, not {actual}")
    return broken


@dataclass(frozen=True, kw_only=True)
class ReferencePoint:
    """Runs of the reference implementation at one global batch size."""

    batch_size: int  # Images per step over all ranks
    learning_rate: float
    warmup_epochs: float
    warmup_factor: float  # Part of the learning rate at which the warm-up starts
    epochs: tuple[float, ...]  # To mAP 0.34, of each run, ascending
    least_epochs: float
    """Lowest mean that the official checker accepts as convergence like the reference."""

    @property
    def mean_epochs(self) -> float:
        """The mean without the best and the worst run, as MLPerf scores."""
        return fmean(self.epochs[1:-1])


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The values that follow from the points for a global batch size; `basis` names the points."""

    batch_size: int
    mean_epochs: float
    learning_rate: float
    warmup_epochs: float
    warmup_factor: float
    basis: str
    is_within: bool

    @property
    def steps(self) -> int:
        """Optimizer steps until the target, on MLPerf's training images."""
        return round(self.mean_epochs * TRAINING_IMAGES / self.batch_size)


def reference_points(rules: Rules, *, pruned: bool = False) -> list[ReferencePoint]:
    """Return a rule set's points in order of batch size, with the official checker's statistics.

    `pruned`: only those that runs are checked with, which leaves out points that are slower than an
    interpolation of their neighbours.
    """
    # Imported here, because the RCP checker loads scipy, which takes a second.
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415

    checker = RCP_Checker("training", rules, benchmark_name(rules), verbose=False)
    return [
        ReferencePoint(
            batch_size=record["BS"],
            learning_rate=record["Hyperparams"]["opt_base_learning_rate"],
            warmup_epochs=record["Hyperparams"]["opt_learning_rate_warmup_epochs"],
            warmup_factor=record["Hyperparams"]["opt_learning_rate_warmup_factor"],
            epochs=tuple(sorted(record["Epochs to converge"])),
            least_epochs=float(record["Min Epochs"]),
        )
        for record in (checker.pruned_rcp_data if pruned else checker.rcp_data).values()
    ]


def expectation(points: Sequence[ReferencePoint], batch_size: int) -> Expectation:
    """Return epochs, learning rate and warm-up for any global batch size.

    Values are interpolated linearly between points; outside, those of the nearest point are used.
    """
    sizes = [point.batch_size for point in points]

    names = ("mean_epochs", "learning_rate", "warmup_epochs", "warmup_factor")
    values = {
        # Outside the points np.interp does not extrapolate, but returns the nearest value.
        name: float(np.interp(batch_size, sizes, [getattr(point, name) for point in points]))
        for name in names
    }
    if batch_size in sizes:
        basis = "measured"
    elif batch_size < sizes[0]:
        basis = f"below the smallest point, {sizes[0]}: its values"
    elif batch_size > sizes[-1]:
        basis = f"above the largest point, {sizes[-1]}: its values, expect more epochs"
    else:
        below, above = next(pair for pair in pairwise(sizes) if pair[1] > batch_size)
        basis = f"between {below} and {above}"
    is_within = sizes[0] <= batch_size <= sizes[-1]
    return Expectation(batch_size=batch_size, basis=basis, is_within=is_within, **values)
