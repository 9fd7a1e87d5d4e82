"""Transforms of images and boxes: resized to the fixed square, mirrored, and normalized.

Shapes: N images, S the side of the square in pixels, B boxes (xyxy).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from data.annotations import MINIMUM_SIDE

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CACHED_FLOATS = 1 << 18  # 1 MB, as a core's second-level cache has or nearly so


def resize_image(image: NDArray[np.uint8], size: int) -> Tensor:
    """Resize `[H, W, 3]` uint8 to `[3, S, S]` uint8, without keeping the aspect ratio.

    Plain bilinear without antialiasing, `align_corners=False`, as the MLPerf reference and
    torchvision's GeneralizedRCNNTransform do. Integer arithmetic: within one level of float's.
    The result lies in memory as the image did, channels last.
    """
    # Permuted as a batch of one, and not unsqueezed after: only so does torch see channels_last
    # strides, for which it has a vectorized uint8 kernel.
    batch = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    return F.interpolate(batch, size=(size, size), mode="bilinear", align_corners=False)[0]


def scale_boxes(boxes: Tensor, *, original_size: tuple[int, int], size: int) -> Tensor:
    """Map boxes `[B, 4]` from an image of (height, width) pixels onto the square of `size`."""
    height, width = original_size
    ratios = (size / width, size / height, size / width, size / height)
    return boxes * boxes.new_tensor(ratios)


def clip_boxes(boxes: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """Clip boxes `[B, 4]` to the square; also return which `[B]` bool still have an area."""
    clipped = boxes.clamp(min=0, max=size)
    sides = clipped[:, 2:] - clipped[:, :2]
    return clipped, (sides >= MINIMUM_SIDE).all(dim=1)


def flip(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror `[3, H, W]` and its boxes `[B, 4]` left to right."""
    width = image.shape[-1]
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    return image.flip(-1), torch.stack([width - x2, y1, width - x1, y2], dim=1)


def normalize(images: Tensor) -> Tensor:
    """Return `[N, 3, S, S]` uint8 as float32 with ImageNet's mean and deviation, same layout."""
    mean = torch.tensor(IMAGENET_MEAN, device=images.device)
    std = torch.tensor(IMAGENET_STD, device=images.device)
    scale, offset = 1 / (255 * std), mean / std
    if not images.is_contiguous(memory_format=torch.channels_last):
        return images.to(torch.float32).mul_(scale.view(1, 3, 1, 1)).sub_(offset.view(1, 3, 1, 1))
    # Four times as fast as operators on `[N, 3, S, S]`: for those torch's innermost loop has three
    # turns, one for each channel; here it has a row's. And a few rows at once stay in the cache
    # from one operator to the next.
    number, channels, height, width = images.shape
    rows = images.permute(0, 2, 3, 1).reshape(number * height, width * channels)
    normalized = torch.empty(rows.shape, dtype=torch.float32, device=images.device)
    scale, offset = scale.repeat(width), offset.repeat(width)
    at_once = max(1, CACHED_FLOATS // (width * channels))
    for levels, target in zip(rows.split(at_once), normalized.split(at_once), strict=True):
        target.copy_(levels).mul_(scale).sub_(offset)
    return normalized.view(number, height, width, channels).permute(0, 3, 1, 2)
