"""Detections in an image, and in a whole split, as columns of numpy arrays.

Of 7 million boxes, columns take 0.3 GB and dicts 7 GB: `true_boxes` and `found_boxes` make a dict a
box, as COCO's tools and files have them, only for those that need them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """The detections in one image: D boxes, best first."""

    image_id: int
    """the JSON's id"""
    boxes: NDArray[np.float64]
    """[D, 4] xyxy in pixels of the original image"""
    scores: NDArray[np.float64]
    """[D] probabilities"""
    category_ids: NDArray[np.int64]
    """[D] the JSON's category ids"""

    def of_rows(self, rows: NDArray[np.bool_]) -> "ImageDetections":
        """Return some of the boxes, in their order."""
        columns = (self.boxes[rows], self.scores[rows], self.category_ids[rows])
        return ImageDetections(self.image_id, *columns)


@dataclass(frozen=True, eq=False)
class SplitDetections:
    """D boxes of a split's images: those of an image together, and its best first."""

    image_ids: NDArray[np.int64]
    """[D] the JSON's ids"""
    boxes: NDArray[np.float32]
    """[D, 4] xyxy in pixels of the original images"""
    scores: NDArray[np.float32]
    """[D] probabilities"""
    category_ids: NDArray[np.int64]
    """[D] the JSON's category ids"""

    @classmethod
    def of(cls, images: Iterable[ImageDetections]) -> "SplitDetections":
        """Join the detections of images, in their order; images without any leave no rows."""
        found = list(images)
        counts = [len(image.scores) for image in found]
        ids = np.array([image.image_id for image in found], dtype=np.int64)
        return cls(
            image_ids=np.repeat(ids, counts),
            boxes=joined([image.boxes for image in found], np.float32).reshape(-1, 4),
            scores=joined([image.scores for image in found], np.float32),
            category_ids=joined([image.category_ids for image in found], np.int64),
        )

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.scores)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def of_image(self, image_id: int) -> ImageDetections:
        """Return the detections in one image."""
        order = self._by_image
        ids = self.image_ids[order]
        first, last = np.searchsorted(ids, image_id), np.searchsorted(ids, image_id, side="right")
        rows = order[first:last]
        return ImageDetections(
            image_id=image_id,
            boxes=self.boxes[rows].astype(np.float64),
            scores=self.scores[rows].astype(np.float64),
            category_ids=self.category_ids[rows],
        )

    @cached_property
    def _by_image(self) -> NDArray[np.intp]:
        """Return the rows in order of image id."""
        return np.argsort(self.image_ids, kind="stable")


def joined(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    """Concatenate arrays; there may be none."""
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def xywh(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return COCO's xywh boxes [N, 4] of xyxy boxes [N, 4]."""
    corners = boxes.astype(np.float64)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def true_boxes(annotations: Annotations) -> list[dict[str, Any]]:
    """Return a split's boxes as COCO's tools read them, with ids from 1: 0 is their "no match"."""
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
    """Return rows of detections in COCO's result format, with what `COCO.loadRes` adds."""
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
