"""COCO's metric by pycocotools, the arbiter: the whole split at once, a dict a box."""

import contextlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from data.annotations import Annotations
from retinanet.evaluation.box_dicts import found_boxes, true_boxes
from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.tables import Tables


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
