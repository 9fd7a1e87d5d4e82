"""Boxes as COCO's tools and files have them: a dict each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from retinanet.evaluation.detections import SplitDetections


def xywh(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """COCO's boxes [N, 4] of xyxy boxes [N, 4]."""
    corners = boxes.astype(np.float64)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def true_boxes(annotations: Annotations) -> list[dict[str, Any]]:
    """A split's boxes as COCO's tools read them, with ids from 1: 0 is their "no match"."""
    image_ids = np.repeat(annotations.image_ids, np.diff(annotations.box_offsets))
    columns = zip(
        image_ids.tolist(),
        annotations.box_category_ids.tolist(),
        xywh(annotations.boxes).tolist(),
        annotations.box_areas.tolist(),
        annotations.box_is_crowd.tolist(),
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": image_id,
            "category_id": category_id,
            "bbox": box,
            "area": area,
            "iscrowd": int(is_crowd),
        }
        for number, (image_id, category_id, box, area, is_crowd) in enumerate(columns, start=1)
    ]


def found_boxes(detections: SplitDetections, rows: slice) -> list[dict[str, Any]]:
    """Rows of detections in COCO's result format, with the fields that `COCO.loadRes` would add."""
    boxes = xywh(detections.boxes[rows])
    columns = zip(
        detections.image_ids[rows].tolist(),
        detections.category_ids[rows].tolist(),
        boxes.tolist(),
        detections.scores[rows].astype(np.float64).tolist(),
        (boxes[:, 2] * boxes[:, 3]).tolist(),
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": image_id,
            "category_id": category_id,
            "bbox": box,
            "score": score,
            "area": area,
            "iscrowd": 0,
        }
        for number, (image_id, category_id, box, score, area) in enumerate(columns, start=1)
    ]
