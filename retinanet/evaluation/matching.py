"""Detections as columns, and their matches with true boxes by faster-coco-eval's C++.

`boxes_by_class` takes a split's boxes class after class. The library gets only boxes that overlap a
true box of their image enough to be matched at all; other boxes cannot change any match.

Detections of an image and of a whole split are columns of numpy arrays. For 7 million boxes,
columns take 0.3 GB and dicts 7 GB: `true_box_dicts` and `detection_dicts` build a dict per box only
for COCO's tools and files.
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

from data.annotations import Annotations, positions_in

PARAMETERS = Params(iouType="bbox")
"""COCO's T thresholds of IoU, R recalls, A ranges of area and M limits of boxes per image."""
LOWEST_IOU = PARAMETERS.iouThrs[0]
MOST_BOXES = PARAMETERS.maxDets[-1]  # COCO's largest limit of boxes per image and class: 100
CATEGORY = 1  # Any number: the library gets one class at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches:
    """C detections of a class, in the class's order: all that may be matched at any threshold."""

    rows: NDArray[np.intp]  # [C] indices of the class's detections
    is_matched: NDArray[np.bool_]  # [A, T, C] to a true box, also one that does not count
    is_ignored: NDArray[np.bool_]
    """[A, T, C] neither right nor wrong: matched to a true box that does not count, or to none and
    of an area that does not"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """B boxes of one class, in the order of their images' ids."""

    images: NDArray[np.int32]
    """[B] ascending: the image's place among the split's ids in ascending order. The library rounds
    ids themselves to 53 bits"""
    boxes: NDArray[np.float64]  # [B, 4] xywh in pixels
    areas: NDArray[np.float64]  # [B] square pixels
    scores: NDArray[np.float64]  # [B] descending within an image; 0 for true boxes
    is_crowd: NDArray[np.bool_]  # [B] False for detections


class Overlaps(NamedTuple):
    """The boxes of a class that may be matched in one image, as rows of the class's boxes."""

    image: int  # As in `Boxes.images`
    true_rows: range
    detection_rows: NDArray[np.intp]
    ious: NDArray[np.float64]  # [C, G]; for a crowd, the part of the detection inside it


def match_class(truth: Boxes, detections: Boxes) -> Matches:
    """Match a class's boxes in each image, in descending order of score."""
    images = []
    crowds = truth.is_crowd.astype(np.uint8)
    common = np.intersect1d(truth.images, detections.images)
    row_slices = (rows_by_id(boxes.images, common) for boxes in (truth, detections))
    for image, true_rows, detection_rows in zip(common.tolist(), *row_slices, strict=True):
        ious = iou(detections.boxes[detection_rows], truth.boxes[true_rows], crowds[true_rows])
        candidates = np.flatnonzero((ious >= LOWEST_IOU).any(axis=1))
        if len(candidates):
            true_range = range(true_rows.start, true_rows.stop)
            rows = detection_rows.start + candidates
            images.append(Overlaps(image, true_range, rows, ious[candidates]))
    results = library.COCOevalEvaluateImages(
        PARAMETERS.areaRng,
        MOST_BOXES,
        PARAMETERS.iouThrs.tolist(),
        [[image.ious] for image in images],
        make_dataset(truth, images, [image.true_rows for image in images]),
        make_dataset(detections, images, [image.detection_rows.tolist() for image in images]),
        [image.image for image in images],
        [CATEGORY],
        True,
    )
    # np.concatenate needs at least one array, even if no image has candidates.
    matched = [np.zeros((len(PARAMETERS.iouThrs), 0), np.bool_)]
    ignored = [matched[0]]
    for result in results:  # all images for the first range of area, then for the next
        # A result's fields are accessible only through its pickle state.
        true_ids, _, scores, _, is_ignored, *_ = result.__getstate__()
        shape = len(PARAMETERS.iouThrs), len(scores)
        matched.append(np.array(true_ids, dtype=np.bool_).reshape(shape))
        ignored.append(np.array(is_ignored, dtype=np.bool_).reshape(shape))
    rows = np.concatenate([*(image.detection_rows for image in images), np.zeros(0, np.intp)])
    # The library orders columns by range of area, then image: [T, A·C] becomes [A, T, C].
    by_area = len(PARAMETERS.iouThrs), len(PARAMETERS.areaRng), len(rows)
    return Matches(
        rows=rows,
        is_matched=np.concatenate(matched, axis=1).reshape(by_area).swapaxes(0, 1),
        is_ignored=np.concatenate(ignored, axis=1).reshape(by_area).swapaxes(0, 1),
    )


def make_dataset(
    boxes: Boxes, images: Sequence[Overlaps], rows: Sequence[Sequence[int]]
) -> library.Dataset:
    """Return the given rows of boxes for each image, with the fields that the matching reads."""
    dataset = library.Dataset()
    areas, scores, crowds = (
        column.tolist() for column in (boxes.areas, boxes.scores, boxes.is_crowd.astype(np.int64))
    )
    for image, image_rows in zip(images, rows, strict=True):
        for row in image_rows:
            box = {
                "id": row + 1,  # the library uses 0 for "no match"
                "area": areas[row],
                "score": scores[row],
                "iscrowd": crowds[row],
                "ignore": crowds[row],
            }
            dataset.append_ref(image.image, CATEGORY, box)
    return dataset


