"""Sizes and shapes of a split's objects, and whether the detector's anchors can match them.

An anchor learns a box if their IoU is at least 0.5. A box that no anchor overlaps so far is matched
to its best anchor alone, as in torchvision: it is learned from one or a few anchors with a poor
fit. How many boxes that concerns depends on the size of the network's input: small objects need a
large one, but there large objects are larger than any anchor. The shares at all usable sizes are
estimated from a sample. Proposed is the smallest size at which nearly as few boxes as at the best
one lack an anchor. With data.resize=letterbox it has the shape of the images.

What anchors there are is for the caller to say: `AnchorRule`. Boxes are those that training uses,
on the network's input: single objects, clipped, with an area.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotations import (
    ImageSize,
    Size,
    TrainingRules,
    as_setting,
    as_size,
    count_pixels,
    is_turned,
    shown_size,
)
from data.coco_json import Entries
from data.verify.annotations import boxes_on_input

BOXES_AT_ONCE = 20_000
"""Each takes some kilobytes while it is compared with all anchors."""
SAMPLE = 20_000
"""Boxes from which shares at other sizes are estimated: a share of 1 % within 0.2 %, in 95 % of
samples."""
STEP = 32
SIZES = tuple(range(128, 1601, STEP))
"""Sides of squares, the longer ones of rectangles."""
FITTING = 0.8
MOST_TIMES = 8.0  # A size at which a step takes longer than so many present ones is not proposed
MARGIN = 0.01
"""At the proposed image size this share of the boxes may lack an anchor beyond the least share at
any size."""
MARGINS = (0.1, 0.05, 0.02, MARGIN)
"""The table has a row for the first size within each of these."""
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class AnchorRule:
    """The anchors of the detector, and from which IoU on they match a box."""

    best_ious: Callable[[NDArray[np.float64], Size], NDArray[np.float32]]
    """Returns the largest IoU of boxes [N, 4], xyxy pixels, with any anchor of an input's size"""
    iou: float
    smallest: float  # pixels: square root of the area of the smallest anchor
    largest: float
    ratio: float  # longer side by the shorter one of the most elongated anchor

    @property
    def most_elongated(self) -> float:
        """The ratio of a box's sides beyond which no anchor can match it, at any image size.

        Let a box and an anchor have one centre, and ratios of sides that differ by a factor q. The
        IoU is largest where both stick out equally, and is then 1 / (2√q - 1).
        """
        return self.ratio * ((1 + 1 / self.iou) / 2) ** 2


@dataclass(frozen=True)
class Objects:
    """The boxes of a split at an image size: N boxes."""

    image_size: ImageSize
    sizes: NDArray[np.float32]  # [N] square root of the area in pixels
    ratios: NDArray[np.float32]  # [N] width by height
    best_ious: NDArray[np.float32]  # [N] with any anchor
    longer_sides: float  # pixels: the median of the images' longer sides

    def counts(self, rule: AnchorRule) -> dict[str, int]:
        """Return how many boxes no anchor matches, by the reason."""
        low = self.best_ious < rule.iou
        is_elongated = elongated(self.ratios, rule)
        small = self.sizes < rule.smallest
        large = self.sizes > rule.largest
        return {
            "boxes": len(low),
            "below_iou": int(low.sum()),
            "elongated": int((low & is_elongated).sum()),
            "small": int((low & ~is_elongated & small).sum()),
            "large": int((low & ~is_elongated & large).sum()),
            "between": int((low & ~is_elongated & ~small & ~large).sum()),
            "without_overlap": int((self.best_ious <= 0).sum()),
        }


def elongated(ratios: NDArray[np.float32], rule: AnchorRule) -> NDArray[np.bool_]:
    """Return which boxes are so elongated that no anchor matches them at any image size."""
    return np.maximum(ratios, 1 / ratios) > rule.most_elongated


def usable_rows(entries: Entries) -> NDArray[np.int64]:
    """Return the rows of the boxes that training uses."""
    return np.flatnonzero(entries.good_boxes & ~entries.box_is_crowd)


