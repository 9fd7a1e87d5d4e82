"""What is trained until which target, and the epochs that it takes."""

from collections.abc import Callable
from dataclasses import dataclass

from launch.tune.epochs import EpochsModel
from launch.tune.reference_epochs import epochs_of_mlperf
from retinanet.mlperf.reference_points import expectation, reference_points
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES, Rules

CLASSES = 264
"""Of MLPerf's part of OpenImages v6."""


@dataclass(frozen=True, kw_only=True)
class TrainedData:
    """A data set, and what is known of trainings on it."""

    config: str
    """The configuration that trains on it."""
    images: int
    evaluated_images: int
    classes: int
    epochs: EpochsModel
    settings: Callable[[int], list[str]]
    """From a global batch size to the `section.field=value` that it asks for."""


def openimages(rules: Rules) -> TrainedData:
    """MLPerf's part of OpenImages v6, until mAP 0.34."""

    def settings(batch_size: int) -> list[str]:
        found = expectation(reference_points(rules), batch_size)
        return [
            f"training.learning_rate={found.learning_rate:.3g}",
            f"training.warmup_epochs={found.warmup_epochs:g}",
            f"training.warmup_factor={found.warmup_factor:g}",
        ]

    return TrainedData(
        config="openimages.yaml",
        images=TRAINING_IMAGES,
        evaluated_images=VALIDATION_IMAGES,
        classes=CLASSES,
        epochs=epochs_of_mlperf(rules),
        settings=settings,
    )
