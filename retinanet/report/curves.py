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
    precision: float  # The share of the remaining boxes that are right
    recall: float  # The share of the true boxes that are found
    f1: float  # Their harmonic mean
    true_positives: int
    false_positives: int


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
            precision=float(self.precision[place]),
            recall=float(self.recall[place]),
            f1=float(self.f1[place]),
            true_positives=int(self.true_positives[place]),
            false_positives=int(self.false_positives[place]),
        )


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


def class_curves(annotations: Annotations, detections: SplitDetections) -> list[Curve]:
    """Return the curve of each class, in the categories' order."""
    curves = [class_curve(*boxes) for boxes in boxes_by_class(annotations, detections)]
    ranks = np.argsort(np.argsort(annotations.category_ids))
    return [curves[rank] for rank in ranks.tolist()]


def class_curve(truth: Boxes, detections: Boxes) -> Curve:
    """Return the curve of a class from its boxes."""
    matches = match_class(truth, detections)
    counts = np.ones(len(detections.scores), np.bool_)
    counts[matches.rows] = ~matches.is_ignored[ALL_AREAS, AT_IOU]
    is_right = np.zeros(len(counts), np.bool_)
    is_right[matches.rows] = matches.is_matched[ALL_AREAS, AT_IOU]
    return make_curve(
        detections.scores[counts],
        is_right[counts],
        ~is_right[counts],
        true_boxes=int((~truth.is_crowd).sum()),
    )


def make_curve(
    scores: NDArray[np.float64],
    right: NDArray[np.integer | np.bool_],
    wrong: NDArray[np.integer | np.bool_],
    *,
    true_boxes: int,
) -> Curve:
    """Return the curve of numbers of right and wrong boxes [B] of some scores, in any order."""
    order = np.argsort(-scores, kind="stable")
    # A threshold keeps all boxes of one score, or none: the last of equal scores has the count.
    last = np.flatnonzero(np.diff(scores[order], append=-math.inf))
    return Curve(
        scores=scores[order][last],
        true_positives=np.cumsum(right[order], dtype=np.int64)[last],
        false_positives=np.cumsum(wrong[order], dtype=np.int64)[last],
        true_boxes=true_boxes,
    )


def joint_curve(curves: Sequence[Curve]) -> Curve:
    """Return the curve of all classes together, under one threshold for all of them."""
    return make_curve(
        np.concatenate([np.zeros(0), *(curve.scores for curve in curves)]),
        *(
            np.concatenate(
                [np.zeros(0, np.int64), *(np.diff(counts, prepend=0) for counts in each)]
            )
            for each in (
                [curve.true_positives for curve in curves],
                [curve.false_positives for curve in curves],
            )
        ),
        true_boxes=sum(curve.true_boxes for curve in curves),
    )


def class_thresholds(curves: Sequence[Curve], *, default: float) -> NDArray[np.float64]:
    """Return each class's best threshold [K]; `default` where no box of the class is right."""
    return np.array([curve.best.threshold if curve.best else default for curve in curves], float)
