"""The mistakes of a detector in each image, and the confusion of its classes.

Boxes below the threshold of their class are dropped, and so are a class's boxes beyond the 100 best
of an image, as in COCO's metric. In each image, two rounds of greedy matching follow, both in
descending order of score, at IoU 0.50:

1. Within a class, by COCO's rules: a box takes the free true box of its class that it overlaps
   most. A box that only overlaps a crowd or group of its class is ignored.
2. Regardless of class: a box that is left takes the free true box that it overlaps most. This is a
   class swap, since boxes of its own class were taken in the first round.

True boxes that remain are missed; boxes that remain are false positives. So each true box counts
once in the matrix, in the row of its class, and each box that is not ignored once, in the column of
its class.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from pycocotools.mask import iou

from data.annotations import Annotations, positions_in
from retinanet.evaluation.matching import (
    MOST_BOXES,
    ImageDetections,
    SplitDetections,
    ranks_in_group,
    rows_by_id,
    xywh,
)
from retinanet.report.curves import IOU

NEAR = 0.1
"""Overlap from which a false positive counts as a misplaced box of the object, as in TIDE
(https://arxiv.org/abs/2008.08115)."""
NONE = -1


class Kind(Enum):
    """What a predicted box turned out to be; the text is for people."""

    RIGHT = "right"
    SWAP = "wrong class"
    DUPLICATE = "second box on an object that was found"
    MISPLACED = "too far off the object"
    BACKGROUND = "nothing labelled there"
    IGNORED = "on a crowd or group"


FALSE_POSITIVES = (Kind.DUPLICATE, Kind.MISPLACED, Kind.BACKGROUND)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageResult:
    """The boxes of an image, D kept predictions and G true boxes, and how they correspond."""

    index: int  # Of the image, in the annotations
    detections: ImageDetections
    kinds: tuple[Kind, ...]  # D
    partners: NDArray[np.intp]  # [D] the true box of a right or swapped one, else `NONE`
    is_missed: NDArray[np.bool_]  # [G]

    @property
    def missed(self) -> int:
        """Return the number of true boxes that no box was matched to."""
        return int(self.is_missed.sum())

    @property
    def swaps(self) -> int:
        """Return the number of true boxes that have another class's box."""
        return self.kinds.count(Kind.SWAP)

    @property
    def false_positives(self) -> int:
        """Return the number of boxes without a true box, swaps aside."""
        return sum(kind in FALSE_POSITIVES for kind in self.kinds)

    @property
    def mistakes(self) -> int:
        """Return the number of all three."""
        return self.missed + self.swaps + self.false_positives


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistakes:
    """The confusion of K classes in a split, and the worst images."""

    matrix: NDArray[np.int64]
    """[K + 1, K + 1] true class (row) and predicted class (column) in the categories' order; the
    last row has false positives, the last column missed boxes"""
    kinds: dict[Kind, int]  # Numbers of predicted boxes
    worst: tuple[ImageResult, ...]  # Images with mistakes, the most first
    images_with_mistakes: int

    @property
    def right(self) -> int:
        """Return the number of true boxes that were found."""
        return int(np.trace(self.matrix))

    @property
    def missed(self) -> int:
        """Return the number of true boxes that no box was matched to."""
        return int(self.matrix[:-1, -1].sum())

    @property
    def false_positives(self) -> int:
        """Return the number of boxes without a true box, swaps aside."""
        return int(self.matrix[-1, :-1].sum())

    @property
    def swaps(self) -> int:
        """Return the number of true boxes that have another class's box."""
        return self.kinds[Kind.SWAP]


def find_mistakes(
    annotations: Annotations,
    detections: SplitDetections,
    thresholds: NDArray[np.float64],
    *,
    images: int,
) -> Mistakes:
    """Match the boxes of all images; `thresholds` [K] are in the categories' order.

    `images`: number of worst images to return.
    """
    classes = len(annotations.category_ids)
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    kinds = Counter(dict.fromkeys(Kind, 0))
    worst: list[ImageResult] = []
    with_mistakes = 0
    for result in image_results(annotations, detections, thresholds):
        add_to_matrix(matrix, result, annotations)
        kinds.update(result.kinds)
        if result.mistakes:
            with_mistakes += 1
            worst.append(result)
            if len(worst) > 4 * images:
                worst = worst_images(worst, images)
    return Mistakes(
        matrix=matrix,
        kinds=dict(kinds),
        worst=tuple(worst_images(worst, images)),
        images_with_mistakes=with_mistakes,
    )


def worst_images(results: list[ImageResult], count: int) -> list[ImageResult]:
    """Return the images with the most mistakes; of equal ones the surest wrong box comes first."""

    def rank(result: ImageResult) -> tuple[int, float, int]:
        wrong = (
            float(score)
            for score, kind in zip(result.detections.scores, result.kinds, strict=True)
            if kind is Kind.SWAP or kind in FALSE_POSITIVES
        )
        return -result.mistakes, -max(wrong, default=0.0), result.index

    return sorted(results, key=rank)[:count]


def image_results(
    annotations: Annotations, detections: SplitDetections, thresholds: NDArray[np.float64]
) -> Iterator[ImageResult]:
    """Yield the result of each image, in the annotations' order, from the boxes that count.

    These are up to 100 of a class in an image, from the threshold [K] of the class upwards.
    """
    classes = positions_in(annotations.category_ids, detections.category_ids)
    images = positions_in(annotations.image_ids, detections.image_ids)
    # Numbered by image, then by category id: the order of the categories must not decide.
    ranks = np.argsort(np.argsort(annotations.category_ids))
    groups = images.astype(np.int64) * len(thresholds) + ranks[classes]
    rows = np.flatnonzero(detections.scores >= thresholds[classes])
    # The last key of lexsort counts most. Equal scores keep their order, as in COCO's metric.
    rows = rows[np.lexsort((-detections.scores[rows], groups[rows]))]
    rows = rows[ranks_in_group(groups[rows]) < MOST_BOXES]
    numbers = np.arange(len(annotations.image_ids))
    for index, part in enumerate(rows_by_id(images[rows], numbers)):
        image_id = int(annotations.image_ids[index])
        yield match_image(annotations, index, detections.as_image(image_id, rows[part]))


KINDS = (Kind.RIGHT, Kind.IGNORED, Kind.SWAP, Kind.DUPLICATE, Kind.MISPLACED, Kind.BACKGROUND)


def match_image(annotations: Annotations, index: int, detections: ImageDetections) -> ImageResult:
    """Match the boxes of one image in two rounds, see above; the detections are in any order."""
    order = np.argsort(-detections.scores, kind="stable")
    detections = detections.select(order)
    rows = annotations.box_slice(index)
    crowds = annotations.box_is_crowd[rows]
    true_ids = annotations.box_category_ids[rows]
    count = len(detections.scores)
    if count and len(crowds):
        overlaps = iou(
            xywh(detections.boxes), xywh(annotations.boxes[rows]), crowds.astype(np.uint8)
        )
    else:
        overlaps = np.zeros((count, len(crowds)))
    same = detections.category_ids[:, None] == true_ids[None]
    partners = np.full(count, NONE, np.intp)
    is_free = ~crowds
    take_free_boxes(np.where(same, overlaps, 0.0), partners, is_free)
    is_ignored = (partners == NONE) & (overlaps * (same & crowds) >= IOU).any(axis=1)
    is_right = partners != NONE
    take_free_boxes(np.where(is_ignored[:, None], 0.0, overlaps), partners, is_free)
    singles = overlaps * ~crowds
    conditions = [
        is_right,
        is_ignored,
        partners != NONE,
        (singles >= IOU).any(axis=1),
        (singles * same >= NEAR).any(axis=1),
    ]
    # The first that holds.
    places = np.select(conditions, range(len(conditions)), len(conditions)).tolist()
    return ImageResult(
        index=index,
        detections=detections,
        kinds=tuple(KINDS[place] for place in places),
        partners=partners,
        is_missed=is_free,
    )


def take_free_boxes(
    overlaps: NDArray[np.float64], partners: NDArray[np.intp], is_free: NDArray[np.bool_]
) -> None:
    """Give each box without a partner, in its order, the free true box that it overlaps most.

    `overlaps` [D, G]; `partners` [D] and `is_free` [G] are changed in place. Of equal overlaps the
    last true box is taken, as in pycocotools.
    """
    for row in np.flatnonzero((partners == NONE) & (overlaps >= IOU).any(axis=1)):
        free = np.where(is_free, overlaps[row], 0.0)
        best = len(free) - 1 - int(free[::-1].argmax())
        if free[best] >= IOU:
            partners[row] = best
            is_free[best] = False


def add_to_matrix(matrix: NDArray[np.int64], result: ImageResult, annotations: Annotations) -> None:
    """Count the boxes of an image in the confusion matrix."""
    rows = annotations.box_slice(result.index)
    true = positions_in(annotations.category_ids, annotations.box_category_ids[rows])
    predicted = positions_in(annotations.category_ids, result.detections.category_ids)
    for row, kind in enumerate(result.kinds):
        if kind in (Kind.RIGHT, Kind.SWAP):
            matrix[true[result.partners[row]], predicted[row]] += 1
        elif kind is not Kind.IGNORED:
            matrix[NONE, predicted[row]] += 1
    matrix[:, NONE] += np.bincount(true[result.is_missed], minlength=len(matrix))


@dataclass(frozen=True, kw_only=True)
class ConfusedPair:
    """Two different classes, one taken for the other."""

    true_class: int  # In the categories' order
    predicted_class: int
    boxes: int
    share: float  # Of the true boxes of `true_class`


def confused_pairs(matrix: NDArray[np.int64]) -> list[ConfusedPair]:
    """Return all pairs of different classes that were taken for one another, the most first."""
    swapped = matrix[:-1, :-1] * ~np.eye(len(matrix) - 1, dtype=np.bool_)
    true_boxes = matrix[:-1].sum(axis=1)
    pairs = [
        ConfusedPair(
            true_class=int(true),
            predicted_class=int(predicted),
            boxes=int(swapped[true, predicted]),
            share=float(swapped[true, predicted] / true_boxes[true]),
        )
        for true, predicted in np.argwhere(swapped)
    ]
    return sorted(pairs, key=lambda pair: (-pair.boxes, -pair.share, pair.true_class))