def boxes_in_parts(
    entries: Entries, rows: NDArray[np.int64], rules: TrainingRules, rule: AnchorRule
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float32]]]:
    """Yield places in `rows`, the boxes as the network gets them, and their IoUs with anchors."""
    for start in range(0, len(rows), BOXES_AT_ONCE):
        part = slice(start, start + BOXES_AT_ONCE)
        images = entries.image_of_box[rows[part]]
        sides = np.stack([entries.widths[images], entries.heights[images]], axis=1)
        boxes = boxes_on_input(entries.boxes[rows[part]], sides.astype(np.float64), rules)
        # The anchors of a turned input are those of the other one with x and y exchanged.
        turned = is_turned(sides[:, 1], sides[:, 0], rules.image_size)
        along = np.where(turned[:, None], boxes[:, [1, 0, 3, 2]], boxes)
        yield part, boxes, rule.best_ious(along, as_size(rules.image_size))


def describe_objects(entries: Entries, rule: AnchorRule, rules: TrainingRules) -> Objects:
    """Compare all boxes of a split with the anchors; there must be some."""
    rows = usable_rows(entries)
    sizes, ratios, ious = (np.empty(len(rows), dtype=np.float32) for _ in range(3))
    for part, boxes, best in boxes_in_parts(entries, rows, rules, rule):
        sides = boxes[:, 2:] - boxes[:, :2]
        sizes[part] = np.sqrt(sides.prod(axis=1))
        ratios[part] = sides[:, 0] / sides[:, 1]
        ious[part] = best
    longer = np.maximum(entries.widths, entries.heights)
    return Objects(rules.image_size, sizes, ratios, ious, float(np.median(longer)))


@dataclass(frozen=True)
class SizeProposal:
    """The share of boxes that no anchor matches, by image size, and the proposed size."""

    shares: Mapping[ImageSize, float]
    sampled: int  # boxes
    current: ImageSize  # of the configuration
    sizes: Sequence[ImageSize]
    """Those that may be proposed, in ascending order."""

    @property
    def affordable(self) -> list[ImageSize]:
        """The sizes within `MOST_TIMES`, or the present size."""
        sizes = [size for size in self.sizes if self.relative_time(size) <= MOST_TIMES]
        return sizes or [self.current]

    @property
    def best(self) -> ImageSize:
        """The affordable size at which the fewest boxes lack an anchor."""
        return min(self.affordable, key=lambda size: self.shares[size])

    @property
    def image_size(self) -> ImageSize:
        """The proposed size."""
        return self.first_within(MARGIN)

    def first_within(self, margin: float) -> ImageSize:
        """Return the smallest size whose share is within a margin of the best one's."""
        limit = self.shares[self.best] + margin
        return next(size for size in self.affordable if self.shares[size] <= limit)

    def rows(self) -> list[tuple[ImageSize, float, float]]:
        """Return image size, share of boxes and relative time of a step, for some sizes."""
        sizes = sorted(
            {*map(self.first_within, MARGINS), self.current, self.best}, key=count_pixels
        )
        return [(size, self.shares[size], self.relative_time(size)) for size in sizes]

    def relative_time(self, size: ImageSize) -> float:
        """Return the time of a step at a size: proportional to the pixels."""
        return count_pixels(size) / count_pixels(self.current)


def propose_size(entries: Entries, rule: AnchorRule, rules: TrainingRules) -> SizeProposal:
    """Estimate the shares at all image sizes, of a split with boxes."""
    rows = usable_rows(entries)
    if len(rows) > SAMPLE:
        rows = np.sort(np.random.default_rng(0).choice(rows, size=SAMPLE, replace=False))
    sizes = [shaped(side, entries) if rules.resize == "letterbox" else side for side in SIZES]
    shares = {}
    for size in {*sizes, rules.image_size}:
        parts = boxes_in_parts(entries, rows, replace(rules, image_size=size), rule)
        shares[size] = sum(int((best < rule.iou).sum()) for _, _, best in parts) / len(rows)
    return SizeProposal(shares, len(rows), rules.image_size, sizes)


def shaped(side: int, entries: Entries) -> ImageSize:
    """Return the size with a longer side that has the shape of a split's images.

    It lies if most of them do, and is so high that `FITTING` of the images are not made smaller
    than in a square.
    """
    sides = np.stack([entries.heights, entries.widths])[:, entries.widths > 0]
    ratio = np.quantile(sides.min(axis=0) / sides.max(axis=0), FITTING)
    shorter = min(side, math.ceil(round(side * ratio / STEP, 6)) * STEP)
    if shorter == side:
        return side
    return (shorter, side) if (sides[1] >= sides[0]).mean() >= 0.5 else (side, shorter)


