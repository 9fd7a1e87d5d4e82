"""A training step of torchvision's RetinaNet, as its users write it."""

import math

import torch
from torch.optim import Adam

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_batch, make_weights
from profiling.bench.recipes.torchvision_model import torchvision_model
from profiling.bench.workload import Workload
from retinanet.engine.precision import autocast


def prepare(workload: Workload, *, precision: str = "bf16") -> Prepared:
    """Under autocast for "bf16"; channels_last, torch's plain Adam, images in [0, 1] at hand."""
    model = torchvision_model(workload)
    model.load_state_dict(make_weights(workload))
    model.to(memory_format=torch.channels_last).train()
    optimizer = Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    batch = make_batch(workload)
    images = list(batch.images.contiguous() / 255)

    def step() -> dict[str, float]:
        with autocast(precision):
            losses = model(images, batch.targets)
            loss = sum(losses.values(), torch.zeros(()))
        if not math.isfinite(loss.item()):
            raise ArithmeticError(f"loss {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    return Prepared(step)
