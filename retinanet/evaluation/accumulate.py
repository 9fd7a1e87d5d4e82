"""Precision and recall of a class at every IoU, area and limit of boxes, over columns.

The counts of pycocotools' `COCOeval.accumulate`, and its quotients of them. Precision rises only at
a box that is right, so it is looked at where a box may be matched; of all others, which are most,
it is enough to know how many come before.
"""

import numpy as np
from numpy.typing import NDArray

from retinanet.evaluation.boxes_of_class import BoxesOfClass
from retinanet.evaluation.matching import PARAMETERS, Matches

Counts = NDArray[np.int64]


def tables_of_class(
    boxes: BoxesOfClass, matches: Matches
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Precision [T, R, A, M] and recall [T, A, M] of a class; -1 where no true box counts."""
    thresholds, recalls = len(PARAMETERS.iouThrs), len(PARAMETERS.recThrs)
    areas, limits = len(PARAMETERS.areaRng), len(PARAMETERS.maxDets)
    precision = np.full((thresholds, recalls, areas, limits), -1.0)
    recall = np.full((thresholds, areas, limits), -1.0)

    truth, found = boxes.truth, boxes.found
    order = np.argsort(-found.scores, kind="stable")
    candidate = np.zeros(len(order), np.bool_)
    candidate[matches.rows] = True
    places = np.flatnonzero(candidate[order])
    columns = np.searchsorted(matches.rows, order[places])
    ranks = found.places_in_image()[order]
    for area, (smallest, largest) in enumerate(PARAMETERS.areaRng):
        inside = (truth.areas >= smallest) & (truth.areas <= largest)
        wanted = int((inside & ~truth.is_crowd).sum())
        if not wanted:
            continue
        never = (found.areas >= smallest) & (found.areas <= largest) & ~candidate
        never = never[order]
        counts = ~matches.is_ignored[area][:, columns]
        right = counts & matches.is_matched[area][:, columns]
        wrong = counts & ~right
        for limit, most in enumerate(PARAMETERS.maxDets):
            within = ranks < most
            before = np.cumsum(never & within)[places]
            precision[:, :, area, limit], recall[:, area, limit] = precision_and_recall(
                np.cumsum(right & within[places], axis=1),
                np.cumsum(wrong & within[places], axis=1) + before,
                wanted=wanted,
            )
    return precision, recall


def precision_and_recall(
    right: Counts, wrong: Counts, *, wanted: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Precision [T, R] at the thresholds of recall, the best at that recall or a higher one, and
    the recall [T] of all boxes; 0 where a recall is not reached.

    Args:
        right: [T, C] boxes until each place that are at a true box.
        wrong: [T, C] those that are not.
        wanted: True boxes that count.
    """
    precision = np.zeros((len(right), len(PARAMETERS.recThrs)))
    if not right.shape[1]:
        return precision, np.zeros(len(right))
    recalls = right / wanted
    precisions = right / (right + wrong + np.spacing(1))
    best = np.maximum.accumulate(precisions[:, ::-1], axis=1)[:, ::-1]
    for threshold, reached in enumerate(recalls):
        places = np.searchsorted(reached, PARAMETERS.recThrs, side="left")
        is_reached = places < len(reached)
        precision[threshold, is_reached] = best[threshold, places[is_reached]]
    return precision, recalls[:, -1]
