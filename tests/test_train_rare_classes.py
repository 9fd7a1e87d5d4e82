"""A run that repeats the images of rare classes and weighs them in the loss, and its resumption."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from common.files import read_text
from retinanet.loss import detection
from retinanet.loss.focal import focal_loss
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import Ended, TrainHere
from tests.support.training_runs import assert_same_end, cut_back, read_records

pytestmark = pytest.mark.slow

STEPS, MIDDLE = 8, 3
SETTINGS = (
    "data.scenes.train=8",
    "data.scenes.validation=2",
    "data.image_size=64",
    "data.repeat_rare=1.0",
    "training.class_weights={Bus: 3, House: 0.5}",
    "training.batch_size=1",
    "training.gradient_accumulation=2",
    f"training.max_steps={STEPS}",
    "evaluation.pictures=0",
    f"checkpoint.every={MIDDLE} steps",
    "checkpoint.keep=9",
    "training.optimizer=sgd",
    "engine.precision=float32",
    "launch.threads=1",
)


def settings_in(root: Path, name: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}"]


WEIGHTS: list[torch.Tensor] = []  # those that losses were computed with


@pytest.fixture(scope="module")
def finished(root: Path, train_here: TrainHere) -> Ended:
    def noted(*inputs: Any, class_weights: torch.Tensor, **options: Any) -> torch.Tensor:
        WEIGHTS.append(class_weights)
        return focal_loss(*inputs, class_weights=class_weights, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "focal_loss", noted)
        return train_here(*settings_in(root, "whole"))


def repeat_factors_of_scenes(root: Path) -> list[float]:
    """Return LVIS' factors of the run's images that have boxes, from their JSON."""
    labels = root / "whole" / "scenes" / "train" / "labels" / "openimages-mlperf.json"
    classes: dict[int, set[int]] = {}
    for box in json.loads(labels.read_text())["annotations"]:
        classes.setdefault(box["image_id"], set()).add(box["category_id"])
    count = {c: sum(c in kinds for kinds in classes.values()) for c in range(1, 7)}
    return [max((len(classes) / count[c]) ** 0.5 for c in kinds) for kinds in classes.values()]


def test_epochs_are_as_long_as_repeated_images_make_them(finished: Ended, root: Path) -> None:
    assert finished.code == 0, finished.errors
    places = -(-sum(repeat_factors_of_scenes(root)) // 1)
    steps_per_epoch = places // 2
    assert MIDDLE < 8 / 2 < steps_per_epoch < STEPS
    records = read_records(root / "whole", kind="step")
    epochs = [record["epoch"] for record in records]
    assert epochs == pytest.approx(
        [step / steps_per_epoch for step in range(1, STEPS + 1)], abs=1e-4
    )
    position = read_checkpoint(root / "whole" / "checkpoints" / "last").position
    assert position.images_per_epoch == places


def test_losses_have_the_weights_and_the_run_says_so(finished: Ended, root: Path) -> None:
    assert len(WEIGHTS) == 2 * STEPS
    for weights in WEIGHTS:
        assert weights.tolist() == [1, 3, 1, 0.5, 1, 1]
    shown = " ".join(finished.output.split())
    line = "Bus 3, Balloon 1, Christmas tree 1, Mushroom 1, Umbrella 1, House 0.5"
    assert f"class weights {line}" in shown and " of 8 images, up to " in shown
    environment = json.loads(read_text(root / "whole" / "environment.json"))
    assert environment["rare_classes"]["class weights"] == line
    card = read_text(root / "whole" / "checkpoints" / "last" / "MODEL_CARD.md")
    assert f"| class weights | {line} |" in card and "| repeats | " in card


def test_run_resumed_in_the_middle_of_an_epoch_is_bit_identical(
    finished: Ended, root: Path, train_here: TrainHere
) -> None:
    cut_back(root / "whole", root / "pieces", step=MIDDLE)
    position = read_checkpoint(root / "pieces" / "checkpoints" / "last").position
    assert (position.epoch, position.images) == (0, 2 * MIDDLE)
    arguments = [*settings_in(root, "pieces"), "--resume"]
    refused = train_here(*arguments, "data.repeat_rare=0.9")
    assert refused.code == 2 and "data.repeat_rare was 1.0, is now 0.9" in refused.errors
    assert train_here(*arguments).code == 0
    assert_same_end(root / "pieces", root / "whole", step=STEPS)


def test_unknown_class_ends_the_start_in_one_line(root: Path, train_here: TrainHere) -> None:
    arguments = settings_in(root, "unknown")
    refused = train_here(*arguments, "training.class_weights={Buss: 3}")
    assert (refused.code, refused.errors) == (
        2, "error: training.class_weights: no class 'Buss'; did you mean 'Bus'?\n"
    )  # fmt: skip
