"""Boxes that training leaves out or clips, by columns."""

import numpy as np
from numpy.typing import NDArray

from data.sizes import MINIMUM_SIDE
from data.verify.entries import Entries, Good
from data.verify.findings import Findings, Place

BOXES_AT_ONCE = 1_000_000
ROUNDING = 1.0
"""Pixels by which a box may reach beyond its image without a word, as rounded ones do."""

Flags = NDArray[np.bool_]


def check_boxes(entries: Entries, findings: Findings, good: Good, *, image_size: int) -> None:
    """Find boxes that are of no use at `image_size`, and those that reach beyond their image."""
    for start in range(0, len(entries.boxes), BOXES_AT_ONCE):
        stop = min(start + BOXES_AT_ONCE, len(entries.boxes))
        for kind, flags in box_kinds(entries, start, stop, image_size=image_size).items():
            rows = start + np.flatnonzero(flags)
            findings.add_rows(kind, rows, lambda row: place_of(entries, row))
            if kind != "box_partly_outside":
                good.boxes[rows] = False


def box_kinds(entries: Entries, start: int, stop: int, *, image_size: int) -> dict[str, Flags]:
    """Which of some rows are of which kind, each of one at most."""
    boxes, images = entries.boxes[start:stop], entries.image_of_box[start:stop]
    sizes = np.stack([entries.widths[images], entries.heights[images]], axis=1).astype(np.float64)
    lower, upper = boxes[:, :2], boxes[:, 2:]
    with np.errstate(invalid="ignore", over="ignore"):
        # What training does: data.transforms.scale_boxes and clip_boxes.
        scaled = boxes * np.tile(image_size / sizes, 2)
        clipped = np.clip(scaled, 0, image_size)
        vanishes = ~(clipped[:, 2:] - clipped[:, :2] >= MINIMUM_SIDE).all(axis=1)
        beyond = (lower < -ROUNDING) | (upper > sizes + ROUNDING)
        of_image = {
            "box_outside": ((lower >= sizes) | (upper <= 0)).any(axis=1),
            "box_vanishes": vanishes,
            "box_partly_outside": beyond.any(axis=1),
        }
        found = {
            "box_not_finite": ~np.isfinite(boxes).all(axis=1),
            "box_negative_side": (upper < lower).any(axis=1),
            "box_zero_size": (upper == lower).any(axis=1),
            # Without a known image there is nothing to be outside of.
            **{kind: flags & (images >= 0) for kind, flags in of_image.items()},
        }
    return first_of_each_row(found)


def first_of_each_row(found: dict[str, Flags]) -> dict[str, Flags]:
    """The same flags, but every row is only of the first kind that it is of."""
    taken = np.zeros(len(next(iter(found.values()))), dtype=np.bool_)
    first = {}
    for kind, flags in found.items():
        first[kind] = flags & ~taken
        taken |= flags
    return first


def place_of(entries: Entries, row: int) -> Place:
    """A box's place, as COCO writes it, with the size of its image."""
    x1, y1, x2, y2 = entries.boxes[row].tolist()
    found = f"[{x1:.6g}, {y1:.6g}, {x2 - x1:.6g}, {y2 - y1:.6g}]"
    image = int(entries.image_of_box[row])
    if image >= 0:
        found += f" in {entries.widths[image]}×{entries.heights[image]}"
    return entries.box_place(row, ".bbox" if entries.box_list == "annotations" else "", found)
