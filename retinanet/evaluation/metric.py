"""COCO's detection metric (https://cocodataset.org/#detection-eval), by one of two libraries.

TODO-DOC COCO's metric class after class: a class's numbers depend on boxes of that class alone.

TODO-DOC COCO's metric by pycocotools, the arbiter: the whole split at once, a dict a box.

TODO-DOC What every number of COCO's metric is a mean of.

TODO-DOC Precision and recall of a class at every IoU, area and limit of boxes, over columns.

The counts of pycocotools' `COCOeval.accumulate`, and its quotients of them. Precision rises only at
a box that is right, so it is looked at where a box may be matched; of all others, which are most,
it is enough to know how many come before.
"""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval, Params

from data.annotations import Annotations
from retinanet.config_types import DEFAULT_LIBRARY, MetricLibrary
from retinanet.evaluation.detections import SplitDetections, found_boxes, true_boxes
from retinanet.evaluation.matching import (
    PARAMETERS,
    BoxesOfClass,
    Matches,
    boxes_by_class,
    matches_of,
)

SUMMARY_NAMES = (
    "map",
    "map_50",
    "map_75",
    "map_small",
    "map_medium",
    "map_large",
    "mar_1",
    "mar_10",
    "mar_100",
    "mar_small",
    "mar_medium",
    "mar_large",
)
"""pycocotools' twelve numbers in its order, under the names torchmetrics gives them."""

CURVES = {"0.50": slice(0, 1), "0.75": slice(5, 6), "0.50:0.95": slice(None)}
"""Of a precision-recall chart: the IoUs by their places in the tables."""

ALL_SIZES, MOST_BOXES = 0, -1
"""Of the tables: boxes of any area, and the limit of 100 boxes an image."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """How well one class is found; a number is nan where it has no true box of a single object."""

    category_id: int
    name: str
    map: float
    """Average precision over IoU 0.50:0.95."""
    map_50: float
    map_75: float
    mar_100: float
    """Average recall over IoU 0.50:0.95 with up to 100 boxes an image."""
    true_boxes: int
    """Of single objects, without crowds and groups."""
    found_boxes: int


@dataclass(frozen=True)
class Evaluation:
    """The metric of a set of detections; a number is nan where no true box could be found."""

    summary: dict[str, float]
    """`SUMMARY_NAMES` to values from 0 to 1; sizes are in pixels of the original images"""
    classes: tuple[ClassResult, ...]
    """In the categories' order."""
    curves: dict[str, NDArray[np.float64]]
    """`CURVES` to [101] precision at recall 0, 0.01, … 1, the mean over the classes that have true
    boxes; nan where none has"""

    @property
    def map(self) -> float:
        """Mean average precision over IoU 0.50:0.95; 0 where there is no true box at all."""
        value = self.summary["map"]
        return 0.0 if math.isnan(value) else value

    @property
    def per_class(self) -> dict[str, float]:
        """mAP (IoU 0.50:0.95) of each class that has true boxes, by name."""
        return {one.name: one.map for one in self.classes if not math.isnan(one.map)}


@dataclass(frozen=True, eq=False)
class Tables:
    """pycocotools' tables, for T IoU thresholds from 0.50 to 0.95, R recalls from 0 to 1, K
    categories in the order of their ids, A ranges of area (all, small, medium, large) and M limits
    of boxes an image (1, 10, 100); -1 where a category has no true box.
    """

    precision: NDArray[np.float64]
    """[T, R, K, A, M]"""
    recall: NDArray[np.float64]
    """[T, K, A, M]"""


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """The tables of a split; memory for the dicts of its largest class."""
    ids = np.sort(annotations.category_ids)
    precision = np.full((10, 101, len(ids), 4, 3), -1.0)
    recall = np.full((10, len(ids), 4, 3), -1.0)
    for column, boxes in enumerate(boxes_by_class(annotations, detections, ids)):
        precision[:, :, column], recall[:, column] = tables_of_class(boxes, matches_of(boxes))
    return Tables(precision=precision, recall=recall)


