"""Batches of noise and prepared models, to train a few steps without files."""

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from data.dataset import Batch
from retinanet.engine.engines import PreparedTraining, prepare_training
from retinanet.model.retinanet import RetinaNet

SIZE = 64


def make_batch(*, seed: int, images: int = 1) -> Batch:
    """Return noise with one box per image, of a size that some anchor matches."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (images, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    corners = torch.rand((images, 1, 2), generator=generator) * 20
    targets = [
        {
            "boxes": torch.cat([corner, corner + 36], dim=1),
            "labels": torch.randint(0, 3, (1,), generator=generator),
        }
        for corner in corners
    ]
    ids = [seed * 10 + index for index in range(images)]
    memory = torch.channels_last
    return Batch(pixels.contiguous(memory_format=memory), targets, ids, [(SIZE, SIZE)] * images)


def parameters_that_train(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def prepared(
    model: RetinaNet, optimizer: Optimizer | None = None, *, precision: str = "float32"
) -> PreparedTraining:
    optimizer = optimizer or SGD(parameters_that_train(model), lr=0.0)
    return prepare_training(model, optimizer, engine="torch", precision=precision)
