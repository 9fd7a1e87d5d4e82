"""Box arithmetic. Boxes are `xyxy` in pixels, float, with x1 <= x2 and y1 <= y2."""

import math

import torch
from torch import Tensor

MAX_LOG_SCALE = math.log(1000.0 / 16)
"""Largest log of a size ratio that is decoded (torchvision's BoxCoder): exp must not overflow."""


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """The deltas that lead from `anchors` to `boxes`.

    Arguments are [..., 4] xyxy pixels with positive widths and heights. Returns [..., 4]
    (dx, dy, dw, dh): centre offsets in anchor sizes, and logs of the size ratios
    (Girshick et al., R-CNN, appendix C, eq. 6-9; torchvision's BoxCoder with weights 1).
    """
    box_centers, box_sizes = _centers_and_sizes(boxes)
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    offsets = (box_centers - anchor_centers) / anchor_sizes
    return torch.cat((offsets, torch.log(box_sizes / anchor_sizes)), dim=-1)


def decode_boxes(deltas: Tensor, anchors: Tensor) -> Tensor:
    """The boxes that `deltas` describe: the inverse of `encode_boxes`.

    `deltas` [..., 4] (dx, dy, dw, dh), `anchors` [..., 4] xyxy pixels. dw and dh are capped at
    log(1000 / 16). Returns [..., 4] xyxy pixels, not clipped to any image.
    """
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    centers = deltas[..., :2] * anchor_sizes + anchor_centers
    half_sizes = 0.5 * (deltas[..., 2:].clamp(max=MAX_LOG_SCALE).exp() * anchor_sizes)
    return torch.cat((centers - half_sizes, centers + half_sizes), dim=-1)


def clip_boxes(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """`boxes` [..., 4] xyxy pixels, moved inside an image of `image_size` (height, width)."""
    height, width = image_size
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))


def resize_boxes(boxes: Tensor, old_size: tuple[int, int], new_size: tuple[int, int]) -> Tensor:
    """`boxes` [..., 4] xyxy pixels of an image resized from `old_size` to `new_size`.

    Sizes are (height, width). Nothing is clipped.
    """
    y_scale = new_size[0] / old_size[0]
    x_scale = new_size[1] / old_size[1]
    return boxes * boxes.new_tensor([x_scale, y_scale, x_scale, y_scale])


def _centers_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (x, y) and sizes (width, height), each [..., 2]."""
    sizes = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sizes, sizes
