"""A COCO-format JSON in two: every image, with its boxes, on one side."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from data.coco_json import read_annotations
from data.sources import SPLITS, SplitName
from data.split.stratify import stratified_rows
from retinanet.errors import InputError
from retinanet.regular_files import read_bytes

Content = dict[str, Any]
"""A COCO-format JSON, parsed."""

MOST_BYTES = 2_000_000_000
"""Of annotations to split: parsed they take about eight times as much memory."""


def read_content(path: Path) -> Content:
    """The file with all its fields, of which those that training reads are checked.

    Raises:
        InputError: One line, as `read_annotations`.
    """
    read_annotations(path)
    try:
        content: Content = json.loads(read_bytes(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise InputError(f"{path}: not JSON that can be read: it is nested too deep") from error
    return content


def split_content(content: Content, *, validation: float, seed: int) -> dict[SplitName, Content]:
    """Deal the images out at random, each class in the shares of the whole; see `stratify.py`.

    Args:
        content: Checked, as `read_content` gives it.
        validation: The share of the images to evaluate on; each side gets one image at least.
        seed: The same one gives the same splits.

    Returns:
        Each split with its images and their boxes in their old order, and all other fields.

    Raises:
        InputError: There are fewer than two images.
    """
    ids = [image["id"] for image in content["images"]]
    if len(ids) < 2:
        raise InputError(f"images: {len(ids)}; two sides need two at least")
    count = min(max(round(len(ids) * validation), 1), len(ids) - 1)
    shown = classes_of_images(content)
    rows = stratified_rows([shown[image_id] for image_id in ids], count=count, seed=seed)
    held_out = {ids[row] for row in rows}
    parts: dict[SplitName, set[int]] = {"train": set(ids) - held_out, "validation": held_out}
    return {split: only_images(content, parts[split]) for split in SPLITS}


def only_images(content: Content, ids: Iterable[int]) -> Content:
    """The same without the images that are not named, and their boxes."""
    kept = set(ids)
    images = [image for image in content["images"] if image["id"] in kept]
    boxes = [box for box in content["annotations"] if box["image_id"] in kept]
    return content | {"images": images, "annotations": boxes}


def classes_of_images(content: Content) -> Mapping[int, frozenset[int]]:
    """Return the ids of the categories that each image has a box of, by the image's id."""
    found: dict[int, set[int]] = {image["id"]: set() for image in content["images"]}
    for box in content["annotations"]:
        found[box["image_id"]].add(box["category_id"])
    return {image_id: frozenset(ids) for image_id, ids in found.items()}


def images_of_classes(content: Content) -> dict[str, int]:
    """How many images show each class, in the order of the categories."""
    counts = Counter(one for ids in classes_of_images(content).values() for one in ids)
    return {category["name"]: counts[category["id"]] for category in content["categories"]}


def boxes_of_classes(content: Content) -> dict[str, int]:
    """How many boxes each class has, in the order of the categories."""
    counts = Counter(box["category_id"] for box in content["annotations"])
    return {category["name"]: counts[category["id"]] for category in content["categories"]}
