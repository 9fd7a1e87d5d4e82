"""A split's boxes, class after class."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from retinanet.evaluation.box_dicts import xywh
from retinanet.evaluation.detections import SplitDetections

MOST_BOXES = 100
"""COCO's largest limit of boxes an image and class."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """B boxes of one class, in the order of their images' ids."""

    image_ids: NDArray[np.int64]
    """[B] ascending"""
    boxes: NDArray[np.float64]
    """[B, 4] xywh in pixels"""
    areas: NDArray[np.float64]
    """[B] square pixels"""
    scores: NDArray[np.float64]
    """[B] the best of an image first; of true boxes 0"""
    is_crowd: NDArray[np.bool_]
    """[B] of found boxes false"""

    def rows_of(self, image_ids: NDArray[np.int64]) -> list[slice]:
        """Of each image its rows."""
        return rows_by_id(self.image_ids, image_ids)

    def places_in_image(self) -> NDArray[np.intp]:
        """[B] how many boxes of its image come before each."""
        return places_in_image(self.image_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxesOfClass:
    """All of one class."""

    truth: Boxes
    found: Boxes


def boxes_by_class(
    annotations: Annotations, detections: SplitDetections, ids: NDArray[np.int64]
) -> Iterator[BoxesOfClass]:
    """The boxes of each category id, of the found ones those that count; ids ascend.

    Equal scores keep the order of the detections.
    """
    image_ids = np.repeat(annotations.image_ids, np.diff(annotations.box_offsets))
    truth = np.lexsort((image_ids, annotations.box_category_ids))
    found = np.lexsort((-detections.scores, detections.image_ids, detections.category_ids))
    true_rows = rows_by_id(annotations.box_category_ids[truth], ids)
    found_rows = rows_by_id(detections.category_ids[found], ids)
    for true_part, found_part in zip(true_rows, found_rows, strict=True):
        rows = truth[true_part]
        yield BoxesOfClass(
            truth=Boxes(
                image_ids=image_ids[rows],
                boxes=xywh(annotations.boxes[rows]),
                areas=annotations.box_areas[rows],
                scores=np.zeros(len(rows)),
                is_crowd=annotations.box_is_crowd[rows],
            ),
            found=found_boxes_of(detections, found[found_part]),
        )


def places_in_image(image_ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """[B] how many rows of the same image come before each; an image's are next to each other."""
    _, first, counts = np.unique(image_ids, return_index=True, return_counts=True)
    return np.arange(len(image_ids)) - np.repeat(first, counts)


def found_boxes_of(detections: SplitDetections, rows: NDArray[np.intp]) -> Boxes:
    """Rows of detections, of each image the first 100; their areas are those of their boxes."""
    rows = rows[places_in_image(detections.image_ids[rows]) < MOST_BOXES]
    boxes = xywh(detections.boxes[rows])
    return Boxes(
        image_ids=detections.image_ids[rows],
        boxes=boxes,
        areas=boxes[:, 2] * boxes[:, 3],
        scores=detections.scores[rows].astype(np.float64),
        is_crowd=np.zeros(len(rows), np.bool_),
    )


def rows_by_id(column: NDArray[np.int64], ids: NDArray[np.int64]) -> list[slice]:
    """Of each id the rows that have it, in a column that ascends."""
    edges = np.searchsorted(column, ids), np.searchsorted(column, ids, side="right")
    return [slice(int(first), int(last)) for first, last in zip(*edges, strict=True)]