@dataclass(frozen=True, eq=False)
class ImageDetections:
    """The detections in one image: D boxes in descending order of score."""

    image_id: int  # the JSON's id
    boxes: NDArray[np.float64]  # [D, 4] xyxy in pixels of the original image
    scores: NDArray[np.float64]  # [D] probabilities
    category_ids: NDArray[np.int64]  # [D] the JSON's category ids

    def select(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "ImageDetections":
        """Return the boxes of some rows, in their order."""
        columns = (self.boxes[rows], self.scores[rows], self.category_ids[rows])
        return ImageDetections(self.image_id, *columns)


@dataclass(frozen=True, eq=False)
class SplitDetections:
    """D boxes of a split's images: boxes of an image are together, in descending order of score."""

    image_ids: NDArray[np.int64]  # [D] the JSON's ids
    boxes: NDArray[np.float32]  # [D, 4] xyxy in pixels of the original images
    scores: NDArray[np.float32]  # [D] probabilities
    category_ids: NDArray[np.int64]  # [D] the JSON's category ids

    @classmethod
    def from_images(cls, images: Iterable[ImageDetections]) -> "SplitDetections":
        """Join the detections of images, in their order; images without any leave no rows."""
        images = list(images)
        counts = [len(image.scores) for image in images]
        ids = np.array([image.image_id for image in images], dtype=np.int64)
        return cls(
            image_ids=np.repeat(ids, counts),
            boxes=np.concatenate([np.zeros((0, 4)), *(i.boxes for i in images)], dtype=np.float32),
            scores=np.concatenate([np.zeros(0), *(i.scores for i in images)], dtype=np.float32),
            category_ids=np.concatenate([np.zeros(0, int), *(i.category_ids for i in images)]),
        )

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.scores)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def in_image(self, image_id: int) -> ImageDetections:
        """Return the detections in one image."""
        ids = self.image_ids[self._by_image]
        first, last = np.searchsorted(ids, image_id), np.searchsorted(ids, image_id, side="right")
        return self.as_image(image_id, self._by_image[first:last])

    def as_image(self, image_id: int, rows: NDArray[np.intp]) -> ImageDetections:
        """Return the detections of some rows, all of one image, in their order."""
        return ImageDetections(
            image_id=image_id,
            boxes=self.boxes[rows].astype(np.float64),
            scores=self.scores[rows].astype(np.float64),
            category_ids=self.category_ids[rows],
        )

    @cached_property
    def _by_image(self) -> NDArray[np.intp]:
        """Return the rows in order of image id, then of descending score."""
        return np.lexsort((-self.scores, self.image_ids))


def boxes_by_class(
    annotations: Annotations, detections: SplitDetections
) -> Iterator[tuple[Boxes, Boxes]]:
    """Yield true boxes and counted detections of each category, in ascending order of ids.

    Equal scores keep the order of the detections.
    """
    in_order, ids = np.sort(annotations.image_ids), np.sort(annotations.category_ids)
    true_images = np.repeat(
        positions_in(in_order, annotations.image_ids), np.diff(annotations.box_offsets)
    )
    images = positions_in(in_order, detections.image_ids)
    # The last key of lexsort counts most: class, then image, then score.
    truth = np.lexsort((true_images, annotations.box_category_ids))
    detected = np.lexsort((-detections.scores, images, detections.category_ids))
    true_rows = rows_by_id(annotations.box_category_ids[truth], ids)
    detection_rows = rows_by_id(detections.category_ids[detected], ids)
    for true_part, detected_part in zip(true_rows, detection_rows, strict=True):
        rows = truth[true_part]
        true = Boxes(
            images=true_images[rows],
            boxes=xywh(annotations.boxes[rows]),
            areas=annotations.box_areas[rows],
            scores=np.zeros(len(rows)),
            is_crowd=annotations.box_is_crowd[rows],
        )
        yield true, counted_boxes(detections, images, detected[detected_part])


def ranks_in_group(groups: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return [B] how many earlier rows have the number of each row; the numbers ascend."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def counted_boxes(
    detections: SplitDetections, images: NDArray[np.int32], rows: NDArray[np.intp]
) -> Boxes:
    """Return rows, in the order of `images` [D], with their areas: `MOST_BOXES` of each image."""
    # COCO's limit applies before the matching: a box beyond it cannot match a true box.
    rows = rows[ranks_in_group(images[rows]) < MOST_BOXES]
    boxes = xywh(detections.boxes[rows])
    return Boxes(
        images=images[rows],
        boxes=boxes,
        areas=boxes[:, 2] * boxes[:, 3],
        scores=detections.scores[rows].astype(np.float64),
        is_crowd=np.zeros(len(rows), np.bool_),
    )


def rows_by_id(column: NDArray[np.integer], ids: NDArray[np.integer]) -> list[slice]:
    """Return the rows of each id in an ascending column."""
    edges = np.searchsorted(column, ids), np.searchsorted(column, ids, side="right")
    return [slice(int(first), int(last)) for first, last in zip(*edges, strict=True)]


def xywh(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return COCO's xywh boxes [N, 4] of xyxy boxes [N, 4]."""
    corners = boxes.astype(np.float64)
    return np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)


def true_box_dicts(annotations: Annotations) -> list[dict[str, Any]]:
    """Return a split's boxes as COCO's tools read them; ids from 1, since 0 means "no match"."""
    return as_dicts(
        image_id=np.repeat(annotations.image_ids, np.diff(annotations.box_offsets)),
        category_id=annotations.box_category_ids,
        bbox=xywh(annotations.boxes),
        area=annotations.box_areas,
        iscrowd=annotations.box_is_crowd.astype(np.int64),
    )


def detection_dicts(detections: SplitDetections, rows: slice = slice(None)) -> list[dict[str, Any]]:
    """Return rows of detections in COCO's result format, with the fields of `COCO.loadRes`."""
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
    """Return one dict per row, with ids from 1."""
    names = ("id", *columns)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(names, (number, *row), strict=True)) for number, row in enumerate(rows, 1)]
