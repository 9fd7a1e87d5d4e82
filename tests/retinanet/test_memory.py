"""The memory estimate, compared with the tensors that autograd saves in a real step."""

from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from data.dataset import Batch
from launch.limits import FreeMemory
from retinanet.config_file import load_config
from retinanet.config_sections import EngineConfig, ModelConfig, TrainingConfig
from retinanet.config_types import BEST_COCO_DETECTOR, LogitCopies, field_marks
from retinanet.engine.engines import prepare_training
from retinanet.memory import (
    BYTES,
    forward_values,
    images_that_fit,
    model_bytes,
    training_bytes,
    training_images,
)
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.checkpoint import optimizer_tensors
from retinanet.training.ema import WeightAverage
from retinanet.training.loop import batch_losses
from tests.support.fast_precision import FAST_PRECISION

CLASSES, SIZE, IMAGES = 80, 128, 3


def saved_by_autograd(settings: ModelConfig, *, precision: str) -> int:
    """Return the bytes of all maps that autograd saves in a step: tensors with a row per image."""
    model = build_model(settings, num_classes=CLASSES, weights=None)
    optimizer = build_optimizer(TrainingConfig(), model, engine="torch")
    prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim() > 1 and len(tensor) == IMAGES:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.zeros(IMAGES, 3, SIZE, SIZE, dtype=torch.uint8)
    target = {"boxes": torch.tensor([[8.0, 8.0, 60.0, 60.0]]), "labels": torch.tensor([0])}
    batch = Batch(images, [target] * IMAGES, [1] * IMAGES, [(SIZE, SIZE)] * IMAGES)
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = batch_losses(prepared, batch)
    assert all(loss.requires_grad for loss in losses.values())  # the graph is alive until here
    return sum(saved.values())


@pytest.mark.parametrize(
    ("layers", "norm", "precision", "others"),
    [
        pytest.param(3, "frozen", FAST_PRECISION, {}, marks=pytest.mark.slow),
        pytest.param(5, "batch", FAST_PRECISION, {}, marks=pytest.mark.slow),
        pytest.param(3, "frozen", FAST_PRECISION, {"weights": BEST_COCO_DETECTOR},
                     marks=pytest.mark.slow),
        pytest.param(0, "frozen", "float32", {}, marks=pytest.mark.exhaustive),
        pytest.param(3, "frozen", "float32", {}, marks=pytest.mark.exhaustive),
        pytest.param(5, "batch", "float32", {}, marks=pytest.mark.exhaustive),
        pytest.param(5, "batch", "float32", {"backbone": "resnet101"},
                     marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_estimated_maps_are_within_one_percent_of_autograds(
    layers: int, norm: str, precision: str, others: dict[str, Any]
) -> None:
    settings = ModelConfig(norm=norm, trainable_layers=layers, **others)  # type: ignore[arg-type]
    values = forward_values(settings, (SIZE, SIZE), num_classes=CLASSES)
    measured = saved_by_autograd(settings, precision=precision)
    assert measured == pytest.approx(IMAGES * values.bytes(BYTES[precision]), rel=0.01)


@pytest.mark.slow
def test_memory_grows_with_the_area_and_with_classes() -> None:
    def image(*overrides: str, classes: int = 80) -> int:
        return training_bytes(
            load_config("demo.yaml", overrides), num_classes=classes, engine="torch"
        )

    small, large = image("data.image_size=256"), image("data.image_size=512")
    assert large == pytest.approx(4 * small, rel=0.01)
    assert image("data.image_size=256", classes=264) > small
    assert image("data.image_size=256", "engine.focal_loss=reference") > 1.5 * small


def test_every_form_of_the_focal_loss_has_a_number_of_logit_copies() -> None:
    forms = get_args(get_type_hints(EngineConfig)["focal_loss"])
    assert set(field_marks(EngineConfig, LogitCopies)["focal_loss"].by_value) == set(forms)


OPTIMIZERS = (
    TrainingConfig(),
    TrainingConfig(optimizer="sgd", momentum=0.9),
    TrainingConfig(optimizer="adamw", weight_decay=0.01, ema=0.99),
)


@pytest.mark.slow
def test_estimated_sizes_equal_a_real_model_and_optimizer() -> None:
    settings = ModelConfig(norm="batch", trainable_layers=1)
    model = build_model(settings, num_classes=3, weights=None)
    trained = [value for value in model.parameters() if value.requires_grad]
    body = [value for value in model.backbone.body.parameters() if value.requires_grad]
    running = [
        value
        for name, value in model.state_dict().items()
        if ".layer4." in name and ".running_" in name
    ]
    for value in trained:
        value.grad = torch.zeros_like(value)
    for training in OPTIMIZERS:
        optimizer = build_optimizer(training, model, engine="torch")
        optimizer.step()
        slots = optimizer_tensors(model, optimizer).values()
        sizes = model_bytes(settings, training, num_classes=3)
        assert sizes.state == sum(value.nbytes for value in model.state_dict().values())
        assert sizes.trained == sum(value.nbytes for value in trained)
        assert sizes.trained_backbone == sum(value.nbytes for value in body)
        averages = WeightAverage(model, decay=0.99)
        assert sizes.statistics == (2 if training.ema else 1) * sum(v.nbytes for v in running)
        averaged = sum(value.nbytes for value in averages.tensors.values())
        # All norms' statistics are averaged, those of frozen layers too.
        assert sizes.average == pytest.approx(averaged if training.ema else 0, rel=0.01)
        assert sizes.optimizer == sum(slot.nbytes for slot in slots), training


GB = 10**9
CONFIG = load_config("demo.yaml", ["training.batch_size=4", "data.image_size=800"])


def fitting(available_gb: float, *, local_ranks: int = 1) -> int:
    available = FreeMemory(size=round(available_gb * GB), of="this host")
    images = images_that_fit(
        CONFIG, num_classes=80, engine="torch", local_ranks=local_ranks, available=available
    )
    assert images is not None
    return images


def test_even_batch_fits_without_free_memory() -> None:
    assert fitting(0) == fitting(0.5) == 4


def test_more_memory_fits_more_images_and_ranks_share_it() -> None:
    assert fitting(1000) > fitting(100) > fitting(20) > 4
    assert fitting(100, local_ranks=8) < fitting(100, local_ranks=2) < fitting(100)


@pytest.mark.parametrize(("split", "images"), [("even", 2), ("speed", 2), ("[1, 3]", 3)])
def test_estimate_is_for_the_rank_with_most_images(split: str, images: int) -> None:
    settings = ["training.batch_size=2", f"distributed.batch_split={split}"]
    assert training_images(load_config("demo.yaml", settings)) == images


def test_unknown_free_memory_sets_no_limit() -> None:
    arguments = {"num_classes": 80, "engine": "torch", "local_ranks": 1}
    assert images_that_fit(CONFIG, available=None, **arguments) is None  # type: ignore[arg-type]
