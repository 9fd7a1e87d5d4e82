"""Which anchor is to find which box, and what each anchor is therefore taught."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

BACKGROUND = -1
IGNORED = -2

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
    anchors: Tensor, boxes: Tensor, *, foreground_iou: float = 0.5, background_iou: float = 0.4
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

    `anchors`: for each level [A_l, 4] xyxy pixels. `targets`: for each image `boxes` float32
    [M, 4] xyxy pixels of the network's input and `labels` int64 [M]; M may be 0. Nothing here
    grows with the number of classes.
    """
    all_anchors = torch.cat(list(anchors))
    matches = torch.stack([match_anchors(all_anchors, target["boxes"]) for target in targets])
    classes = matches.clone()
    for image_classes, target in zip(classes, targets, strict=True):
        foreground = image_classes >= 0
        image_classes[foreground] = target["labels"][image_classes[foreground]]
    level_sizes = [len(level) for level in anchors]
    boxes = []
    for level_matches in matches.split(level_sizes, dim=1):
        pairs = zip(level_matches, targets, strict=True)
        boxes.append(torch.cat([target["boxes"][match[match >= 0]] for match, target in pairs]))
    return Assignment(
        classes=list(classes.split(level_sizes, dim=1)),
        boxes=boxes,
        num_foreground=(matches >= 0).sum(dim=1),
    )
