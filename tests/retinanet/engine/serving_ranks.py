"""Runs two ranks: the second one's steps are taken by the first; saves weights to FOLDER.

A plain optimizer takes the same steps for comparison.
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from retinanet.engine.optimizers import make_optimizer
from retinanet.training.async_groups.weights import (
    GroupWeights,
    ServedWeights,
    WeightsServer,
    memory_of_weights,
)

STEPS = 4
MAKE = partial(make_optimizer, name="adam", learning_rate=1e-2)


def make_model() -> nn.Module:
    """Return the model, equal on both ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3))
    return model.to(memory_format=torch.channels_last)


def make_gradients(model: nn.Module, seed: int) -> None:
    """Compute the gradients of a batch that depends on the seed."""
    torch.manual_seed(seed)
    model.zero_grad()
    model(torch.randn(2, 3, 9, 9)).square().mean().backward()


def serve(pair: dist.ProcessGroup) -> None:
    """Serve the weights on rank 0."""
    parameters = list(make_model().parameters())
    memory = memory_of_weights(parameters, optimizer="adam")
    view = partial(
        GroupWeights, memory.place, parameters, optimizer="adam", make=MAKE, timeout_s=30
    )
    weights = view()
    weights.fill(parameters, MAKE(make_model()))
    server = WeightsServer({1: pair}, parameters, view, compress=False, begin_thread=lambda: None)
    server.close(timeout_s=60)
    weights.copy_to(parameters)
    torch.save(parameters, Path(sys.argv[1], "rank0.pt"))


def step(pair: dist.ProcessGroup) -> None:
    """Take steps on rank 1 by the server, and by a plain optimizer with the same gradients."""
    served, plain = make_model(), make_model()
    parameters, optimizer = list(served.parameters()), MAKE(plain)
    weights = ServedWeights(pair, parameters, compress=False)
    weights.copy_to(parameters)  # what the server has
    stalenesses = []
    for number in range(STEPS):
        make_gradients(served, number)
        make_gradients(plain, number)
        optimizer.step()
        gradients = [p.grad for p in parameters if p.grad is not None]
        with weights.held():
            stalenesses.append(weights.step(gradients, learning_rate=1e-2))
            weights.copy_to(parameters)
    weights.close()
    content = (parameters, list(plain.parameters()), stalenesses)
    torch.save(content, Path(sys.argv[1], "rank1.pt"))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert group is not None
    (serve if dist.get_rank() == 0 else step)(group)
    dist.destroy_process_group()
