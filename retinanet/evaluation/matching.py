"""Detections as columns, and which of them match a true box, by faster-coco-eval's C++.

`boxes_by_class` takes a split's boxes class after class. The library gets only boxes that overlap a
true one of their image enough to be matched at all; the others are of no consequence to any match.

Detections of an image and of a whole split are columns of numpy arrays. Of 7 million boxes, columns
take 0.3 GB and dicts 7 GB: `true_boxes` and `found_boxes` make a dict a box, as COCO's tools and
files have them, only for those that need them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import faster_eval_api_cpp as library
from faster_coco_eval.core.cocoeval import Params
from numpy.typing import NDArray
from pycocotools.mask import iou

from data.annotations import Annotations

PARAMETERS = Params(iouType="bbox")
"""COCO's T thresholds of IoU, R recalls, A ranges of area and M limits of boxes an image."""
LOWEST_IOU = PARAMETERS.iouThrs[0]
MOST_BOXES = PARAMETERS.maxDets[-1]  # COCO's largest limit of boxes an image and class: 100
CATEGORY = 1  # Any number: the library sees one class at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches:
    """C found boxes of a class, in the class's order: all that may be matched at any threshold."""

    rows: NDArray[np.intp]  # [C] of the class's found boxes
    is_matched: NDArray[np.bool_]  # [A, T, C] to a true box, be it one that does not count
    is_ignored: NDArray[np.bool_]
    """[A, T, C] neither right nor wrong: matched to a true box that does not count, or to none and
    of an area that does not"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """B boxes of one class, in the order of their images' ids."""

    image_ids: NDArray[np.int64]  # [B] ascending
    boxes: NDArray[np.float64]  # [B, 4] xywh in pixels
    areas: NDArray[np.float64]  # [B] square pixels
    scores: NDArray[np.float64]  # [B] the best of an image first; of true boxes 0
    is_crowd: NDArray[np.bool_]  # [B] of found boxes false


class Overlaps(NamedTuple):
    """The boxes of a class that may be matched in one image, by their rows among the class's."""

    image_id: int
    true_rows: range
    found_rows: NDArray[np.intp]
    ious: NDArray[np.float64]  # [C, G] of a crowd, the share of the found box that lies in it


def matches_of(truth: Boxes, found: Boxes) -> Matches:
    """Match a class's boxes in each image, best first."""
    images = []
    crowds = truth.is_crowd.astype(np.uint8)
    image_ids = np.intersect1d(truth.image_ids, found.image_ids)
    rows_of = (rows_by_id(boxes.image_ids, image_ids) for boxes in (truth, found))
    for image_id, true_rows, found_rows in zip(image_ids.tolist(), *rows_of, strict=True):
        ious = iou(found.boxes[found_rows], truth.boxes[true_rows], crowds[true_rows])
        places = np.flatnonzero((ious >= LOWEST_IOU).any(axis=1))
        if len(places):
            true_range = range(true_rows.start, true_rows.stop)
            images.append(Overlaps(image_id, true_range, found_rows.start + places, ious[places]))
    results = library.COCOevalEvaluateImages(
        PARAMETERS.areaRng,
        MOST_BOXES,
        PARAMETERS.iouThrs.tolist(),
        [[image.ious] for image in images],
        dataset_of(truth, images, [image.true_rows for image in images]),
        dataset_of(found, images, [image.found_rows.tolist() for image in images]),
        [image.image_id for image in images],
        [CATEGORY],
        True,
    )
    # Of no image at all, so that there is something to join.
    matched = [np.zeros((len(PARAMETERS.iouThrs), 0), np.bool_)]
    ignored = [matched[0]]
    for result in results:  # of all images for the first range of area, then the next
        # A result's fields are accessible only through its pickle state.
        true_ids, _, scores, _, is_ignored, *_ = result.__getstate__()
        shape = len(PARAMETERS.iouThrs), len(scores)
        matched.append(np.array(true_ids, dtype=np.bool_).reshape(shape))
        ignored.append(np.array(is_ignored, dtype=np.bool_).reshape(shape))
    rows = np.concatenate([*(image.found_rows for image in images), np.zeros(0, np.intp)])
    # Columns are of all images for one range after the other: [T, A·C] becomes [A, T, C].
    by_area = len(PARAMETERS.iouThrs), len(PARAMETERS.areaRng), len(rows)
    return Matches(
        rows=rows,
        is_matched=np.concatenate(matched, axis=1).reshape(by_area).swapaxes(0, 1),
        is_ignored=np.concatenate(ignored, axis=1).reshape(by_area).swapaxes(0, 1),
    )


