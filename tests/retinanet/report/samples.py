"""Small splits with boxes whose matches are worked out by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.console import make_console
from data.annotations import BOX_COLUMNS, IMAGE_ARRAYS, Annotations
from data.formats.convert import write_annotations
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import ClassResult
from retinanet.report.curves import Curve

NAMES = ("cat", "dog", "bus")
IDS = (7, 3, 44)
"""Not ascending: the order of the categories is not that of their ids."""
CAT, DOG, BUS = IDS
Box = tuple[float, float, float, float]  # xyxy
True_ = tuple[int, Box] | tuple[int, Box, bool]  # category id, box, is crowd
Predicted = tuple[int, Box, float]  # category id, box, score


def split(
    *images: Sequence[True_], names: Sequence[str] = NAMES, ids: Sequence[int] = IDS
) -> Annotations:
    """Return annotations of images of 200×100 pixels; image i has the id 10 + i."""
    boxes = [box for image in images for box in image]
    corners = np.array([box[1] for box in boxes], np.float64).reshape(-1, 4)
    sides = corners[:, 2:] - corners[:, :2]
    return Annotations(
        category_ids=np.array(ids),
        category_names=tuple(names),
        image_ids=10 + np.arange(len(images)),
        file_names=tuple(f"{index}.png" for index in range(len(images))),
        widths=np.full(len(images), 200, np.int32),
        heights=np.full(len(images), 100, np.int32),
        is_displayed=np.zeros(len(images), dtype=np.bool_),
        box_offsets=np.cumsum([0, *map(len, images)]),
        boxes=corners,
        box_category_ids=np.array([box[0] for box in boxes], np.int64),
        box_is_crowd=np.array([len(box) > 2 and box[2] for box in boxes], np.bool_),
        box_areas=sides[:, 0] * sides[:, 1],
        box_ids=1 + np.arange(len(boxes)),
    )


def write_split(folder: Path, annotations: Annotations) -> None:
    """Write annotations, and pictures of noise, in the layout of a run's synthetic data."""
    (folder / "data").mkdir(parents=True)
    (folder / "labels").mkdir()
    sizes = zip(annotations.heights.tolist(), annotations.widths.tolist(), strict=True)
    for seed, (name, size) in enumerate(zip(annotations.file_names, sizes, strict=True)):
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "data" / name)
    file = folder / "labels" / "openimages-mlperf.json"
    write_annotations(file, annotations, console=make_console(quiet=True))


def predictions(*images: Sequence[Predicted]) -> SplitDetections:
    """Return the detections in the images of `split`."""
    return SplitDetections.from_images(
        ImageDetections(
            image_id=10 + index,
            boxes=np.array([box for _, box, _ in image], np.float64).reshape(-1, 4),
            scores=np.array([score for _, _, score in image], np.float64),
            category_ids=np.array([number for number, _, _ in image], np.int64),
        )
        for index, image in enumerate(images)
    )


def class_result(name: str, value: float, number: int = 1) -> ClassResult:
    """Return the result of a class whose metrics are all equal; NaN: it was not measured."""
    return ClassResult(
        category_id=number,
        name=name,
        map=value,
        map_50=value,
        map_75=value,
        mar_100=value,
        true_boxes=0 if math.isnan(value) else 7,
        found_boxes=9,
    )


def counts_at(curve: Curve, threshold: float) -> tuple[int, int]:
    """Return the numbers of right and of wrong boxes with at least a score."""
    right, wrong = (np.append(0, c) for c in (curve.true_positives, curve.false_positives))
    place = int((curve.scores >= threshold).sum())
    return int(right[place]), int(wrong[place])


def random_split(
    *, seed: int, images: int = 30, classes: int = 4
) -> tuple[Annotations, SplitDetections]:
    """Return boxes on a coarse grid, so that equal overlaps and scores occur, with some crowds."""
    random = np.random.default_rng(seed)

    def boxes(count: int) -> list[Box]:
        corners = random.integers(0, 8, (count, 2)) * 10.0
        sides = random.integers(1, 4, (count, 2)) * 10.0
        rows = np.concatenate([corners, corners + sides], axis=1).tolist()
        return [(a, b, c, d) for a, b, c, d in rows]

    ids = random.permutation(50)[:classes].tolist()
    truth, detected = [], []
    for _ in range(images):
        true_boxes = boxes(int(random.integers(0, 6)))
        truth.append(
            [(int(random.choice(ids)), box, bool(random.random() < 0.2)) for box in true_boxes]
        )
        found = boxes(int(random.integers(0, 12))) + true_boxes[::2]
        detected.append(
            [(int(random.choice(ids)), box, int(random.integers(1, 20)) / 20) for box in found]
        )
    names = [f"class {number}" for number in ids]
    return split(*truth, names=names, ids=ids), predictions(*detected)


def reordered(
    annotations: Annotations, detections: SplitDetections, *, seed: int
) -> tuple[Annotations, SplitDetections]:
    """Return the same split with its images, categories and all boxes in another order."""
    random = np.random.default_rng(seed)
    images = random.permutation(len(annotations))
    categories = random.permutation(len(annotations.category_ids))
    slices = [annotations.box_slice(index) for index in images]
    rows = np.concatenate([random.permutation(np.arange(s.start, s.stop)) for s in slices])
    truth = replace(
        annotations,
        category_ids=annotations.category_ids[categories],
        category_names=tuple(annotations.category_names[index] for index in categories),
        file_names=tuple(annotations.file_names[index] for index in images),
        box_offsets=np.cumsum([0, *(s.stop - s.start for s in slices)]),
        **{name: getattr(annotations, name)[images] for name in IMAGE_ARRAYS},
        **{name: getattr(annotations, name)[rows] for name in BOX_COLUMNS},
    )
    found = random.permutation(len(detections))
    return truth, SplitDetections(*(column[found] for column in detections.columns()))


def without_ties(
    annotations: Annotations, detections: SplitDetections, *, seed: int
) -> tuple[Annotations, SplitDetections]:
    """Return the split with boxes and scores moved a little, so that no two of them are equal."""
    random = np.random.default_rng(seed)

    def moved(values: NDArray[np.floating], by: float) -> NDArray[Any]:
        return (values + random.uniform(-by, by, values.shape)).astype(values.dtype)

    return (
        replace(annotations, boxes=moved(annotations.boxes, 0.5)),
        replace(
            detections, boxes=moved(detections.boxes, 0.5), scores=moved(detections.scores, 0.02)
        ),
    )
