"""Which anchor is to find which box, and what each anchor is therefore taught."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from retinanet.model.nearby_anchors import anchor_shapes, nearby_anchors

BACKGROUND = -1
IGNORED = -2

FOREGROUND_IOU = 0.5
BACKGROUND_IOU = 0.4

BOXES_AT_ONCE = 32
"""Boxes compared with all anchors in one go: bounds memory in pictures with hundreds of boxes."""


class Assignment(NamedTuple):
    """What the anchors of N images are taught: A_l anchors on level l, of them F_l foreground."""

    classes: list[Tensor]
    """For each level int64 [N, A_l]: the label, or BACKGROUND, or IGNORED."""
    boxes: list[Tensor]
    """For each level [F_l, 4] xyxy pixels: the box of each foreground anchor, in the order of
    `(classes[level] >= 0).nonzero()`."""
    num_foreground: Tensor
    """int64 [N]: foreground anchors of an image, on all levels together."""


def match_anchors(
    anchors: Tensor,
    boxes: Tensor,
    *,
    foreground_iou: float = FOREGROUND_IOU,
    background_iou: float = BACKGROUND_IOU,
) -> Tensor:
    """The index of each anchor's box: int64 [A].

    `anchors` [A, 4] and `boxes` [M, 4] are xyxy pixels; M may be 0. An anchor gets the box it
    overlaps most if their IoU is at least `foreground_iou`; below `background_iou` it is
    BACKGROUND (-1), in between IGNORED (-2). An anchor that is the best (or as good) for some box
    gets the box it overlaps most whatever the IoU, so that no box goes without an anchor
    (torchvision's Matcher with allow_low_quality_matches). Where torchvision lets a box that
    touches no anchor at all turn every such anchor into foreground, such a box is left out here.
    """
    best_iou = anchors.new_zeros(len(anchors))
    matches = torch.zeros(len(anchors), dtype=torch.int64, device=anchors.device)
    best_for_some_box = torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device)
    for start in range(0, len(boxes), BOXES_AT_ONCE):
        iou = box_iou(boxes[start : start + BOXES_AT_ONCE], anchors)  # [boxes, A]
        largest, index = iou.max(dim=0)
        better = largest > best_iou  # not >=: of equally good boxes the first one counts
        matches = torch.where(better, index + start, matches)
        best_iou = torch.where(better, largest, best_iou)
        best_of_box = iou.max(dim=1, keepdim=True).values
        best_for_some_box |= ((iou == best_of_box) & (best_of_box > 0)).any(dim=0)
    is_background = (best_iou < background_iou) & ~best_for_some_box
    is_between = (best_iou >= background_iou) & (best_iou < foreground_iou) & ~best_for_some_box
    return matches.masked_fill(is_background, BACKGROUND).masked_fill(is_between, IGNORED)


@torch.no_grad()
def assign_targets(
    anchors: Sequence[Tensor], targets: Sequence[Mapping[str, Tensor]]
) -> Assignment:
    """Match the anchors of all levels to the boxes of each image.

    `anchors`: for each level [A_l, 4] xyxy pixels, as from `anchors_for`. `targets`: for each
    image `boxes` float32 [M, 4] xyxy pixels of the network's input and `labels` int64 [M]; M may
    be 0. Nothing here grows with the number of classes, and only the result with the anchors.
    """
    level_sizes = [len(level) for level in anchors]
    shapes = anchor_shapes(anchors)
    classes = [torch.full((len(targets), size), BACKGROUND) for size in level_sizes]
    boxes: list[list[Tensor]] = [[] for _ in anchors]
    num_foreground = []
    for image, target in enumerate(targets):
        nearby = nearby_anchors(shapes, target["boxes"], iou=BACKGROUND_IOU)
        of_level = _split_by_level(nearby, level_sizes)
        coordinates = [level[index] for level, index in zip(anchors, of_level, strict=True)]
        matches = match_anchors(torch.cat(coordinates), target["boxes"])
        num_foreground.append((matches >= 0).sum())
        parts = matches.split([len(index) for index in of_level])
        for level, (index, part) in enumerate(zip(of_level, parts, strict=True)):
            is_foreground = part >= 0
            matched = part[is_foreground]
            labels = part.masked_scatter(is_foreground, target["labels"][matched])
            classes[level][image, index] = labels
            boxes[level].append(target["boxes"][matched])
    return Assignment(
        classes=classes,
        boxes=[torch.cat(level) for level in boxes],
        num_foreground=torch.stack(num_foreground),
    )


def _split_by_level(index: Tensor, level_sizes: Sequence[int]) -> list[Tensor]:
    """Ascending indices, counted through all levels, as those of each level."""
    starts = torch.tensor([0, *level_sizes]).cumsum(0)
    borders = torch.searchsorted(index, starts)
    parts = index.split(borders.diff().tolist())
    return [part - start for part, start in zip(parts, starts.tolist(), strict=False)]
