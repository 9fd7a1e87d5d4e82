"""COCO's detection metric, computed by pycocotools, the arbiter."""

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from data.annotations import Annotations
from retinanet.training.evaluate import ImageDetections

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


@dataclass(frozen=True)
class Evaluation:
    """The metric of a set of detections; a number is nan where no true box could be found."""

    summary: dict[str, float]
    """`SUMMARY_NAMES` to values from 0 to 1; sizes are in pixels of the original images"""
    per_class: dict[str, float]
    """mAP (IoU 0.50:0.95) of each class that has true boxes, by name, in the categories' order"""

    @property
    def map(self) -> float:
        """Mean average precision over IoU 0.50:0.95; 0 where there is no true box at all."""
        value = self.summary["map"]
        return 0.0 if math.isnan(value) else value


def coco_metric(annotations: Annotations, detections: Sequence[ImageDetections]) -> Evaluation:
    """Score detections against a split's boxes (https://cocodataset.org/#detection-eval).

    Crowd and group boxes are ignored regions: neither finding nor missing them counts. Every
    image of the split counts, so images left out of `detections` count as missed.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_of(annotations, true_boxes(annotations))
        found = coco_of(annotations, found_boxes(detections))
        evaluation = COCOeval(truth, found, iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = (nan_if_absent(value) for value in evaluation.stats)
    return Evaluation(
        summary=dict(zip(SUMMARY_NAMES, values, strict=True)),
        per_class=class_precisions(annotations, evaluation.eval["precision"]),
    )


def coco_of(annotations: Annotations, boxes: list[dict[str, Any]]) -> COCO:
    """pycocotools' own index of the given boxes, over all images and categories of the split."""
    coco = COCO()
    coco.dataset = {
        "images": [{"id": int(image_id)} for image_id in annotations.image_ids],
        "categories": [{"id": int(category_id)} for category_id in annotations.category_ids],
        "annotations": boxes,
    }
    coco.createIndex()
    return coco


def xywh(box: NDArray[np.float64]) -> list[float]:
    """COCO's box of an xyxy box."""
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def true_boxes(annotations: Annotations) -> list[dict[str, Any]]:
    """The split's boxes as pycocotools reads them, with ids from 1 (it takes 0 for "no match")."""
    image_ids = np.repeat(annotations.image_ids, np.diff(annotations.box_offsets))
    return [
        {
            "id": index + 1,
            "image_id": int(image_ids[index]),
            "category_id": int(annotations.box_category_ids[index]),
            "bbox": xywh(annotations.boxes[index]),
            "area": float(annotations.box_areas[index]),
            "iscrowd": int(annotations.box_is_crowd[index]),
        }
        for index in range(len(annotations.boxes))
    ]


def found_boxes(detections: Sequence[ImageDetections]) -> list[dict[str, Any]]:
    """Detections in COCO's result format, with the fields that `COCO.loadRes` would add."""
    boxes: list[dict[str, Any]] = []
    for image in detections:
        rows = zip(image.boxes, image.scores, image.category_ids, strict=True)
        for box, score, category_id in rows:
            bbox = xywh(box)
            boxes.append(
                {
                    "id": len(boxes) + 1,
                    "image_id": image.image_id,
                    "category_id": int(category_id),
                    "bbox": bbox,
                    "area": bbox[2] * bbox[3],
                    "iscrowd": 0,
                    "score": float(score),
                }
            )
    return boxes


def class_precisions(annotations: Annotations, precision: NDArray[np.float64]) -> dict[str, float]:
    """Average precision by class, from pycocotools' [IoU, recall, class, area, limit] table."""
    by_id = np.argsort(annotations.category_ids)  # pycocotools orders categories by id
    means = {}
    for column, category in enumerate(by_id):
        # Area range 0 is "all", the last detection limit is 100.
        values = precision[:, :, column, 0, -1]
        values = values[values > -1]
        if values.size:
            means[int(category)] = float(values.mean())
    return {annotations.category_names[row]: means[row] for row in sorted(means)}


def nan_if_absent(value: float) -> float:
    """pycocotools says -1 where nothing could be measured."""
    return math.nan if value < 0 else float(value)
