"""A training step, phase by phase, by any of the engines and with any one thing changed."""

from collections.abc import Iterator
from itertools import repeat

import torch
from torchvision.ops import FrozenBatchNorm2d

from data.dataset import Batch
from profiling.ablate.recipes.phase_stopwatch import PhaseStopwatch
from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, autocast_forward, prepare_training
from retinanet.engine.ipex_engine import import_ipex, use_frozen_norms
from retinanet.engine.optimizer import make_optimizer
from retinanet.training.loop import StepResult, require_finite, train_one_epoch
from retinanet.training.start import build_model

LEARNING_RATE = 1e-4


def prepare(
    workload: Workload,
    *,
    engine: str = "torch",
    precision: str,
    norm: str = "own",
    focal_form: str = "auto",
    optimizer: str = "adam",
    layout: str = "channels_last",
    trains_frozen: bool = False,
    classes: int = 0,
) -> Prepared:
    """Adam, frozen norms, three trainable layers, one batch again and again.

    Args:
        workload: The batch.
        engine: `plain` (the model's own modules under autocast), `ipex` or `torch` (ours).
        precision: `bf16` or `float32`.
        norm: `torchvision` or `own`: with ipex, whose frozen norm it is.
        focal_form: See `retinanet.loss.focal_loss`.
        optimizer: See `make_optimizer`.
        layout: `channels_last` or `channels_first`, of images and weights.
        trains_frozen: Whether gradients of the frozen layers are computed, and thrown away.
        classes: Instead of the workload's, if not 0.
    """
    workload = Workload(**{**vars(workload), "classes": classes or workload.classes})
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    batch = make_batch(workload)
    if layout == "channels_first":
        model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        batch = batch._replace(images=batch.images.contiguous())
    steps = make_optimizer(
        model, name=optimizer, learning_rate=LEARNING_RATE, fused=engine != "ipex"
    )
    if trains_frozen:
        for parameter in model.parameters():
            parameter.requires_grad_()
    if engine == "plain":
        prepared = PreparedTraining(model, steps, autocast_forward(model, precision=precision))
    else:
        prepared = prepare_training(model, steps, engine=engine, precision=precision)
    if engine == "ipex" and norm == "torchvision":
        own = import_ipex().nn.FrozenBatchNorm2d
        use_frozen_norms(prepared.model, FrozenBatchNorm2d, instead_of=own)
    stopwatch = PhaseStopwatch()
    taken = steps_of(prepared, batch, stopwatch, focal_form=focal_form)

    def run() -> dict[str, float]:
        loss = require_finite(next(taken)).loss
        if trains_frozen:  # they are not the optimizer's, which lets go of its own
            model.zero_grad(set_to_none=True)
        return {"loss value": loss, **stopwatch.laps()}

    return Prepared(run)


def steps_of(
    prepared: PreparedTraining, batch: Batch, stopwatch: PhaseStopwatch, *, focal_form: str
) -> Iterator[StepResult]:
    """Steps on one batch, as many as are asked for, with the stopwatch beside."""
    watched = PreparedTraining(
        prepared.model, prepared.optimizer, stopwatch.watching(prepared.forward)
    )
    return train_one_epoch(
        watched,
        repeat(batch),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
        phases=stopwatch,
    )
