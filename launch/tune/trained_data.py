"""What is trained: MLPerf's part of OpenImages, or the data of any configuration."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from retinanet.config_file import load_config
from retinanet.errors import InputError
from retinanet.mlperf.rules import TRAINING_IMAGES, VALIDATION_IMAGES

OPENIMAGES = "openimages"
"""The data whose epochs MLPerf's points tell."""
CLASSES = 264
"""Of MLPerf's part of OpenImages v6."""


@dataclass(frozen=True, kw_only=True)
class TrainedData:
    """A data set, and the configuration that trains on it."""

    name: str
    """As `--data` has it."""
    config: str
    images: int
    """Of an epoch."""
    evaluated_images: int
    classes: int


def trained_data(name: str, overrides: Sequence[str], *, console: Console) -> TrainedData:
    """The data of a name that `--data` may have.

    Args:
        name: `openimages`, or a configuration: a path, or a name in `configs/`.
        overrides: On top of the configuration.
        console: Shows the progress of making an index, which annotations need once.

    Raises:
        InputError: The configuration is wrong, or its data is not there.
    """
    return openimages() if name == OPENIMAGES else configured(name, overrides, console=console)


def openimages() -> TrainedData:
    """MLPerf's part of OpenImages v6."""
    return TrainedData(
        name=OPENIMAGES,
        config="openimages.yaml",
        images=TRAINING_IMAGES,
        evaluated_images=VALIDATION_IMAGES,
        classes=CLASSES,
    )


def configured(name: str, overrides: Sequence[str], *, console: Console) -> TrainedData:
    """The data that a configuration names, or the scenes that it has drawn.

    Raises:
        InputError: The configuration is wrong, or its data is not there.
    """
    from retinanet.training.run_data import open_run_data  # noqa: PLC0415 - loads torch

    config = load_config(name, overrides)
    parts = config.training.gradient_accumulation
    if parts > 1:
        raise InputError(
            f"training.gradient_accumulation={parts}: the planner chooses the global batch; give "
            "training.gradient_accumulation=1"
        )
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        data = open_run_data(config, scenes_folder=Path(folder, "scenes"), console=console)
        return TrainedData(
            name=name,
            config=name,
            images=len(data.train),
            evaluated_images=len(data.validation),
            classes=data.classes.num_classes,
        )
