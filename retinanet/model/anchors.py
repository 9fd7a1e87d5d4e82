"""Anchors: the boxes from which detections are regressed, nine at every place of every level.

Boxes are `xyxy` in pixels, float, with x1 <= x2 and y1 <= y2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BASE_SIZES = (32, 64, 128, 256, 512)
"""Square root of an anchor's area in pixels, for P3 to P7 (Lin et al., Focal Loss, section 4)."""
OCTAVES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
ASPECT_RATIOS = (0.5, 1.0, 2.0)
ANCHORS_PER_LOCATION = len(OCTAVES) * len(ASPECT_RATIOS)


STRIDES = (8, 16, 32, 64, 128)
"""Pixels of the input for each place of P3 to P7."""


def feature_sizes_of(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return (height, width) of P3 to P7 for an input of a size: each level halves, rounded up."""
    height, width = image_size
    return [(-(-height // stride), -(-width // stride)) for stride in STRIDES]


def anchors_for(
    image_size: tuple[int, int],
    feature_sizes: Sequence[tuple[int, int]],
    *,
    device: torch.device | None = None,
) -> list[Tensor]:
    """Return the anchors of every level, for one geometry.

    `image_size` and `feature_sizes` are (height, width), the latter one for each of P3 to P7.
    Returns for each level float32 [H * W * 9, 4] xyxy pixels of the network's input, ordered as
    the heads' outputs: rows, columns, aspect ratios, octaves. They may reach out of the image.
    The numbers are those of torchvision's AnchorGenerator: strides are whole numbers of pixels
    and the first anchor is centred on the image's corner.
    """
    assert len(feature_sizes) == len(BASE_SIZES), f"expected P3 to P7, got {feature_sizes}"
    levels = []
    for base_size, (rows, columns) in zip(BASE_SIZES, feature_sizes, strict=True):
        ys = torch.arange(rows, dtype=torch.float32) * (image_size[0] // rows)
        xs = torch.arange(columns, dtype=torch.float32) * (image_size[1] // columns)
        y, x = torch.meshgrid(ys, xs, indexing="ij")
        places = torch.stack((x, y, x, y), dim=-1)
        levels.append((places[:, :, None] + _cell_anchors(base_size)).reshape(-1, 4).to(device))
    return levels


def _cell_anchors(base_size: int) -> Tensor:
    """Return float32 [9, 4] xyxy around the origin, rounded to whole pixels as torchvision does."""
    # torchvision's default generator truncates the sizes, which MLPerf's reference inherits.
    sizes = torch.tensor([int(base_size * octave) for octave in OCTAVES], dtype=torch.float32)
    height_factors = torch.tensor(ASPECT_RATIOS, dtype=torch.float32).sqrt()
    heights = torch.outer(height_factors, sizes).flatten()
    widths = torch.outer(1 / height_factors, sizes).flatten()
    return (torch.stack((-widths, -heights, widths, heights), dim=1) / 2).round()


MAX_LOG_SCALE = math.log(1000.0 / 16)
"""Largest log of a size ratio that is decoded (torchvision's BoxCoder): exp must not overflow."""


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the deltas that lead from `anchors` to `boxes`.

    Arguments are [..., 4] xyxy pixels with positive widths and heights. Returns [..., 4]
    (dx, dy, dw, dh): centre offsets in anchor sizes, and logs of the size ratios
    (Girshick et al., R-CNN, appendix C, eq. 6-9; torchvision's BoxCoder with weights 1).
    """
    box_centers, box_sizes = _centers_and_sizes(boxes)
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    offsets = (box_centers - anchor_centers) / anchor_sizes
    return torch.cat((offsets, torch.log(box_sizes / anchor_sizes)), dim=-1)


def decode_boxes(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Return the boxes that `deltas` describe: the inverse of `encode_boxes`.

    `deltas` [..., 4] (dx, dy, dw, dh), `anchors` [..., 4] xyxy pixels. dw and dh are capped at
    log(1000 / 16). Returns [..., 4] xyxy pixels, not clipped to any image.
    """
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    centers = deltas[..., :2] * anchor_sizes + anchor_centers
    half_sizes = 0.5 * (deltas[..., 2:].clamp(max=MAX_LOG_SCALE).exp() * anchor_sizes)
    return torch.cat((centers - half_sizes, centers + half_sizes), dim=-1)


def clip_boxes(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Clip `boxes` [..., 4] xyxy pixels to an image of `image_size` (height, width)."""
    height, width = image_size
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))


def _centers_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return centres (x, y) and sizes (width, height), each [..., 2]."""
    sizes = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sizes, sizes
