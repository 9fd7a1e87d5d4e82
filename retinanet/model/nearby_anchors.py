"""The few anchors that a box can be matched to, found without looking at the others.

Shapes: M boxes, S anchor shapes (nine on each level), P pairs of a box and an anchor near it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retinanet.model.anchors import ANCHORS_PER_LOCATION

IOU_MARGIN = 1e-5
"""Relative; float32's IoU differs from the exact one by less than a tenth of this."""


class AnchorShapes(NamedTuple):
    """Anchors of one size, on a regular grid, for each of S sizes; pairs are (x, y), float64."""

    centers: Tensor
    """[S, 2] pixels: of the anchor at the grid's first place."""
    sizes: Tensor
    """[S, 2] pixels."""
    steps: Tensor
    """[S, 2] pixels from a place to the next."""
    last_places: Tensor
    """[S, 2] number of the last column, and of the last row."""
    first_index: Tensor
    """int64 [S]: of the anchor at the first place, counted through all levels."""


def anchor_shapes(anchors: Sequence[Tensor]) -> AnchorShapes:
    """The grids that `anchors`, for each level [A_l, 4] as from `anchors_for`, consist of."""
    first = torch.stack([level[:ANCHORS_PER_LOCATION] for level in anchors]).double()
    second = torch.stack([level[ANCHORS_PER_LOCATION % len(level)] for level in anchors])
    last = torch.stack([level[-ANCHORS_PER_LOCATION] for level in anchors])
    num_places = torch.tensor([len(level) // ANCHORS_PER_LOCATION for level in anchors])
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
        first_index=(offsets + torch.arange(ANCHORS_PER_LOCATION)).flatten(),
    )


def nearby_anchors(shapes: AnchorShapes, boxes: Tensor, *, iou: float) -> Tensor:
    """Every anchor whose IoU with some box is at least `iou` or, less, the largest of that box.

    `boxes` [M, 4] xyxy pixels; M may be 0. Returns int64 indices, ascending, counted through all
    levels; there are others among them, but few. Equally good anchors are all there.
    """
    corners = boxes.double()[:, None]
    sizes = corners[..., 2:] - corners[..., :2]
    offsets = corners[..., :2] + sizes / 2 - shapes.centers  # [M, S, 2], as all that follow
    smaller = sizes.minimum(shapes.sizes)
    half_sums = (sizes + shapes.sizes) / 2
    areas = sizes.prod(dim=-1) + shapes.sizes.prod(dim=-1)  # [M, S]

    # Of a shape, the anchor nearest in both directions overlaps most.
    nearest = (offsets / shapes.steps).round().clamp(min=0).minimum(shapes.last_places)
    distances = (offsets - nearest * shapes.steps).abs()
    intersections = (half_sums - distances).clamp(min=0).minimum(smaller).prod(dim=-1)
    best = (intersections / (areas - intersections)).amax(dim=1, keepdim=True)
    wanted = best.clamp(max=iou) * (1 - IOU_MARGIN)

    # Even where an anchor and the box overlap fully in one direction, there is a length by which
    # they must do so in the other.
    lengths = (wanted / (1 + wanted) * areas)[..., None] / smaller.flip(-1)
    reach = half_sums - lengths
    low = ((offsets - reach) / shapes.steps).ceil().clamp(min=0)
    high = ((offsets + reach) / shapes.steps).floor().minimum(shapes.last_places)
    possible = (lengths <= smaller).all(dim=-1, keepdim=True)
    counts = torch.where(possible, (high - low + 1).clamp(min=0), 0.0)
    return _indices_in_windows(shapes, low.long(), counts.long())


def _indices_in_windows(shapes: AnchorShapes, low: Tensor, counts: Tensor) -> Tensor:
    """Ascending indices of the anchors in windows of their grids, `low` and `counts` [M, S, 2]."""
    low, counts = low.flatten(0, 1), counts.flatten(0, 1)
    sizes = counts.prod(dim=1)
    window = torch.arange(len(sizes)).repeat_interleave(sizes)  # [P]
    within = torch.arange(len(window)) - (sizes.cumsum(0) - sizes)[window]
    shape = window % len(shapes.sizes)
    column = low[window, 0] + within % counts[window, 0]
    row = low[window, 1] + within // counts[window, 0]
    place = row * (shapes.last_places[shape, 0].long() + 1) + column
    return (shapes.first_index[shape] + place * ANCHORS_PER_LOCATION).unique()
