"""The memory estimate, against torch's own account of a real model and a real forward pass."""

from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from data.dataset import Batch
from launch.limits import FreeMemory
from retinanet.config import EngineConfig, ModelConfig, TrainingConfig
from retinanet.config_file import load_config
from retinanet.config_types import LogitCopies, marks_of
from retinanet.engine.engines import prepare_training
from retinanet.memory import BYTES, forward_values, images_that_fit, model_bytes, training_bytes
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.checkpoint import optimizer_tensors
from retinanet.training.loop import batch_losses
from tests.support.fast_precision import FAST_PRECISION

CLASSES, SIZE, IMAGES = 80, 128, 3


def kept_by_torch(settings: ModelConfig, *, precision: str) -> int:
    """Return the bytes of all maps that autograd keeps of a step: tensors with a row an image."""
    model = build_model(settings, num_classes=CLASSES, weights=None)
    optimizer = build_optimizer(TrainingConfig(), model, engine="torch")
    prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim() > 1 and len(tensor) == IMAGES:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.zeros(IMAGES, 3, SIZE, SIZE, dtype=torch.uint8)
    target = {"boxes": torch.tensor([[8.0, 8.0, 60.0, 60.0]]), "labels": torch.tensor([0])}
    batch = Batch(images, [target] * IMAGES, [1] * IMAGES, [(SIZE, SIZE)] * IMAGES)
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = batch_losses(prepared, batch)
    assert all(loss.requires_grad for loss in losses.values())  # the graph is alive until here
    return sum(kept.values())


@pytest.mark.parametrize("precision", ["float32", FAST_PRECISION])
@pytest.mark.parametrize(("layers", "norm"), [(0, "frozen"), (3, "frozen"), (5, "batch")])
def test_the_count_is_torchs_own_to_one_part_in_a_hundred(
    layers: int, norm: str, precision: str
) -> None:
    settings = ModelConfig(norm=norm, trainable_layers=layers)  # type: ignore[arg-type]
    values = forward_values(SIZE, num_classes=CLASSES, norm=norm, trainable_layers=layers)
    measured = kept_by_torch(settings, precision=precision)
    assert measured == pytest.approx(IMAGES * values.bytes(BYTES[precision]), rel=0.01)


def test_twice_the_side_takes_four_times_the_memory_and_classes_take_some() -> None:
    def image(*words: str, classes: int = 80) -> int:
        return training_bytes(load_config("demo.yaml", words), num_classes=classes, engine="torch")

    small, large = image("data.image_size=256"), image("data.image_size=512")
    assert large == pytest.approx(4 * small, rel=0.01)
    assert image("data.image_size=256", classes=264) > small
    assert image("data.image_size=256", "engine.focal_loss=reference") > 1.5 * small


def test_the_copies_of_the_logits_are_known_for_every_form_of_the_focal_loss() -> None:
    forms = get_args(get_type_hints(EngineConfig)["focal_loss"])
    assert set(marks_of(EngineConfig, LogitCopies)["focal_loss"].by_value) == set(forms)


OPTIMIZERS = (
    TrainingConfig(),
    TrainingConfig(optimizer="sgd", momentum=0.9),
)


def test_the_count_is_that_of_a_real_model_and_optimizer() -> None:
    settings = ModelConfig(norm="batch", trainable_layers=1)
    model = build_model(settings, num_classes=3, weights=None)
    trained = [one for one in model.parameters() if one.requires_grad]
    body = [one for one in model.backbone.body.parameters() if one.requires_grad]
    running = [
        value
        for name, value in model.state_dict().items()
        if ".layer4." in name and ".running_" in name
    ]
    for one in trained:
        one.grad = torch.zeros_like(one)
    for training in OPTIMIZERS:
        optimizer = build_optimizer(training, model, engine="torch")
        optimizer.step()
        kept = optimizer_tensors(model, optimizer).values()
        sizes = model_bytes(settings, training, num_classes=3)
        assert sizes.state == sum(one.nbytes for one in model.state_dict().values())
        assert sizes.trained == sum(one.nbytes for one in trained)
        assert sizes.trained_backbone == sum(one.nbytes for one in body)
        assert sizes.statistics == sum(one.nbytes for one in running)
        assert sizes.optimizer == sum(one.nbytes for one in kept), training


GB = 10**9
CONFIG = load_config("demo.yaml", ["training.batch_size=4", "data.image_size=800"])


def fitting(left_gb: float, *, local_ranks: int = 1) -> int:
    left = FreeMemory(size=round(left_gb * GB), of="this host")
    found = images_that_fit(
        CONFIG, num_classes=80, engine="torch", local_ranks=local_ranks, left=left
    )
    assert found is not None
    return found


def test_where_nothing_is_left_a_rank_keeps_the_even_batch_that_it_has_taken() -> None:
    assert fitting(0) == fitting(0.5) == 4


def test_more_memory_holds_more_images_and_ranks_of_a_host_share_it() -> None:
    assert fitting(1000) > fitting(100) > fitting(20) > 4
    assert fitting(100, local_ranks=8) < fitting(100, local_ranks=2) < fitting(100)


def test_where_nobody_says_what_is_left_there_is_no_limit() -> None:
    arguments = {"num_classes": 80, "engine": "torch", "local_ranks": 1}
    assert images_that_fit(CONFIG, left=None, **arguments) is None  # type: ignore[arg-type]
