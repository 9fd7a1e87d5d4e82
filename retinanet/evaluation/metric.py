"""COCO's detection metric (https://cocodataset.org/#detection-eval), by one of two libraries.

`METRICS` lists its twelve numbers: which values each averages, and its names. All are means over
pycocotools' tables of precision and recall. The tables come from pycocotools itself, the reference
implementation (the whole split at once, one dict per box), or class by class from
faster-coco-eval's matching, since the numbers of a class depend on boxes of that class only.

The latter uses the same counts and quotients as pycocotools' `COCOeval.accumulate`. Precision rises
only at a true positive, so it is evaluated only at detections that may be matched; of all others,
which are the majority, only the number before each of these matters.
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
    detection_dicts,
    match_class,
    ranks_in_group,
    true_box_dicts,
)


class Metric(NamedTuple):
    """One of COCO's numbers: a mean over the classes, and its names in tables and texts."""

    table: str  # Field of `Tables`: `precision` (at 101 recalls) or `recall`
    iou: float | None  # Lowest IoU of a true positive; None: the mean over 0.50, 0.55, … 0.95
    area: str
    """The objects that count: `all`, or by pixels of the original images `small`, `medium` or
    `large`."""
    limit: int  # Highest-scoring boxes per image and class that count
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
    "mar_1": Metric("recall", None, "all", 1, "mAR1", "mean recall, 1 box per image"),
    "mar_10": Metric("recall", None, "all", 10, "mAR10", "mean recall, 10 boxes per image"),
    "mar_100": Metric("recall", None, "all", 100, "mAR100", "mean recall, 100 boxes per image"),
    "mar_small": Metric("recall", None, "small", 100, "mAR small", "mean recall, small objects"),
    "mar_medium": Metric(
        "recall", None, "medium", 100, "mAR medium", "mean recall, medium objects"
    ),
    "mar_large": Metric("recall", None, "large", 100, "mAR large", "mean recall, large objects"),
}
"""pycocotools' twelve numbers in its order, under the names torchmetrics gives them."""
CLASS_METRICS = ("map", "map_50", "map_75", "mar_100")
"""Metrics that each class has too, see `ClassResult`."""
CURVES = {"0.50": "map_50", "0.75": "map_75", "0.50:0.95": "map"}
"""Curves of the precision-recall chart, with the metric that equals the area of each."""
COLOURS = {"map": "#2f9e44", "map_50": "#f08c00", "map_75": "#9c36b5"}
"""Colours of the curves in charts."""


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """Metrics of one class; NaN if it has no true box of a single object."""

    category_id: int
    name: str
    map: float  # Average precision over IoU 0.50:0.95
    map_50: float
    map_75: float
    mar_100: float  # Average recall over IoU 0.50:0.95 with up to 100 boxes per image
    true_boxes: int  # Without crowds and groups
    found_boxes: int


@dataclass(frozen=True)
class Evaluation:
    """The metric of a set of detections; a value is NaN if no true box counts for it."""

    summary: dict[str, float]  # `METRICS` to values from 0 to 1
    classes: tuple[ClassResult, ...]  # In the categories' order
    curves: dict[str, NDArray[np.float64]]
    """`CURVES` to [101] precision at recall 0, 0.01, … 1, the mean over the classes that have true
    boxes; NaN if none has"""

    @property
    def map(self) -> float:
        """Return the mAP over IoU 0.50:0.95; 0 if there is no true box at all."""
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
    of boxes per image (1, 10, 100); -1 where a category has no true box.
    """

    precision: NDArray[np.float64]  # [T, R, K, A, M]
    recall: NDArray[np.float64]  # [T, K, A, M]


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """Return the tables of a split; uses memory for the dicts of its largest class."""
    classes = len(annotations.category_ids)
    precision, recall = np.full((10, 101, classes, 4, 3), -1.0), np.full((10, classes, 4, 3), -1.0)
    for column, boxes in enumerate(boxes_by_class(annotations, detections)):
        tables = class_tables(*boxes, match_class(*boxes))
        precision[:, :, column], recall[:, column] = tables
    return Tables(precision=precision, recall=recall)


def split_tables(annotations: Annotations, detections: SplitDetections) -> Tables:
    """Return the tables of a split; uses about 1 kB of memory per box, for Python dicts."""

    def make_index(boxes: list[dict[str, Any]]) -> COCO:
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in annotations.image_ids.tolist()],
            "categories": [{"id": number} for number in annotations.category_ids.tolist()],
            "annotations": boxes,
        }
        coco.createIndex()
        return coco

    # pycocotools prints its progress.
    with contextlib.redirect_stdout(io.StringIO()):
        truth = make_index(true_box_dicts(annotations))
        results = make_index(detection_dicts(detections))
        evaluation = COCOeval(truth, results, iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return Tables(precision=evaluation.eval["precision"], recall=evaluation.eval["recall"])


TABLES: dict[MetricLibrary, Callable[[Annotations, SplitDetections], Tables]] = {
    "faster-coco-eval": tables_by_class,
    "pycocotools": split_tables,
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
    """Return one of `METRICS` of all classes or of a column's class; NaN if none was measured."""
    values = select_table(tables, METRICS[name])
    if column is not None:
        values = values[..., column]
    measured = values[values > -1]
    return float(measured.mean()) if measured.size else math.nan


