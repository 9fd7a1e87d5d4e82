"""Annotations of any size, with the fields of MLPerf's export, for measuring what size costs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from retinanet.progress import Advance

CLASSES = 264
WIDTH, HEIGHT = 1024, 768
GROUPS = 0.05
"""Share of boxes around several objects."""
IMAGES_AT_ONCE = 20_000


def write_annotations(path: Path, *, images: int, boxes: int, advance: Advance) -> None:
    """Write COCO-format JSON of random boxes, spread over the images at random.

    Args:
        path: The file.
        images: How many images.
        boxes: How many boxes in all.
        advance: Called as `advance(images done, "")`.
    """
    random = np.random.default_rng(0)
    boxes_of_image = np.bincount(random.integers(images, size=boxes), minlength=images)
    categories = [
        {"id": index, "name": f"class {index}", "supercategory": None} for index in range(CLASSES)
    ]
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"info": {{}}, "licenses": [], "categories": {json.dumps(categories)}')
        write_list(file, "images", (image_texts(part) for part in parts(images)))
        blocks = box_blocks(boxes_of_image, random=random, advance=advance)
        write_list(file, "annotations", blocks)
        file.write("}\n")


def box_blocks(
    boxes_of_image: NDArray[np.int64], *, random: np.random.Generator, advance: Advance
) -> Iterator[list[str]]:
    """The entries of `annotations`, image by image, some at a time."""
    first = 1
    for part in parts(len(boxes_of_image)):
        image_ids = np.repeat(np.array(part) + 1, boxes_of_image[part.start : part.stop])
        yield box_texts(image_ids, first=first, random=random)
        first += len(image_ids)
        advance(part.stop, "")


def parts(images: int) -> Iterator[range]:
    """Ranges of images, some at a time."""
    for start in range(0, images, IMAGES_AT_ONCE):
        yield range(start, min(images, start + IMAGES_AT_ONCE))


def write_list(file: TextIO, name: str, blocks: Iterator[list[str]]) -> None:
    """A member of the object that holds the entries of all blocks."""
    file.write(f', "{name}": [')
    separator = ""
    for texts in blocks:
        if texts:
            file.write(separator + ", ".join(texts))
            separator = ", "
    file.write("]")


def image_texts(images: range) -> list[str]:
    """Entries of `images`, as JSON."""
    return [
        f'{{"id": {index + 1}, "file_name": "{index * 2654435761:016x}.jpg", "height": {HEIGHT}, '
        f'"width": {WIDTH}, "license": null, "coco_url": null}}'
        for index in images
    ]


def box_texts(
    image_ids: NDArray[np.int64], *, first: int, random: np.random.Generator
) -> list[str]:
    """Entries of `annotations` from id `first` on, as JSON."""
    count = len(image_ids)
    corners = random.random((count, 2)) * (0.6 * WIDTH, 0.6 * HEIGHT)
    sides = random.random((count, 2)) * (0.4 * WIDTH, 0.4 * HEIGHT) + 1
    columns = zip(
        image_ids.tolist(),
        random.integers(CLASSES, size=count).tolist(),
        corners.tolist(),
        sides.tolist(),
        (random.random(count) < GROUPS).tolist(),
        strict=True,
    )
    return [
        f'{{"id": {number}, "image_id": {image}, "category_id": {category}, '
        f'"bbox": [{x!r}, {y!r}, {w!r}, {h!r}], "area": {w * h!r}, "iscrowd": {int(group)}, '
        f'"IsOccluded": false, "IsInside": false, "IsDepiction": false, "IsTruncated": true, '
        f'"IsGroupOf": {"true" if group else "false"}}}'
        for number, (image, category, (x, y), (w, h), group) in enumerate(columns, start=first)
    ]
