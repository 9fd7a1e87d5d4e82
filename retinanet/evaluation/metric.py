"""COCO's detection metric (https://cocodataset.org/#detection-eval), by one of two libraries.

`METRICS` is the one list of its twelve numbers: what each is a mean of, and how it is called. All
are means over pycocotools' tables of precision and recall, which come from pycocotools itself, the
reference implementation (the whole split at once, a dict a box), or class after class from
faster-coco-eval's matching: a class's numbers depend on boxes of that class alone.

For the latter the counts are those of pycocotools' `COCOeval.accumulate`, and so are the quotients.
Precision rises only at a box that is right, so it is looked at where a box may be matched; of all
others, which are most, it is enough to know how many come before.
"""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from data.annotations import Annotations
from retinanet.config_types import DEFAULT_LIBRARY, MetricLibrary
from retinanet.evaluation.matching import (
    PARAMETERS,
    Boxes,
    Matches,
    SplitDetections,
    boxes_by_class,
    found_boxes,
    matches_of,
    places_in_image,
    true_boxes,
)


class Metric(NamedTuple):
    """One of COCO's numbers: a mean over the classes, and its names for people."""

    table: str  # Of `Tables`: `precision` (at 101 recalls) or `recall`
    iou: float | None  # The IoU from which a box is right; None: the mean over 0.50, 0.55, … 0.95
    area: str
    """The objects that count: `all`, or by pixels of the original images `small`, `medium` or
    `large`."""
    limit: int  # Boxes an image and class, the best, that are looked at
    heading: str
    label: str


METRICS = {
    "map": Metric("precision", None, "all", 100, "mAP", "mAP, IoU 0.50:0.95"),
    "map_50": Metric("precision", 0.50, "all", 100, "mAP50", "mAP, IoU 0.50"),
    "map_75": Metric("precision", 0.75, "all", 100, "mAP75", "mAP, IoU 0.75"),
    "map_small": Metric(
        "precision", None, "small", 100, "small", "mAP of small objects, below 32×32 pixels"
    ),
    "map_medium": Metric("precision", None, "medium", 100, "medium", "mAP of medium objects"),
    "map_large": Metric(
        "precision", None, "large", 100, "large", "mAP of large objects, above 96×96 pixels"
    ),
    "mar_1": Metric("recall", None, "all", 1, "mAR1", "mean recall, 1 box an image"),
    "mar_10": Metric("recall", None, "all", 10, "mAR10", "mean recall, 10 boxes an image"),
    "mar_100": Metric("recall", None, "all", 100, "mAR100", "mean recall, 100 boxes an image"),
    "mar_small": Metric("recall", None, "small", 100, "mAR small", "mean recall, small objects"),
    "mar_medium": Metric(
        "recall", None, "medium", 100, "mAR medium", "mean recall, medium objects"
    ),
    "mar_large": Metric("recall", None, "large", 100, "mAR large", "mean recall, large objects"),
}
"""pycocotools' twelve numbers in its order, under the names torchmetrics gives them."""
CLASS_METRICS = ("map", "map_50", "map_75", "mar_100")
"""Those that are kept for each class too, see `ClassResult`."""
CURVES = {"0.50": "map_50", "0.75": "map_75", "0.50:0.95": "map"}
"""Of a precision-recall chart, with the number that each curve's area is."""
COLOURS = {"map": "#2f9e44", "map_50": "#f08c00", "map_75": "#9c36b5"}
"""Of curves in charts."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """How well one class is found; a number is nan where it has no true box of a single object."""

    category_id: int
    name: str
    map: float  # Average precision over IoU 0.50:0.95
    map_50: float
    map_75: float
    mar_100: float  # Average recall over IoU 0.50:0.95 with up to 100 boxes an image
    true_boxes: int  # Of single objects, without crowds and groups
    found_boxes: int


@dataclass(frozen=True)
class Evaluation:
    """The metric of a set of detections; a number is nan where no true box could be found."""

    summary: dict[str, float]  # `METRICS` to values from 0 to 1
    classes: tuple[ClassResult, ...]  # In the categories' order
    curves: dict[str, NDArray[np.float64]]
    """`CURVES` to [101] precision at recall 0, 0.01, … 1, the mean over the classes that have true
    boxes; nan where none has"""

    @property
    def map(self) -> float:
        """Return the mAP over IoU 0.50:0.95; 0 where there is no true box at all."""
        value = self.summary["map"]
        return 0.0 if math.isnan(value) else value

    @property
    def per_class(self) -> dict[str, float]:
        """Return the mAP (IoU 0.50:0.95) of each class that has true boxes, by name."""
        return {c.name: c.map for c in self.classes if not math.isnan(c.map)}


@dataclass(frozen=True, eq=False)
class Tables:
    """pycocotools' tables, for T IoU thresholds from 0.50 to 0.95, R recalls from 0 to 1, K
    categories in the order of their ids, A ranges of area (all, small, medium, large) and M limits
    of boxes an image (1, 10, 100); -1 where a category has no true box.
    """

    precision: NDArray[np.float64]  # [T, R, K, A, M]
    recall: NDArray[np.float64]  # [T, K, A, M]


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """Return the tables of a split; needs memory for the dicts of its largest class."""
    ids = np.sort(annotations.category_ids)
    precision = np.full((10, 101, len(ids), 4, 3), -1.0)
    recall = np.full((10, len(ids), 4, 3), -1.0)
    for column, (truth, found) in enumerate(boxes_by_class(annotations, detections, ids)):
        tables = tables_of_class(truth, found, matches_of(truth, found))
        precision[:, :, column], recall[:, column] = tables
    return Tables(precision=precision, recall=recall)


def tables_of_whole(annotations: Annotations, detections: SplitDetections) -> Tables:
    """Return the tables of a split; needs about a kilobyte of memory a box, in Python's dicts."""

    def index_of(boxes: list[dict[str, Any]]) -> COCO:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in annotations.image_ids.tolist()],
            "categories": [{"id": number} for number in annotations.category_ids.tolist()],
            "annotations": boxes,
        }
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = index_of(true_boxes(annotations)), index_of(found_boxes(detections))
        evaluation = COCOeval(truth, found, iouType="bbox")
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
    """
    tables = TABLES[library](annotations, detections)
    return Evaluation(
        summary={name: metric_value(tables, name) for name in METRICS},
        classes=class_results(annotations, detections, tables),
        curves={name: precision_curve(tables, metric) for name, metric in CURVES.items()},
    )


def metric_value(tables: Tables, name: str, column: int | None = None) -> float:
    """Return one of `METRICS` of all classes or of a column's; nan if none was measured."""
    values = table_of(tables, METRICS[name])
    if column is not None:
        values = values[..., column]
    known = values[values > -1]
    return float(known.mean()) if known.size else math.nan


