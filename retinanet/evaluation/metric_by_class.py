"""COCO's metric by faster-coco-eval's matching in C++, class after class.

A class's precision and recall depend on boxes of that class alone, in the images that have any. The
library's own front takes a whole split as dicts with eight fields; here one class at a time has the
three that the matching reads, and none outlives its class.
"""

from typing import Any

import numpy as np
from faster_coco_eval import faster_eval_api_cpp as matching
from faster_coco_eval.core.cocoeval import Params
from numpy.typing import NDArray
from pycocotools.mask import iou

from data.annotations import Annotations
from retinanet.evaluation.boxes_of_class import BoxesOfClass, boxes_by_class
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.tables import Tables

MOST_BOXES = 100
"""COCO's largest limit of boxes an image."""


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """The tables of a split; memory for the dicts of its largest class."""
    ids = np.sort(annotations.category_ids)
    precision = np.full((10, 101, len(ids), 4, 3), -1.0)
    recall = np.full((10, len(ids), 4, 3), -1.0)
    for column, boxes in enumerate(boxes_by_class(annotations, detections, ids)):
        if len(boxes.truth.image_ids):
            found = matched(boxes, category_id=int(ids[column]))
            precision[:, :, column] = found["precision"][:, :, 0]
            recall[:, column] = found["recall"][:, 0]
    return Tables(precision=precision, recall=recall)


def matched(boxes: BoxesOfClass, *, category_id: int) -> dict[str, Any]:
    """The library's tables of one class: `precision` [T, R, 1, A, M] and `recall` [T, 1, A, M]."""
    truth, found = boxes.truth, boxes.found
    images = np.union1d(truth.image_ids, found.image_ids)
    parameters = Params(iouType="bbox")
    parameters.imgIds, parameters.catIds = images.tolist(), [category_id]
    true_set, found_set = matching.Dataset(), matching.Dataset()
    for place, (image, area, is_crowd) in enumerate(
        zip(truth.image_ids.tolist(), truth.areas.tolist(), truth.is_crowd.tolist(), strict=True),
        start=1,  # 0 says "no match"
    ):
        box = {"id": place, "area": area, "iscrowd": int(is_crowd), "ignore": int(is_crowd)}
        true_set.append_ref(image, category_id, box)
    add = found_set.append_ref
    for place, (image, area, score) in enumerate(
        zip(found.image_ids.tolist(), found.areas.tolist(), found.scores.tolist(), strict=True),
        start=1,
    ):
        add(image, category_id, {"id": place, "area": area, "score": score})
    tables: dict[str, Any] = matching.COCOevalEvaluateAccumulate(
        parameters,
        overlaps(boxes, images),
        true_set,
        found_set,
        parameters.imgIds,
        parameters.catIds,
        True,
    )
    return tables


def overlaps(boxes: BoxesOfClass, images: NDArray[np.int64]) -> list[list[Any]]:
    """Of each image the IoUs [found, true] of its best 100; none where a kind is missing."""
    truth, found = boxes.truth, boxes.found
    nothing: list[list[Any]] = [[[]] for _ in images]
    for place in np.flatnonzero(np.isin(images, np.intersect1d(truth.image_ids, found.image_ids))):
        true_rows, found_rows = truth.rows_of(images[place]), found.rows_of(images[place])
        found_rows = slice(found_rows.start, min(found_rows.stop, found_rows.start + MOST_BOXES))
        crowds = truth.is_crowd[true_rows].astype(np.uint8)
        nothing[place] = [iou(found.boxes[found_rows], truth.boxes[true_rows], crowds)]
    return nothing
