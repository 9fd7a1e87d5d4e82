"""Precision, recall and F1 of each class against the score, and the threshold with the best F1.

The curves are those of COCO's metric at IoU 0.50: the same matches, the same ignored boxes, up to
100 boxes per class in an image. Matching takes boxes in descending order of score, so boxes below a
threshold never change the matches above it: a curve's point is exactly what is left after all boxes
with a lower score are dropped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from retinanet.evaluation.detect import SCORE_THRESHOLD
from retinanet.evaluation.matching import (
    PARAMETERS,
    Boxes,
    SplitDetections,
    boxes_by_class,
    match_class,
)

IOU = 0.5
"""Overlap from which a box counts as found, in curves, confusion matrix and pictures."""
ALL_AREAS = PARAMETERS.areaRngLbl.index("all")
AT_IOU = int(np.flatnonzero(np.isclose(PARAMETERS.iouThrs, IOU))[0])
DIGITS = (2, 3, 4, 5, 6)
"""Numbers of decimals of a threshold: as few as separate the scores on both sides of it."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """The result of a detector that drops all boxes below a threshold of the score."""

    threshold: float
    true_positives: int
    false_positives: int
    true_boxes: int

    @property
    def precision(self) -> float:
        """Return the share of the remaining boxes that are right."""
        return self.true_positives / max(1, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Return the share of the true boxes that are found."""
        return self.true_positives / max(1, self.true_boxes)

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall."""
        boxes = self.true_positives + self.false_positives + self.true_boxes
        return 2 * self.true_positives / max(1, boxes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Counts of boxes with at least a score, at each of S distinct scores in descending order."""

    scores: NDArray[np.float64]  # [S]
    true_positives: NDArray[np.int64]  # [S]
    false_positives: NDArray[np.int64]  # [S]
    true_boxes: int  # Without crowds and groups

    @property
    def precision(self) -> NDArray[np.float64]:
        """Return the share [S] of the boxes that are right."""
        return self.true_positives / np.maximum(1, self.true_positives + self.false_positives)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Return the share [S] of the true boxes that are found."""
        return self.true_positives / max(1, self.true_boxes)

    @property
    def f1(self) -> NDArray[np.float64]:
        """Return the harmonic mean [S] of precision and recall."""
        boxes = self.true_positives + self.false_positives + self.true_boxes
        return 2 * self.true_positives / np.maximum(1, boxes)

    @cached_property
    def best(self) -> OperatingPoint | None:
        """Return the point with the highest F1; None if no box is right at any score.

        Of equal ones it is that of the highest score.
        """
        if not self.true_boxes or not self.true_positives.any():
            return None
        place = int(self.f1.argmax())
        below = SCORE_THRESHOLD
        if place + 1 < len(self.scores):
            below = float(self.scores[place + 1])
        return OperatingPoint(
            threshold=round_between(below, float(self.scores[place])),
            true_positives=int(self.true_positives[place]),
            false_positives=int(self.false_positives[place]),
            true_boxes=self.true_boxes,
        )

    def at(self, threshold: float) -> OperatingPoint:
        """Return what remains of the boxes with at least a score."""
        # The scores descend: count those that are not below the threshold.
        count = int(np.searchsorted(-self.scores, -threshold, side="right"))
        return OperatingPoint(
            threshold=threshold,
            true_positives=int(self.true_positives[count - 1]) if count else 0,
            false_positives=int(self.false_positives[count - 1]) if count else 0,
            true_boxes=self.true_boxes,
        )


@dataclass(frozen=True, kw_only=True)
class ClassCurve:
    """The curve of one class."""

    category_id: int
    name: str
    curve: Curve


def round_between(below: float, score: float) -> float:
    """Return a number with few digits that keeps `score` and drops `below`, which is lower.

    It is near the middle of the two, so that `--score` can name it and other pictures, with
    slightly other scores, get the same boxes.
    """
    middle = (below + score) / 2
    for digits in DIGITS:
        number = round(middle, digits)
        if below < number <= score:
            return number
    return score


def class_curves(annotations: Annotations, detections: SplitDetections) -> list[ClassCurve]:
    """Return the curve of each class, in the categories' order."""
    ids = np.sort(annotations.category_ids)
    curves = {
        int(category_id): class_curve(truth, detected)
        for category_id, (truth, detected) in zip(
            ids, boxes_by_class(annotations, detections, ids), strict=True
        )
    }
    categories = zip(annotations.category_ids.tolist(), annotations.category_names, strict=True)
    return [
        ClassCurve(category_id=number, name=name, curve=curves[number])
        for number, name in categories
    ]


def class_curve(truth: Boxes, detections: Boxes) -> Curve:
    """Return the curve of a class from its boxes."""
    matches = match_class(truth, detections)
    counts = np.ones(len(detections.scores), np.bool_)
    counts[matches.rows] = ~matches.is_ignored[ALL_AREAS, AT_IOU]
    is_right = np.zeros(len(counts), np.bool_)
    is_right[matches.rows] = matches.is_matched[ALL_AREAS, AT_IOU]
    return make_curve(
        detections.scores[counts], is_right[counts], true_boxes=int((~truth.is_crowd).sum())
    )


def make_curve(
    scores: NDArray[np.float64], is_right: NDArray[np.bool_], *, true_boxes: int
) -> Curve:
    """Return the curve of boxes [B] in any order."""
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(is_right[order], dtype=np.int64)
    # A threshold keeps all boxes of one score, or none: the last of equal scores has the count.
    last = np.flatnonzero(np.diff(scores, append=-math.inf))
    return Curve(
        scores=scores[last],
        true_positives=right[last],
        false_positives=last + 1 - right[last],
        true_boxes=true_boxes,
    )


def joint_curve(curves: Sequence[Curve]) -> Curve:
    """Return the curve of all classes together, under one threshold for all of them."""
    scores, rises, falls = [], [], []
    for curve in curves:
        scores.append(curve.scores)
        rises.append(np.diff(curve.true_positives, prepend=0))
        falls.append(np.diff(curve.false_positives, prepend=0))
    all_scores = np.concatenate([*scores, np.zeros(0)])
    order = np.argsort(-all_scores, kind="stable")
    ordered = all_scores[order]
    last = np.flatnonzero(np.diff(ordered, append=-math.inf))
    right = np.cumsum(np.concatenate([*rises, np.zeros(0, np.int64)])[order])
    wrong = np.cumsum(np.concatenate([*falls, np.zeros(0, np.int64)])[order])
    return Curve(
        scores=ordered[last],
        true_positives=right[last],
        false_positives=wrong[last],
        true_boxes=sum(curve.true_boxes for curve in curves),
    )


def class_thresholds(curves: Sequence[ClassCurve], *, default: float) -> NDArray[np.float64]:
    """Return each class's best threshold [K]; `default` where no box of the class is right."""
    return np.array(
        [item.curve.best.threshold if item.curve.best else default for item in curves], float
    )
