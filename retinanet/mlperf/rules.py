"""What MLPerf's rule sets call this benchmark, and what they measure it by.

TODO-DOC What MLPerf's closed division leaves to nobody: model, data, schedule and target.

TODO-DOC MLPerf's reference convergence points (RCPs): how many epochs a global batch size takes.

They come inside MLCommons' package, and are what a submission's runs are compared with. Fu et al.
(2023) draw them in Figure 7: larger batches take more epochs, which more machines must make up for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from retinanet.config_types import DEFAULT_BETA1

Rules = Literal["5.1.0", "5.0.0", "4.1.0", "2.1.0"]
"""Rule sets of MLCommons' checkers in which RetinaNet on OpenImages is a benchmark."""

RULES: tuple[Rules, ...] = get_args(Rules)
NEWEST: Rules = "5.1.0"
TRAINING_IMAGES, VALIDATION_IMAGES = 1_170_301, 24_781
"""Of MLPerf's part of OpenImages v6."""
TARGET_MAP = 0.34
RUNS_OF_SUBMISSION = 5
"""Of which the fastest and the slowest do not count."""


def benchmark_name(rules: Rules) -> str:
    """`retinanet`; before rules 5.0 `ssd`, the name of the model that it replaced in rules 2.0."""
    return "retinanet" if rules.startswith("5.") else "ssd"


class Rule(NamedTuple):
    """What one field must be."""

    field: str
    is_kept: Callable[[Any], bool]
    wanted: str


def is_(value: object) -> Callable[[Any], bool]:
    """Whether a field has this value."""
    return lambda found: bool(found == value)


CLOSED = (
    Rule("data.image_size", is_(800), "is 800"),
    Rule("data.images_without_boxes", is_("train"), "is train"),
    Rule("data.on_bad_image", is_("stop"), "is stop"),
    Rule("model.norm", is_("frozen"), "is frozen"),
    Rule("model.trainable_layers", is_(3), "is 3"),
    Rule(
        "model.pretrained_backbone", lambda found: found is not None, "is torchvision, or its file"
    ),
    Rule("training.optimizer", is_("adam"), "is adam"),
    Rule("training.beta1", lambda found: found in ("auto", DEFAULT_BETA1), f"is {DEFAULT_BETA1}"),
    Rule("training.weight_decay", is_(0), "is 0"),
    Rule("training.schedule", is_("constant"), "is constant"),
    Rule("training.clip_gradient_norm", is_(None), "is null"),
    Rule("training.on_nonfinite", is_("stop"), "is stop"),
    Rule("training.max_steps", is_(None), "is null"),
    Rule("training.target_map", is_(TARGET_MAP), f"is {TARGET_MAP}"),
    Rule("evaluation.every", is_(1), "is 1"),
    Rule("distributed.groups", is_(1), "is 1"),
)
"""Batch size, learning rate and warm-up are free (MLPerf Training Rules, Hyperparameters; the
official checker's closed_retinanet.yaml); all else is the reference implementation's. The data set
cannot be told from a configuration: `python -m retinanet mlperf check` counts its images."""


def broken_rules(sections: Mapping[str, Any]) -> list[str]:
    """Which rules a configuration breaks, in words; a section that is itself wrong breaks none.

    Args:
        sections: Their names to objects that have the fields as attributes.
    """
    broken = []
    for rule in CLOSED:
        section, _, name = rule.field.partition(".")
        if section not in sections:
            continue
        found = getattr(sections[section], name)
        if not rule.is_kept(found):
            broken.append(f"{rule.field} {rule.wanted}, not {'null' if found is None else found}")
    return broken


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
    from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker  # noqa: PLC0415

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
