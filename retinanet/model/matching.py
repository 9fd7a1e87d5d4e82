"""The matching of anchors to boxes, and the targets that follow for each anchor.

`nearby_anchors` finds the few anchors that a box can be matched to without looking at the others.

Shapes: M boxes, S anchor shapes (nine on each level), P pairs of a box and an anchor near it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from retinanet.model.anchors import ANCHORS_PER_LOCATION

BACKGROUND = -1
IGNORED = -2
FOREGROUND_IOU = 0.5
BACKGROUND_IOU = 0.4
BOXES_AT_ONCE = 32
"""Boxes compared with all anchors in one go: bounds memory in pictures with hundreds of boxes."""


class Assignment(NamedTuple):
    """The targets of N images: A_l anchors on level l, of them F_l foreground."""

    classes: list[Tensor]  # For each level int64 [N, A_l]: the label, or BACKGROUND, or IGNORED
    boxes: list[Tensor]
    """For each level [F_l, 4] xyxy pixels: the box of each foreground anchor, in the order of
    `(classes[level] >= 0).nonzero()`."""
    num_foreground: Tensor  # int64 [N]: foreground anchors of an image, on all levels together


def match_anchors(
    anchors: Tensor,
    boxes: Tensor,
    *,
    foreground_iou: float = FOREGROUND_IOU,
    background_iou: float = BACKGROUND_IOU,
) -> Tensor:
    """Return the index of each anchor's box: int64 [A].

    `anchors` [A, 4] and `boxes` [M, 4] are xyxy pixels; M may be 0. An anchor gets the box it
    overlaps most if their IoU is at least `foreground_iou`; below `background_iou` it is
    BACKGROUND (-1), in between IGNORED (-2). An anchor that is the best (or as good) for some box
    gets the box it overlaps most whatever the IoU, so that no box is without an anchor
    (torchvision's Matcher with allow_low_quality_matches). Unlike in torchvision, a box that
    overlaps no anchor is ignored; there it makes all anchors foreground.
    """
    best_iou = anchors.new_zeros(len(anchors))
    matches = torch.zeros(len(anchors), dtype=torch.int64, device=anchors.device)
    best_for_some_box = torch.zeros(len(anchors), dtype=torch.bool, device=anchors.device)
    for start in range(0, len(boxes), BOXES_AT_ONCE):
        iou = box_iou(boxes[start : start + BOXES_AT_ONCE], anchors)  # [boxes, A]
        largest, index = iou.max(dim=0)
        # Not >=: of equally good boxes the first one counts.
        better = largest > best_iou
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
    be 0. Nothing here grows with the number of classes, and only the result, and a
    copy of the anchors, with their number.
    """
    sizes = [len(level) for level in anchors]
    coordinates = torch.cat(list(anchors))
    boxes, labels = (torch.cat([each[key] for each in targets]) for key in ("boxes", "labels"))
    counts = boxes.new_tensor([len(each["boxes"]) for each in targets], dtype=torch.int64)
    images = torch.arange(len(targets) + 1, device=boxes.device)

    # Anchors are counted through all levels and images: an operation for each image costs more
    # than its arithmetic.
    first_anchors = images * len(coordinates)
    nearby = nearby_anchors(
        anchor_shapes(anchors),
        boxes,
        iou=BACKGROUND_IOU,
        first=first_anchors[:-1].repeat_interleave(counts),
    )
    image, anchor = nearby // len(coordinates), nearby % len(coordinates)
    parts = coordinates[anchor].split(torch.searchsorted(nearby, first_anchors).diff().tolist())
    matches = torch.cat(
        [match_anchors(part, each["boxes"]) for part, each in zip(parts, targets, strict=True)]
    )
    is_foreground = matches >= 0
    image, anchor = image[is_foreground], anchor[is_foreground]
    matched = matches[is_foreground] + (counts.cumsum(0) - counts)[image]

    classes = torch.full((len(targets), len(coordinates)), BACKGROUND, device=boxes.device)
    classes.view(-1)[nearby] = matches.masked_scatter(is_foreground, labels[matched])
    level = torch.searchsorted(counts.new_tensor(sizes).cumsum(0), anchor, right=True)
    return Assignment(
        classes=list(classes.split(sizes, dim=1)),
        boxes=[boxes[matched[level == number]] for number in range(len(anchors))],
        num_foreground=image.bincount(minlength=len(targets)),
    )


IOU_MARGIN = 1e-5  # Relative; float32's IoU differs from the exact one by less than a tenth of this


class AnchorShapes(NamedTuple):
    """Anchors of one size, on a regular grid, for each of S sizes; pairs are (x, y), float64."""

    centers: Tensor  # [S, 2] pixels: of the anchor at the grid's first place
    sizes: Tensor  # [S, 2] pixels
    steps: Tensor  # [S, 2] pixels from a place to the next
    last_places: Tensor  # [S, 2] number of the last column, and of the last row
    first_index: Tensor  # int64 [S]: of the anchor at the first place, counted through all levels


def anchor_shapes(anchors: Sequence[Tensor]) -> AnchorShapes:
    """Return the grids of `anchors`, for each level [A_l, 4] as from `anchors_for`."""
    first = torch.stack([level[:ANCHORS_PER_LOCATION] for level in anchors]).double()
    second = torch.stack([level[ANCHORS_PER_LOCATION % len(level)] for level in anchors])
    last = torch.stack([level[-ANCHORS_PER_LOCATION] for level in anchors])
    num_places = first.new_tensor(
        [len(level) // ANCHORS_PER_LOCATION for level in anchors], dtype=torch.int64
    )
    extents = (last - first[:, 0])[:, :2]
    # With one column the second place is in the next row, or is the first.
    width = (second - first[:, 0])[:, 0].double().clamp(min=1)
    columns = extents[:, 0] / width
    last_places = torch.stack((columns, num_places / (columns + 1) - 1), dim=1)
    steps = (extents / last_places.clamp(min=1)).clamp(min=1)
    offsets = (num_places.cumsum(0) - num_places)[:, None] * ANCHORS_PER_LOCATION
    sizes = first[..., 2:] - first[..., :2]
    return AnchorShapes(
        centers=(first[..., :2] + sizes / 2).flatten(0, 1),
        sizes=sizes.flatten(0, 1),
        steps=steps.repeat_interleave(ANCHORS_PER_LOCATION, dim=0),
        last_places=last_places.repeat_interleave(ANCHORS_PER_LOCATION, dim=0),
        first_index=(offsets + torch.arange(ANCHORS_PER_LOCATION, device=first.device)).flatten(),
    )


class Overlaps(NamedTuple):
    """How M boxes lie to the S anchor shapes; all but the last are [M, S, 2] or [M, S], float64."""

    offsets: Tensor  # [M, S, 2] pixels from the anchor at the grid's first place to the box
    smaller: Tensor  # [M, S, 2] the smaller of the two sizes
    half_sums: Tensor  # [M, S, 2] half of the sum of the two sizes
    areas: Tensor  # [M, S] the sum of the two areas
    best: Tensor  # [M] the largest IoU of each box with any anchor


def overlaps_with(shapes: AnchorShapes, boxes: Tensor) -> Overlaps:
    """Return how boxes [M, 4], xyxy pixels, lie to the anchors, and their largest IoU with one."""
    corners = boxes.double()[:, None]
    sizes = corners[..., 2:] - corners[..., :2]
    offsets = corners[..., :2] + sizes / 2 - shapes.centers
    smaller = sizes.minimum(shapes.sizes)
    half_sums = (sizes + shapes.sizes) / 2
    areas = sizes.prod(dim=-1) + shapes.sizes.prod(dim=-1)

    # Of a shape, the anchor nearest in both directions overlaps most.
    nearest = (offsets / shapes.steps).round().clamp(min=0).minimum(shapes.last_places)
    distances = (offsets - nearest * shapes.steps).abs()
    intersections = (half_sums - distances).clamp(min=0).minimum(smaller).prod(dim=-1)
    best = (intersections / (areas - intersections)).amax(dim=1)
    return Overlaps(offsets, smaller, half_sums, areas, best)


def nearby_anchors(
    shapes: AnchorShapes, boxes: Tensor, *, iou: float, first: Tensor | None = None
) -> Tensor:
    """Return every anchor whose IoU with a box is at least `iou` or, less, the largest of that box.

    `boxes` [M, 4] xyxy pixels; M may be 0. Returns int64 indices, ascending, counted through all
    levels; there are others among them, but few. Equally good anchors are all there. `first`,
    int64 [M], is where counting begins for each box, by default 0.
    """
    offsets, smaller, half_sums, areas, best = overlaps_with(shapes, boxes)
    least_iou = best[:, None].clamp(max=iou) * (1 - IOU_MARGIN)

    # Even where an anchor and the box overlap fully in one direction, there is a length by which
    # they must do so in the other.
    lengths = (least_iou / (1 + least_iou) * areas)[..., None] / smaller.flip(-1)
    reach = half_sums - lengths
    low = ((offsets - reach) / shapes.steps).ceil().clamp(min=0)
    high = ((offsets + reach) / shapes.steps).floor().minimum(shapes.last_places)
    possible = (lengths <= smaller).all(dim=-1, keepdim=True)
    counts = torch.where(possible, (high - low + 1).clamp(min=0), 0.0)

    # The indices of all anchors in these windows of the grids.
    low, counts = low.long().flatten(0, 1), counts.long().flatten(0, 1)
    numbers = counts.prod(dim=1)
    window = torch.arange(len(numbers), device=boxes.device).repeat_interleave(numbers)  # [P]
    within = torch.arange(len(window), device=boxes.device)
    within -= (numbers.cumsum(0) - numbers)[window]
    shape = window % len(shapes.sizes)
    column = low[window, 0] + within % counts[window, 0]
    row = low[window, 1] + within // counts[window, 0]
    place = row * (shapes.last_places[shape, 0].long() + 1) + column
    indices = shapes.first_index[shape] + place * ANCHORS_PER_LOCATION
    if first is not None:
        indices += first[window // len(shapes.sizes)]
    return indices.unique()