def precision_curve(tables: Tables, name: str) -> NDArray[np.float64]:
    """Return the precision [R] of which a metric is the mean: over IoUs and measured classes."""
    by_class = table_of(tables, METRICS[name]).mean(axis=0)
    known = by_class[:, by_class[0] > -1]
    return known.mean(axis=1) if known.size else np.full(len(by_class), math.nan)


def table_of(tables: Tables, metric: Metric) -> NDArray[np.float64]:
    """Return what a metric is a mean of: precision [T, R, K] or recall [T, K], T its IoUs."""
    area = PARAMETERS.areaRngLbl.index(metric.area)
    limit = PARAMETERS.maxDets.index(metric.limit)
    table: NDArray[np.float64] = getattr(tables, metric.table)[..., area, limit]
    return table if metric.iou is None else table[np.isclose(PARAMETERS.iouThrs, metric.iou)]


def class_results(
    annotations: Annotations, detections: SplitDetections, tables: Tables
) -> tuple[ClassResult, ...]:
    """Return each class's numbers in the categories' order; tables are in that of their ids."""
    columns = np.argsort(np.argsort(annotations.category_ids)).tolist()
    true = Counter(annotations.box_category_ids[~annotations.box_is_crowd].tolist())
    found = Counter(detections.category_ids.tolist())
    categories = zip(
        annotations.category_ids.tolist(), annotations.category_names, columns, strict=True
    )
    return tuple(
        ClassResult(
            category_id=category_id,
            name=name,
            **{metric: metric_value(tables, metric, column) for metric in CLASS_METRICS},
            true_boxes=true[category_id],
            found_boxes=found[category_id],
        )
        for category_id, name, column in categories
    )


def tables_of_class(
    truth: Boxes, found: Boxes, matches: Matches
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision [T, R, A, M] and recall [T, A, M] of a class; -1 if no true box counts."""
    thresholds, recalls = len(PARAMETERS.iouThrs), len(PARAMETERS.recThrs)
    areas, limits = len(PARAMETERS.areaRng), len(PARAMETERS.maxDets)
    precision = np.full((thresholds, recalls, areas, limits), -1.0)
    recall = np.full((thresholds, areas, limits), -1.0)
    order = np.argsort(-found.scores, kind="stable")
    candidate = np.zeros(len(order), np.bool_)
    candidate[matches.rows] = True
    places = np.flatnonzero(candidate[order])
    columns = np.searchsorted(matches.rows, order[places])
    ranks = places_in_image(found.image_ids)[order]
    for area, (smallest, largest) in enumerate(PARAMETERS.areaRng):
        inside = (truth.areas >= smallest) & (truth.areas <= largest)
        wanted = int((inside & ~truth.is_crowd).sum())
        if not wanted:
            continue
        never = ((found.areas >= smallest) & (found.areas <= largest) & ~candidate)[order]
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
    right: NDArray[np.int64], wrong: NDArray[np.int64], *, wanted: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the precision [T, R] at the thresholds of recall and the recall [T] of all boxes.

    The precision is the best at that recall or a higher one; 0 where a recall is not reached.
    `right` and `wrong` [T, C]: boxes until each place that are at a true box, and that are not, of
    the `wanted` that count.
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
