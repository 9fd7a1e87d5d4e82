"""Transforms of images and boxes: resized to the network's input, mirrored, and normalized.

The input is a square or a rectangle. `square` stretches an image to it; `letterbox` keeps the
aspect ratio: the image is at the top left, and the rest has `PADDING`.

Shapes: N images, H and W the input's height and width in pixels, B boxes (xyxy).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from data.annotations import MINIMUM_SIDE, Resize, Size, content_size

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CACHED_FLOATS = 1 << 18  # 1 MB, as a core's second-level cache has or nearly so

PADDING = tuple(round(255 * mean) for mean in IMAGENET_MEAN)
"""The colour that is 0 after normalization, to a third of a level."""


def fit_image(image: NDArray[np.uint8], *, size: Size, resize: Resize) -> Tensor:
    """Return `[3, *size]` uint8, the network's input without augmentation, of pixels RGB uint8."""
    height, width = image.shape[:2]
    content = resize_image(image, content_size((height, width), size=size, resize=resize))
    return pad_image(content, size=size)


def pad_image(image: Tensor, *, size: Size, top: int = 0, left: int = 0) -> Tensor:
    """Return a rectangle `[3, *size]` of `PADDING` with a smaller image `[3, …]` uint8 on it."""
    height, width = image.shape[1:]
    if (height, width) == size:
        return image
    padded = torch.tensor(PADDING, dtype=torch.uint8).repeat(*size, 1).permute(2, 0, 1)
    padded[:, top : top + height, left : left + width] = image
    return padded


def resize_image(image: NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
    """Resize `[H, W, 3]` uint8 to `[3, *size]` uint8; `size` is (height, width).

    Plain bilinear without antialiasing, `align_corners=False`, as the MLPerf reference and
    torchvision's GeneralizedRCNNTransform do. Integer arithmetic: within one level of float's.
    The result lies in memory as the image did, channels last.
    """
    # Permuted as a batch of one, and not unsqueezed after: only so does torch see channels_last
    # strides, for which it has a vectorized uint8 kernel.
    batch = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
    return F.interpolate(batch, size=size, mode="bilinear", align_corners=False)[0]


def scale_boxes(
    boxes: Tensor, *, original_size: tuple[float, float], size: tuple[int, int]
) -> Tensor:
    """Map boxes `[B, 4]` from an image of `original_size` to one of `size`, (height, width)."""
    (height, width), (new_height, new_width) = original_size, size
    ratios = (new_width / width, new_height / height) * 2
    return boxes * boxes.new_tensor(ratios)


def clip_boxes(boxes: Tensor, *, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Clip boxes `[B, 4]` to (height, width); also return which `[B]` bool still have an area."""
    height, width = size
    clipped = boxes.clamp(min=0).minimum(boxes.new_tensor((width, height) * 2))
    sides = clipped[:, 2:] - clipped[:, :2]
    return clipped, (sides >= MINIMUM_SIDE).all(dim=1)


def flip(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror `[3, H, W]` and its boxes `[B, 4]` left to right."""
    width = image.shape[-1]
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    return image.flip(-1), torch.stack([width - x2, y1, width - x1, y2], dim=1)


def normalize(images: Tensor) -> Tensor:
    """Return `[N, 3, H, W]` uint8 as float32 with ImageNet's mean and deviation, same layout."""
    mean = torch.tensor(IMAGENET_MEAN, device=images.device)
    std = torch.tensor(IMAGENET_STD, device=images.device)
    scale, offset = 1 / (255 * std), mean / std
    if not images.is_contiguous(memory_format=torch.channels_last):
        return images.to(torch.float32).mul_(scale.view(1, 3, 1, 1)).sub_(offset.view(1, 3, 1, 1))
    # Four times as fast as operators on `[N, 3, H, W]`: for those torch's innermost loop has three
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