def tables_of_whole(annotations: Annotations, detections: SplitDetections) -> Tables:
    """The tables of a split; about a kilobyte of memory a box, in Python's dicts."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(
            coco_of(annotations, true_boxes(annotations)),
            coco_of(annotations, found_boxes(detections, slice(None))),
            iouType="bbox",
        )
        evaluation.evaluate()
        evaluation.accumulate()
    return Tables(precision=evaluation.eval["precision"], recall=evaluation.eval["recall"])


TABLES: dict[MetricLibrary, Callable[[Annotations, SplitDetections], Tables]] = {
    "faster-coco-eval": tables_by_class,
    "pycocotools": tables_of_whole,
}


def coco_metric(
    annotations: Annotations,
    detections: SplitDetections,
    *,
    library: MetricLibrary = DEFAULT_LIBRARY,
) -> Evaluation:
    """Score detections against a split's boxes.

    Crowd and group boxes are ignored regions: neither finding nor missing them counts. Every
    image of the split counts, so images left out of `detections` count as missed.

    Args:
        annotations: The split.
        detections: Of its images.
        library: What matches boxes: `pycocotools`, the arbiter, with a dict a box for the whole
            split at once; or `faster-coco-eval`, class after class.
    """
    tables = TABLES[library](annotations, detections)
    return Evaluation(
        summary=summary_of(tables),
        classes=class_results(annotations, detections, tables),
        curves={
            name: mean_where_known(tables.precision[thresholds, :, :, ALL_SIZES, MOST_BOXES])
            for name, thresholds in CURVES.items()
        },
    )


def summary_of(tables: Tables) -> dict[str, float]:
    """The twelve numbers, by pycocotools' own summary of the tables."""
    evaluation = COCOeval(iouType="bbox")
    evaluation.params = Params(iouType="bbox")
    evaluation.eval = {"precision": tables.precision, "recall": tables.recall}
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.summarize()
    values = (math.nan if value < 0 else float(value) for value in evaluation.stats)
    return dict(zip(SUMMARY_NAMES, values, strict=True))


def class_results(
    annotations: Annotations, detections: SplitDetections, tables: Tables
) -> tuple[ClassResult, ...]:
    """Each class's numbers, in the categories' order, out of tables in the order of their ids."""
    columns = np.argsort(np.argsort(annotations.category_ids))
    true = counts_of(annotations.box_category_ids[~annotations.box_is_crowd])
    found = counts_of(detections.category_ids)
    results = []
    for place, (category_id, column) in enumerate(
        zip(annotations.category_ids.tolist(), columns.tolist(), strict=True)
    ):
        precision = tables.precision[:, :, column, ALL_SIZES, MOST_BOXES]
        results.append(
            ClassResult(
                category_id=category_id,
                name=annotations.category_names[place],
                map=mean_known(precision),
                map_50=mean_known(precision[CURVES["0.50"]]),
                map_75=mean_known(precision[CURVES["0.75"]]),
                mar_100=mean_known(tables.recall[:, column, ALL_SIZES, MOST_BOXES]),
                true_boxes=true[category_id],
                found_boxes=found[category_id],
            )
        )
    return tuple(results)


def counts_of(ids: NDArray[np.int64]) -> Counter[int]:
    """How often each id occurs."""
    present, counts = np.unique(ids, return_counts=True)
    return Counter(dict(zip(present.tolist(), counts.tolist(), strict=True)))


def mean_known(values: NDArray[np.float64]) -> float:
    """The mean of those that could be measured, nan where none could."""
    known = values[values > -1]
    return float(known.mean()) if known.size else math.nan


def mean_where_known(precision: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R] means of [T, R, K] over thresholds and the classes that could be measured; else nan."""
    by_class = precision.mean(axis=0)
    known = by_class[:, by_class[0] > -1]
    return known.mean(axis=1) if known.size else np.full(len(by_class), math.nan)


def coco_of(annotations: Annotations, boxes: list[dict[str, Any]]) -> COCO:
    """pycocotools' own index of the given boxes, over all images and categories of the split."""
    coco = COCO()
    coco.dataset = {
        "images": dicts_of(annotations.image_ids),
        "categories": dicts_of(annotations.category_ids),
        "annotations": boxes,
    }
    coco.createIndex()
    return coco


def dicts_of(ids: NDArray[np.int64]) -> list[dict[str, int]]:
    """What pycocotools needs to know of images and of categories."""
    return [{"id": one} for one in ids.tolist()]


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
