"""A split of any size and what a detector finds in it, for measuring what size costs.

The numbers are those of OpenImages' validation split as MLPerf uses it: 24,781 images of 1024×768
pixels, 264 classes of which few have most boxes, 7.3 true boxes an image (Kuznetsova et al., 2020,
The Open Images Dataset V4, table 5: 303,980 boxes in 41,620 images), and 300 boxes found in each,
the most that the model's postprocessing keeps.
"""

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from retinanet.evaluation.detections import SplitDetections

CLASSES = 264
BOXES_OF_IMAGE = 7.3
GROUPS = 0.05
"""Share of boxes around several objects."""
WIDTH, HEIGHT = 1024, 768
FOUND_OF_A_BOX = 3
"""Boxes that a detector finds at each true one, as far as there is room for them."""


def generated_truth(*, images: int, random: np.random.Generator) -> Annotations:
    """Images with random boxes: at least one, 7.3 in the mean."""
    counts = random.geometric(1 / BOXES_OF_IMAGE, images)
    boxes = random_boxes(int(counts.sum()), random)
    return Annotations(
        category_ids=np.arange(1, CLASSES + 1),
        category_names=tuple(f"class {number}" for number in range(1, CLASSES + 1)),
        image_ids=np.arange(1, images + 1),
        file_names=tuple(f"{number:016x}.jpg" for number in range(images)),
        widths=np.full(images, WIDTH, np.int32),
        heights=np.full(images, HEIGHT, np.int32),
        box_offsets=np.concatenate([[0], np.cumsum(counts)]),
        boxes=boxes,
        box_category_ids=random_classes(len(boxes), random),
        box_is_crowd=random.random(len(boxes)) < GROUPS,
        box_areas=np.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        box_ids=np.arange(1, len(boxes) + 1),
    )


def generated_detections(
    truth: Annotations, *, found: int, random: np.random.Generator
) -> SplitDetections:
    """`found` boxes in each image: about three near each true box, the rest anywhere.

    Scores are as a detector's: many low ones, and higher ones where something is.
    """
    parts = [found_in(truth, index, found, random) for index in range(len(truth))]
    boxes, scores, classes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return SplitDetections(
        image_ids=np.repeat(truth.image_ids, found),
        boxes=boxes,
        scores=scores,
        category_ids=classes,
    )


def found_in(
    truth: Annotations, index: int, found: int, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Boxes, scores and classes of one image, the best first."""
    rows = np.arange(len(truth.boxes))[truth.boxes_of(index)]
    near = np.repeat(rows, FOUND_OF_A_BOX)[:found]
    sides = np.tile(truth.boxes[near, 2:] - truth.boxes[near, :2], 2)
    shaken = truth.boxes[near] + sides * random.normal(0, 0.1, sides.shape)
    elsewhere = found - len(near)
    classes = truth.box_category_ids[near]
    wrong = random.random(len(near)) < 0.2
    classes = np.where(wrong, random_classes(len(near), random), classes)
    scores = np.concatenate([random.beta(2, 3, len(near)), 0.05 + random.beta(1, 12, elsewhere)])
    order = np.argsort(-scores)
    boxes = np.concatenate([shaken, random_boxes(elsewhere, random)])
    classes = np.concatenate([classes, random_classes(elsewhere, random)])
    return boxes[order].astype(np.float32), scores[order].astype(np.float32), classes[order]


def random_boxes(count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """[count, 4] xyxy in pixels: sides from a fiftieth of the image's to all of it."""
    sides = np.exp(random.uniform(np.log(0.02), 0, (count, 2))) * (WIDTH, HEIGHT)
    corners = random.random((count, 2)) * ((WIDTH, HEIGHT) - sides)
    return np.concatenate([corners, corners + sides], axis=1)


def random_classes(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Category ids, the n-th as often as 1/n: a third of all boxes are of the first six."""
    shares = 1 / np.arange(1, CLASSES + 1)
    return random.choice(np.arange(1, CLASSES + 1), count, p=shares / shares.sum())
