"""COCO's detection metric (https://cocodataset.org/#detection-eval), by one of two libraries."""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pycocotools.cocoeval import COCOeval, Params

from data.annotations import Annotations
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.metric_by_class import tables_by_class
from retinanet.evaluation.metric_whole import tables_of_whole
from retinanet.evaluation.tables import Tables
from retinanet.metric_library import DEFAULT_LIBRARY, MetricLibrary

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