def precision_curve(tables: Tables, name: str) -> NDArray[np.float64]:
    """Return the precision [R] whose mean is a metric: averaged over IoUs and measured classes."""
    by_class = select_table(tables, METRICS[name]).mean(axis=0)
    measured = by_class[:, by_class[0] > -1]
    return measured.mean(axis=1) if measured.size else np.full(len(by_class), math.nan)


def select_table(tables: Tables, metric: Metric) -> NDArray[np.float64]:
    """Return the values that a metric averages: precision [T, R, K] or recall [T, K]."""
    area = PARAMETERS.areaRngLbl.index(metric.area)
    limit = PARAMETERS.maxDets.index(metric.limit)
    table: NDArray[np.float64] = getattr(tables, metric.table)[..., area, limit]
    return table if metric.iou is None else table[np.isclose(PARAMETERS.iouThrs, metric.iou)]


def class_results(
    annotations: Annotations, detections: SplitDetections, tables: Tables
) -> tuple[ClassResult, ...]:
    """Return each class's numbers in the categories' order; tables are in that of their ids."""
    # argsort twice gives the rank of each id, which is its column in the tables.
    columns = np.argsort(np.argsort(annotations.category_ids)).tolist()
    true_counts = Counter(annotations.box_category_ids[~annotations.box_is_crowd].tolist())
    detection_counts = Counter(detections.category_ids.tolist())
    categories = zip(
        annotations.category_ids.tolist(), annotations.category_names, columns, strict=True
    )
    return tuple(
        ClassResult(
            category_id=category_id,
            name=name,
            **{metric: metric_value(tables, metric, column) for metric in CLASS_METRICS},
            true_boxes=true_counts[category_id],
            found_boxes=detection_counts[category_id],
        )
        for category_id, name, column in categories
    )


def class_tables(
    truth: Boxes, detections: Boxes, matches: Matches
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision [T, R, A, M] and recall [T, A, M] of a class; -1 if no true box counts."""
    thresholds, recalls = len(PARAMETERS.iouThrs), len(PARAMETERS.recThrs)
    areas, limits = len(PARAMETERS.areaRng), len(PARAMETERS.maxDets)
    precision = np.full((thresholds, recalls, areas, limits), -1.0)
    recall = np.full((thresholds, areas, limits), -1.0)
    # Stable, as in pycocotools: equal scores keep the order of the images.
    order = np.argsort(-detections.scores, kind="stable")
    candidate = np.zeros(len(order), np.bool_)
    candidate[matches.rows] = True
    positions = np.flatnonzero(candidate[order])
    # `matches.rows` ascend: images follow by id, and candidates within an image by row.
    columns = np.searchsorted(matches.rows, order[positions])
    ranks = ranks_in_group(detections.images)[order]
    for area, (smallest, largest) in enumerate(PARAMETERS.areaRng):
        inside = (truth.areas >= smallest) & (truth.areas <= largest)
        true_count = int((inside & ~truth.is_crowd).sum())
        if not true_count:
            continue
        counted = (detections.areas >= smallest) & (detections.areas <= largest)
        unmatched = (counted & ~candidate)[order]
        counts = ~matches.is_ignored[area][:, columns]
        true_positive = counts & matches.is_matched[area][:, columns]
        false_positive = counts & ~true_positive
        for limit, most in enumerate(PARAMETERS.maxDets):
            within = ranks < most
            before = np.cumsum(unmatched & within)[positions]
            precision[:, :, area, limit], recall[:, area, limit] = precision_and_recall(
                np.cumsum(true_positive & within[positions], axis=1),
                np.cumsum(false_positive & within[positions], axis=1) + before,
                true_count=true_count,
            )
    return precision, recall


def precision_and_recall(
    true_positives: NDArray[np.int64], false_positives: NDArray[np.int64], *, true_count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the precision [T, R] at the thresholds of recall and the recall [T] of all boxes.

    The precision is the highest at that recall or above, and 0 where a recall is not reached.
    `true_positives` and `false_positives` [T, C] are cumulative; `true_count` true boxes count.
    """
    precision = np.zeros((len(true_positives), len(PARAMETERS.recThrs)))
    if not true_positives.shape[1]:
        return precision, np.zeros(len(true_positives))
    recalls = true_positives / true_count
    # The same guard against 0 / 0 as in pycocotools, so that quotients are equal to the last bit.
    precisions = true_positives / (true_positives + false_positives + np.spacing(1))
    best = np.maximum.accumulate(precisions[:, ::-1], axis=1)[:, ::-1]
    for threshold, reached in enumerate(recalls):
        positions = np.searchsorted(reached, PARAMETERS.recThrs, side="left")
        is_reached = positions < len(reached)
        precision[threshold, is_reached] = best[threshold, positions[is_reached]]
    return precision, recalls[:, -1]