@dataclass(frozen=True)
class Examined:
    """The objects of all splits that have boxes, the anchors, and the size for the first split."""

    rule: AnchorRule
    objects: Mapping[str, Objects]
    entries: Mapping[str, Entries]
    proposal: SizeProposal


def examine(
    entries: Mapping[str, Entries], make_rule: Callable[[], AnchorRule], rules: TrainingRules
) -> Examined | None:
    """Compare the boxes of splits with the anchors; None if there are no boxes."""
    with_boxes = {name: split for name, split in entries.items() if len(usable_rows(split))}
    if not with_boxes:
        return None
    rule = make_rule()
    objects = {name: describe_objects(split, rule, rules) for name, split in with_boxes.items()}
    first = next(iter(with_boxes.values()))
    proposal = propose_size(first, rule, rules)
    return Examined(rule, objects, with_boxes, proposal)


def objects_json(objects: Objects, rule: AnchorRule) -> dict[str, Any]:
    """Return what `--json` has about the objects of a split."""
    quantiles = {
        name: dict(zip(("p10", "p50", "p90"), np.quantile(values, QUANTILES).tolist(), strict=True))
        for name, values in (("size", objects.sizes), ("ratio", objects.ratios))
    }
    return {
        "image_size": objects.image_size,
        "anchor_iou": rule.iou,
        **objects.counts(rule),
        **quantiles,
        "image_longer_side": objects.longer_sides,
    }


def proposal_json(proposal: SizeProposal) -> dict[str, Any]:
    """Return what `--json` has about the image size."""
    return {
        "image_size": proposal.image_size,
        "relative_step_time": proposal.relative_time(proposal.image_size),
        "best_image_size": proposal.best,
        "margin": MARGIN,
        "sampled_boxes": proposal.sampled,
        "shares_without_anchor": {
            as_setting(size): proposal.shares[size]
            for size in sorted(proposal.shares, key=count_pixels)
        },
    }


def format_objects(objects: Objects, rule: AnchorRule) -> list[str]:
    """Return lines about the objects of a split."""
    counts = objects.counts(rule)
    boxes, low = counts["boxes"], counts["below_iou"]
    low10, middle, high = np.quantile(objects.sizes, QUANTILES).tolist()
    size = shown_size(objects.image_size)
    reasons = {
        "small": f"small (below {rule.smallest:.0f} pixels)",
        "large": f"large (above {rule.largest:.0f} pixels)",
        "elongated": f"elongated (sides above 1:{rule.most_elongated:.2g})",
        "between": "between two anchors",
    }
    parts = [f"{counts[name]:,} {text}" for name, text in reasons.items() if counts[name]]
    lines = [
        f"objects at {size}: {middle:.0f} pixels in the median (square root of the area), "
        f"10 % below {low10:.0f}, 10 % above {high:.0f}",
        f"anchors at {size}: {low:,} of {boxes:,} boxes ({low / boxes:.1%}) have an IoU "
        f"below {rule.iou:g} with every anchor, and are matched to their best one only",
    ]
    if parts:
        lines.append(f"  {', '.join(parts)}")
    if counts["without_overlap"]:
        lines.append(f"  {counts['without_overlap']:,} boxes overlap no anchor: they are ignored")
    return lines


def format_proposal(proposal: SizeProposal, objects: Objects) -> list[str]:
    """Return the table of image sizes and the proposal, in lines."""
    marked = {"now": proposal.current, "proposed": proposal.image_size, "best": proposal.best}
    lines = ["image size  boxes without an anchor  relative time of a step"]
    for size, share, time in proposal.rows():
        marks = ", ".join(name for name, value in marked.items() if value == size)
        line = f"{as_setting(size):>10}  {share:>23.1%}  {time:>23.2f}"
        lines.append(f"{line}  {marks}".rstrip())
    size, times = proposal.image_size, proposal.relative_time(proposal.image_size)
    price = "" if size == proposal.current else f" (a step takes {times:.2g} times as long)"
    lines.append(
        f"proposed: data.image_size={as_setting(size)}{price}, the smallest at which at most "
        f"{MARGIN:.0%} more of the boxes lack an anchor than at the best size up to "
        f"{as_setting(proposal.affordable[-1])}"
    )
    if max(as_size(size)) > objects.longer_sides:
        lines.append(
            f"the longer side of the images is {objects.longer_sides:.0f} pixels in the median: "
            f"at {as_setting(size)} they are enlarged, which helps the matching, not the detail"
        )
    return lines
