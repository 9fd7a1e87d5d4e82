"""A COCO-format JSON in two: every image, with its boxes, on one side."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from data.coco_json import read_annotations
from data.sources import SPLITS, SplitName
from retinanet.errors import InputError

Content = dict[str, Any]
"""A COCO-format JSON, parsed."""


def read_content(path: Path) -> Content:
    """The file with all its fields, of which those that training reads are checked.

    Raises:
        InputError: One line, as `read_annotations`.
    """
    read_annotations(path)
    content: Content = json.loads(path.read_text(encoding="utf-8-sig"))
    return content


def split_content(content: Content, *, validation: float, seed: int) -> dict[SplitName, Content]:
    """Deal the images out at random.

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
    held_out = set(Random(seed).sample(ids, count))
    parts: dict[SplitName, set[int]] = {"train": set(ids) - held_out, "validation": held_out}
    return {split: only_images(content, parts[split]) for split in SPLITS}


def only_images(content: Content, ids: Iterable[int]) -> Content:
    """The same without the images that are not named, and their boxes."""
    kept = set(ids)
    images = [image for image in content["images"] if image["id"] in kept]
    boxes = [box for box in content["annotations"] if box["image_id"] in kept]
    return content | {"images": images, "annotations": boxes}


def boxes_of_classes(content: Content) -> dict[str, int]:
    """How many boxes each class has, in the order of the categories."""
    counts = Counter(box["category_id"] for box in content["annotations"])
    return {category["name"]: counts[category["id"]] for category in content["categories"]}
