"""The count of what a forward pass keeps, against torch's own account of a real one."""

import pytest
import torch
from torch import Tensor

from data.dataset import Batch
from retinanet.config import ModelConfig, TrainingConfig
from retinanet.engine.engines import prepare_training
from retinanet.preflight.memory import (
    StepShape,
    casted_weights,
    index_bytes,
    kept_values,
    model_bytes,
)
from retinanet.training.build import build_model, build_optimizer
from retinanet.training.loop import batch_losses

CLASSES, SIZE = 80, 128


def kept_by_torch(settings: ModelConfig, *, precision: str) -> int:
    """Bytes of all tensors that autograd keeps, but for those of the model. [bytes]"""
    model = build_model(settings, num_classes=CLASSES, weights=None)
    optimizer = build_optimizer(TrainingConfig(), model, engine="torch")
    prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
    own = {one.untyped_storage().data_ptr() for one in model.state_dict().values()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)
    target = {"boxes": torch.tensor([[8.0, 8.0, 60.0, 60.0]]), "labels": torch.tensor([0])}
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = batch_losses(prepared, Batch(images, [target], [1], [(SIZE, SIZE)]))
    assert all(loss.requires_grad for loss in losses.values())  # the graph is alive until here
    return sum(kept.values())


@pytest.mark.parametrize(("layers", "norm"), [(3, "frozen"), (5, "batch")])
def test_the_count_is_torchs_own_to_one_part_in_a_hundred(layers: int, norm: str) -> None:
    settings = ModelConfig(norm=norm, trainable_layers=layers)  # type: ignore[arg-type]
    shape = StepShape(
        image_size=SIZE,
        batch_size=1,
        evaluation_batch_size=1,
        num_classes=CLASSES,
        trainable_layers=layers,
        norm=norm,
        precision="float32",
        engine="torch",
        focal_loss="auto",
    )
    sizes = model_bytes(settings, TrainingConfig(), num_classes=CLASSES)
    values = kept_values(SIZE, trainable_layers=layers, norm=norm, num_classes=CLASSES)
    # What frozen layers' folded weights take is not autograd's.
    frozen = sizes.backbone - sizes.trained_backbone
    weights = casted_weights(sizes, shape) - frozen
    expected = 4 * values + index_bytes(SIZE, trainable_layers=layers) + weights
    measured = kept_by_torch(settings, precision="float32")
    assert measured == pytest.approx(expected, rel=0.01)