def dataset_of(
    boxes: Boxes, images: Sequence[Overlaps], rows: Sequence[Sequence[int]]
) -> library.Dataset:
    """Return the given rows of boxes for each image, with the fields that the matching reads."""
    dataset = library.Dataset()
    areas, scores, crowds = (
        column.tolist() for column in (boxes.areas, boxes.scores, boxes.is_crowd.astype(np.int64))
    )
    for image, of_image in zip(images, rows, strict=True):
        for row in of_image:
            box = {
                "id": row + 1,  # 0 is the library's "no match"
                "area": areas[row],
                "score": scores[row],
                "iscrowd": crowds[row],
                "ignore": crowds[row],
            }
            dataset.append_ref(image.image_id, CATEGORY, box)
    return dataset


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """The detections in one image: D boxes, best first."""

    image_id: int  # the JSON's id
    boxes: NDArray[np.float64]  # [D, 4] xyxy in pixels of the original image
    scores: NDArray[np.float64]  # [D] probabilities
    category_ids: NDArray[np.int64]  # [D] the JSON's category ids

    def of_rows(self, rows: NDArray[np.bool_]) -> "ImageDetections":
        """Return some of the boxes, in their order."""
        columns = (self.boxes[rows], self.scores[rows], self.category_ids[rows])
        return ImageDetections(self.image_id, *columns)


@dataclass(frozen=True, eq=False)
class SplitDetections:
    """D boxes of a split's images: those of an image together, and its best first."""

    image_ids: NDArray[np.int64]  # [D] the JSON's ids
    boxes: NDArray[np.float32]  # [D, 4] xyxy in pixels of the original images
    scores: NDArray[np.float32]  # [D] probabilities
    category_ids: NDArray[np.int64]  # [D] the JSON's category ids

    @classmethod
    def of(cls, images: Iterable[ImageDetections]) -> "SplitDetections":
        """Join the detections of images, in their order; images without any leave no rows."""
        found = list(images)
        counts = [len(image.scores) for image in found]
        ids = np.array([image.image_id for image in found], dtype=np.int64)
        return cls(
            image_ids=np.repeat(ids, counts),
            boxes=np.concatenate([np.zeros((0, 4)), *(i.boxes for i in found)], dtype=np.float32),
            scores=np.concatenate([np.zeros(0), *(i.scores for i in found)], dtype=np.float32),
            category_ids=np.concatenate([np.zeros(0, int), *(i.category_ids for i in found)]),
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


def boxes_by_class(
    annotations: Annotations, detections: SplitDetections, ids: NDArray[np.int64]
) -> Iterator[tuple[Boxes, Boxes]]:
    """Yield true and found boxes of each category id, the latter as far as they count; ids ascend.

    Equal scores keep the order of the detections.
    """
    image_ids = np.repeat(annotations.image_ids, np.diff(annotations.box_offsets))
    truth = np.lexsort((image_ids, annotations.box_category_ids))
    found = np.lexsort((-detections.scores, detections.image_ids, detections.category_ids))
    true_rows = rows_by_id(annotations.box_category_ids[truth], ids)
    found_rows = rows_by_id(detections.category_ids[found], ids)
    for true_part, found_part in zip(true_rows, found_rows, strict=True):
        rows = truth[true_part]
        true = Boxes(
            image_ids=image_ids[rows],
            boxes=xywh(annotations.boxes[rows]),
            areas=annotations.box_areas[rows],
            scores=np.zeros(len(rows)),
            is_crowd=annotations.box_is_crowd[rows],
        )
        yield true, counting_boxes(detections, found[found_part])


def places_in_image(image_ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return [B] how many rows of an image come before each; an image's rows are together."""
    _, first, counts = np.unique(image_ids, return_index=True, return_counts=True)
    return np.arange(len(image_ids)) - np.repeat(first, counts)


def counting_boxes(detections: SplitDetections, rows: NDArray[np.intp]) -> Boxes:
    """Return rows of detections, of each image the first `MOST_BOXES`, with their areas."""
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
    """Return the rows of each id, in a column that ascends."""
    edges = np.searchsorted(column, ids), np.searchsorted(column, ids, side="right")
    return [slice(int(first), int(last)) for first, last in zip(*edges, strict=True)]


def xywh(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return COCO's xywh boxes [N, 4] of xyxy boxes [N, 4]."""
    corners = boxes.astype(np.float64)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def true_boxes(annotations: Annotations) -> list[dict[str, Any]]:
    """Return a split's boxes as COCO's tools read them, with ids from 1: 0 is their "no match"."""
    return as_dicts(
        image_id=np.repeat(annotations.image_ids, np.diff(annotations.box_offsets)),
        category_id=annotations.box_category_ids,
        bbox=xywh(annotations.boxes),
        area=annotations.box_areas,
        iscrowd=annotations.box_is_crowd.astype(np.int64),
    )


def found_boxes(detections: SplitDetections, rows: slice = slice(None)) -> list[dict[str, Any]]:
    """Return rows of detections in COCO's result format, with what `COCO.loadRes` adds."""
    boxes = xywh(detections.boxes[rows])
    return as_dicts(
        image_id=detections.image_ids[rows],
        category_id=detections.category_ids[rows],
        bbox=boxes,
        score=detections.scores[rows].astype(np.float64),
        area=boxes[:, 2] * boxes[:, 3],
        iscrowd=np.zeros(len(boxes), np.int64),
    )


def as_dicts(**columns: NDArray[Any]) -> list[dict[str, Any]]:
    """Return a dict a row, numbered from 1."""
    names = ("id", *columns)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(names, (number, *row), strict=True)) for number, row in enumerate(rows, 1)]
