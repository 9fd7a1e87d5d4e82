"""A batch and weights from a seed: the same for every contestant."""

import torch
from torch import Tensor
from torch.nn import functional as F

from data.dataset import Batch
from profiling.bench.workload import Workload
from retinanet.model import RetinaNet

BOXES_PER_IMAGE = 10


def make_batch(workload: Workload) -> Batch:
    """Smooth random pictures with some noise, about as photos are, and boxes of many sizes."""
    generator = torch.Generator().manual_seed(workload.seed)
    size = workload.image_size
    coarse = torch.rand(workload.images, 3, size // 16, size // 16, generator=generator) * 255
    pictures = F.interpolate(coarse, size=(size, size), mode="bicubic")
    pictures += torch.randn(pictures.shape, generator=generator) * 8
    pixels = pictures.clamp(0, 255).to(torch.uint8)
    return Batch(
        images=pixels.contiguous(memory_format=torch.channels_last),
        targets=[_make_target(workload, generator) for _ in range(workload.images)],
        image_ids=list(range(workload.images)),
        original_sizes=[(size, size)] * workload.images,
    )


def _make_target(workload: Workload, generator: torch.Generator) -> dict[str, Tensor]:
    """Sides are from a twentieth of the image to two thirds of it, small ones more often."""
    sides = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 2.6
    sizes = workload.image_size * 0.05 * sides.exp()
    corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * (workload.image_size - sizes)
    labels = torch.randint(workload.classes, (BOXES_PER_IMAGE,), generator=generator)
    return {"boxes": torch.cat((corners, corners + sizes), dim=1), "labels": labels}


def make_weights(workload: Workload) -> dict[str, Tensor]:
    """A detector's `state_dict`: random, with frozen norms that keep activations in bounds."""
    torch.manual_seed(workload.seed)
    weights = RetinaNet(num_classes=workload.classes).state_dict()
    for name, value in weights.items():
        if name.endswith("bn3.weight"):
            value.fill_(0.2)  # else each of the 16 blocks doubles what goes through it
    return weights


def feature_sizes(workload: Workload) -> list[tuple[int, int]]:
    """(H, W) of P3 to P7: every level halves the one before, rounding up."""
    sides = [-(-workload.image_size // stride) for stride in (8, 16, 32, 64, 128)]
    return [(side, side) for side in sides]
