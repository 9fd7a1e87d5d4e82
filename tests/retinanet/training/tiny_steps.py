"""Batches of noise and prepared models, to train a few steps without files."""

import torch
from torch.optim import SGD, Optimizer

from data.annotations import ImageSize, as_size
from data.dataset import Batch
from retinanet.engine.engines import PreparedTraining, prepare_training
from retinanet.model.retinanet import RetinaNet
from tests.retinanet.engine.layers import trainable

SIZE = 64


def make_batch(*, seed: int, images: int = 1, size: ImageSize = SIZE) -> Batch:
    """Return noise with one box per image, of a size that some anchor matches."""
    generator = torch.Generator().manual_seed(seed)
    shape = (images, 3, *as_size(size))
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
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
    return Batch(pixels.contiguous(memory_format=memory), targets, ids, [as_size(size)] * images)


def concatenated(*batches: Batch) -> Batch:
    """Return one batch of all images."""
    return Batch(
        torch.cat([batch.images for batch in batches]),
        [target for batch in batches for target in batch.targets],
        [image_id for batch in batches for image_id in batch.image_ids],
        [size for batch in batches for size in batch.original_sizes],
    )


def make_model(
    *, norm: str = "batch", num_classes: int = 3, trainable_layers: int = 1
) -> RetinaNet:
    """Return a model with random weights, the same in each call."""
    torch.manual_seed(0)
    model = RetinaNet(num_classes=num_classes, norm=norm, trainable_layers=trainable_layers)
    for name, buffer in model.named_buffers():
        if name.endswith("bn3.weight"):  # a frozen norm
            buffer.fill_(0.1)  # keeps random blocks from doubling their inputs
    return model.to(memory_format=torch.channels_last)


def prepared(
    model: RetinaNet, optimizer: Optimizer | None = None, *, precision: str = "float32"
) -> PreparedTraining:
    optimizer = optimizer or SGD(trainable(model), lr=0.0)
    return prepare_training(model, optimizer, engine="torch", precision=precision)
