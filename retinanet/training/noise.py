"""A batch of noise, for passes whose numbers nobody looks at."""

import torch

from data.dataset import Batch

BOX = (0.2, 0.2, 0.6, 0.7)
"""The object of each image, in shares of its side. [xyxy]"""


def noise(images: int, size: int) -> Batch:
    """So many images of `size` × `size` pixels; nothing is drawn from torch's own generator."""
    generator = torch.Generator().manual_seed(0)
    shape = (images, 3, size, size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    target = {"boxes": torch.tensor([BOX]) * size, "labels": torch.tensor([0])}
    return Batch(
        pixels.contiguous(memory_format=torch.channels_last),
        [target] * images,
        image_ids=[0] * images,
        original_sizes=[(size, size)] * images,
    )
