"""A training step of ours: the functions that `train.py` runs."""

from collections.abc import Iterator
from itertools import repeat

import torch

from data import Batch, normalize
from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward, prepare_training
from retinanet.engine.optimizer import make_optimizer
from retinanet.loss import detection_loss
from retinanet.training.loop import train_one_epoch, update_weights
from retinanet.training.start import build_model

LEARNING_RATE = 1e-4


def prepare(
    workload: Workload,
    *,
    engine: str = "torch",
    folded: bool = True,
    fused_adam: bool = True,
    focal_form: str = "auto",
) -> Prepared:
    """BF16, Adam, frozen norms, three trainable layers.

    `folded`, `fused_adam` and `focal_form` take one thing away from the engine.
    """
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused_adam)
    prepared = prepare_training(model, optimizer, engine=engine, precision="bf16")
    if not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = PreparedTraining(prepared.model, prepared.optimizer, plain)
    batch = make_batch(workload)
    losses = (
        trained_losses(prepared, batch)
        if focal_form == "auto"
        else losses_with_form(prepared, batch, focal_form=focal_form)
    )
    return Prepared(lambda: {"loss": next(losses)})


def trained_losses(prepared: PreparedTraining, batch: Batch) -> Iterator[float]:
    """A training step for each loss."""
    steps = train_one_epoch(
        prepared, repeat(batch), learning_rate=lambda _: LEARNING_RATE, first_step=0
    )
    return (step.loss for step in steps)


def losses_with_form(
    prepared: PreparedTraining, batch: Batch, *, focal_form: str
) -> Iterator[float]:
    """The same with a form of the focal loss that training does not choose."""
    prepared.model.train()
    size = batch.images.shape[-2], batch.images.shape[-1]
    while True:
        outputs = prepared.forward(normalize(batch.images))
        anchors = prepared.model.anchors(size, outputs.feature_sizes)
        losses = detection_loss(outputs, anchors, batch.targets, focal_form=focal_form)
        loss = sum(losses.values(), torch.zeros(()))
        loss.backward()
        update_weights(prepared.optimizer, learning_rate=LEARNING_RATE)
        yield loss.item()
