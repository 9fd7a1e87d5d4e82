"""Which found boxes of a class are at a true one, by faster-coco-eval's matching in C++.

The library is asked only about boxes that overlap a true one of their image enough to be matched at
all; the others are of no consequence to any match.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from faster_coco_eval import faster_eval_api_cpp as library
from faster_coco_eval.core.cocoeval import Params
from numpy.typing import NDArray
from pycocotools.mask import iou

from retinanet.evaluation.boxes_of_class import Boxes, BoxesOfClass

PARAMETERS = Params(iouType="bbox")
"""COCO's T thresholds of IoU, R recalls, A ranges of area and M limits of boxes an image."""
LOWEST_IOU = PARAMETERS.iouThrs[0]
CATEGORY = 1
"""Any number: the library sees one class at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matches:
    """C found boxes of a class, in the class's order: all that may be matched at any threshold."""

    rows: NDArray[np.intp]
    """[C] of the class's found boxes"""
    is_matched: NDArray[np.bool_]
    """[A, T, C] to a true box, be it one that does not count"""
    is_ignored: NDArray[np.bool_]
    """[A, T, C] neither right nor wrong: matched to a true box that does not count, or to none and
    of an area that does not"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Overlaps:
    """What may be matched in one image."""

    image_id: int
    true_rows: range
    """[G] of the class's true boxes"""
    found_rows: NDArray[np.intp]
    """[C] of the class's found boxes"""
    ious: NDArray[np.float64]
    """[C, G] of a crowd, the share of the found box that lies in it"""


def matches_of(boxes: BoxesOfClass) -> Matches:
    """Match a class's boxes in each image, best first."""
    images = list(overlaps_by_image(boxes))
    results = library.COCOevalEvaluateImages(
        PARAMETERS.areaRng,
        PARAMETERS.maxDets[-1],
        PARAMETERS.iouThrs.tolist(),
        [[image.ious] for image in images],
        dataset_of(boxes.truth, images, [image.true_rows for image in images]),
        dataset_of(boxes.found, images, [image.found_rows.tolist() for image in images]),
        [image.image_id for image in images],
        [CATEGORY],
        True,
    )
    matched, ignored = [], []
    for result in results:  # of all images for the first range of area, then the next
        # What the library gives to pickle is all that it lets one see of a result.
        true_ids, _, scores, _, is_ignored, *_ = result.__getstate__()
        shape = len(PARAMETERS.iouThrs), len(scores)
        matched.append(np.array(true_ids, dtype=np.bool_).reshape(shape))
        ignored.append(np.array(is_ignored, dtype=np.bool_).reshape(shape))
    return Matches(
        rows=np.concatenate([*(image.found_rows for image in images), np.zeros(0, np.intp)]),
        is_matched=by_area(matched),
        is_ignored=by_area(ignored),
    )


def by_area(parts: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """[A, T, C] of the images' [T, c], those for the first range of area first."""
    areas, thresholds = len(PARAMETERS.areaRng), len(PARAMETERS.iouThrs)
    if not parts:
        return np.zeros((areas, thresholds, 0), np.bool_)
    one_after_another = np.concatenate(parts, axis=1)
    return one_after_another.reshape(thresholds, areas, -1).swapaxes(0, 1)


def overlaps_by_image(boxes: BoxesOfClass) -> Iterator[Overlaps]:
    """The images in which a found box may be matched."""
    truth, found = boxes.truth, boxes.found
    images = np.intersect1d(truth.image_ids, found.image_ids)
    crowds = truth.is_crowd.astype(np.uint8)
    edges = zip(images.tolist(), truth.rows_of(images), found.rows_of(images), strict=True)
    for image_id, true_rows, found_rows in edges:
        ious = iou(found.boxes[found_rows], truth.boxes[true_rows], crowds[true_rows])
        places = np.flatnonzero((ious >= LOWEST_IOU).any(axis=1))
        if len(places):
            yield Overlaps(
                image_id=image_id,
                true_rows=range(true_rows.start, true_rows.stop),
                found_rows=found_rows.start + places,
                ious=ious[places],
            )


def dataset_of(
    boxes: Boxes, images: Sequence[Overlaps], rows: Sequence[Sequence[int]]
) -> library.Dataset:
    """The given rows of boxes for each image, with the fields that the matching reads."""
    dataset = library.Dataset()
    areas, scores, crowds = (
        column.tolist() for column in (boxes.areas, boxes.scores, boxes.is_crowd.astype(np.int64))
    )
    for image, of_image in zip(images, rows, strict=True):
        for row in of_image:
            box = {
                "id": row + 1,  # 0 says "no match"
                "area": areas[row],
                "score": scores[row],
                "iscrowd": crowds[row],
                "ignore": crowds[row],
            }
            dataset.append_ref(image.image_id, CATEGORY, box)
    return dataset
