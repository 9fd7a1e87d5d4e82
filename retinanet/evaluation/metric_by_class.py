"""COCO's metric by faster-coco-eval, class after class.

A class's precision and recall depend on boxes of that class alone, in the images that have any. So
one class at a time has its boxes as the dicts that the library wants, a kilobyte each, and the
whole split never has.
"""

from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from numpy.typing import NDArray

from data.annotations import Annotations
from retinanet.evaluation.box_dicts import found_boxes, true_boxes
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.tables import Tables


def tables_by_class(annotations: Annotations, detections: SplitDetections) -> Tables:
    """The tables of a split; memory for the dicts of its largest class."""
    ids = np.sort(annotations.category_ids)
    truth = rows_by_id(annotations.box_category_ids, ids)
    found = rows_by_id(detections.category_ids, ids)
    precision = np.full((10, 101, len(ids), 4, 3), -1.0)
    recall = np.full((10, len(ids), 4, 3), -1.0)
    for column, (true_rows, found_rows) in enumerate(zip(truth, found, strict=True)):
        if len(true_rows):
            one = evaluated(true_boxes(annotations, true_rows), found_boxes(detections, found_rows))
            precision[:, :, column], recall[:, column] = one["precision"], one["recall"]
    return Tables(precision=precision, recall=recall)


def rows_by_id(column: NDArray[np.int64], ids: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Of each id the rows that have it, in their order; ids are sorted."""
    order = np.argsort(column, kind="stable")
    edges = np.searchsorted(column[order], ids), np.searchsorted(column[order], ids, side="right")
    return [order[first:last] for first, last in zip(*edges, strict=True)]


def evaluated(truth: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """The library's tables of one class: `precision` [T, R, A, M] and `recall` [T, A, M]."""
    category_id = truth[0]["category_id"]
    images = sorted({box["image_id"] for box in (*truth, *found)})
    evaluation = COCOeval_faster(
        coco_of(images, category_id, truth), coco_of(images, category_id, found), iouType="bbox"
    )
    evaluation.evaluate()
    evaluation.accumulate()
    return {
        "precision": evaluation.eval["precision"][:, :, 0],
        "recall": evaluation.eval["recall"][:, 0],
    }


def coco_of(images: list[int], category_id: int, boxes: list[dict[str, Any]]) -> COCO:
    """The library's own index of a class's boxes."""
    coco = COCO()
    coco.dataset = {
        "images": [{"id": image_id} for image_id in images],
        "categories": [{"id": category_id}],
        "annotations": boxes,
    }
    coco.createIndex()
    return coco
