"""A training step of torchvision's RetinaNet, as its users write it."""

import math

import torch
from torch.optim import Adam
from torchvision.models.detection import retinanet

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.compiled import compile_parts, compiled_bytes, uncounted
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.recipes.torchvision_model import torchvision_model
from profiling.bench.workload import Workload
from profiling.byte_counter import CurrentPhase
from retinanet.engine.precision import autocast


def prepare(workload: Workload, *, precision: str = "bf16", compiled: bool = False) -> Prepared:
    """Under autocast for "bf16"; channels_last, torch's plain Adam, images in [0, 1] at hand.

    `compiled`: backbone, head and focal loss by torch.compile.
    """
    model = torchvision_model(workload)
    model.load_state_dict(make_weights(workload))
    model.to(memory_format=torch.channels_last).train()
    optimizer = Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    batch = make_batch(workload)
    images = list(batch.images.contiguous() / 255)
    if compiled:
        compile_parts(model)
        retinanet.sigmoid_focal_loss = uncounted(torch.compile(retinanet.sigmoid_focal_loss))
    phase = CurrentPhase()
    # Its forward pass computes the loss as well; `phase` surrounds that part.
    model.compute_loss = phase.phase("loss")(model.compute_loss)

    def step() -> dict[str, float]:
        with autocast(precision), phase.phase("forward"):
            losses = model(images, batch.targets)
            loss = sum(losses.values(), torch.zeros(()))
        if not math.isfinite(loss.item()):
            raise ArithmeticError(f"loss {loss.item()}")
        with phase.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase.phase("optimizer"):
            optimizer.step()
        return {"loss": loss.item()}

    return Prepared(step, phase=phase, compiled_bytes=compiled_bytes if compiled else None)
