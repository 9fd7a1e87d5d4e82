"""Training in BF16 beside training in float32."""

from random import Random

import numpy as np
import pytest
import torch

from data.dataset import Batch, Sample, collate
from data.synthetic import draw_scene
from data.transforms import resize_image, scale_boxes
from retinanet.engine.engines import prepare_training
from retinanet.engine.optimizers import make_optimizer
from retinanet.training.loop import train_one_epoch
from tests.retinanet.training.tiny_steps import make_model
from tests.support.fast_precision import needs_bf16

SIZE = 64
STEPS = 30
RATE = 5e-5


def synthetic_batches() -> list[Batch]:
    """Return batches of two synthetic images each."""
    random = Random(4)
    return [collate([draw_sample(random) for _ in range(2)]) for _ in range(STEPS)]


def draw_sample(random: Random) -> Sample:
    """Return a synthetic image that has objects."""
    while True:
        picture, objects = draw_scene(random)
        if objects:
            break
    original_size = (picture.height, picture.width)
    boxes = torch.tensor([box for _, box in objects])
    target = {
        "boxes": scale_boxes(boxes, original_size=original_size, size=(SIZE, SIZE)),
        "labels": torch.tensor([kind for kind, _ in objects]),
    }
    return Sample(resize_image(np.array(picture), (SIZE, SIZE)), target, 0, original_size)


def train_losses(*, precision: str, convolutions: str = "auto") -> list[float]:
    """Train with MLPerf's recipe: frozen norms, three trainable layers, Adam, warm-up."""
    model = make_model(norm="frozen", num_classes=6, trainable_layers=3)
    optimizer = make_optimizer(model, name="adam", learning_rate=RATE)
    prepared = prepare_training(
        model, optimizer, engine="torch", precision=precision, convolutions=convolutions
    )
    steps = train_one_epoch(
        prepared,
        synthetic_batches(),
        learning_rate=lambda done: RATE * (done + 1) / STEPS,
        first_step=0,
    )
    return [step.loss for step in steps]


@pytest.fixture(scope="module")
def float32_losses() -> list[float]:
    return train_losses(precision="float32")


@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize(
    "convolutions", ["auto", pytest.param("onednn", marks=pytest.mark.exhaustive)]
)
def test_bf16_loss_of_30_steps_is_within_1_percent_of_float32(
    convolutions: str, float32_losses: list[float]
) -> None:
    losses = train_losses(precision="bf16", convolutions=convolutions)
    assert len(losses) == STEPS
    assert losses != float32_losses
    assert losses == pytest.approx(float32_losses, rel=0.01)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.02, (
        "the loss did not fall enough for a comparison"
    )
