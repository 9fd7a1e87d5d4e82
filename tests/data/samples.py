"""Small data sets in COCO's format."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data.annotations import Annotations, ClassMap, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset


def random_content(*, images: int, boxes: int, seed: int = 0) -> dict[str, Any]:
    """Return images with shuffled ids, three categories, and unordered boxes, some of crowds."""
    random = np.random.default_rng(seed)
    ids = random.permutation(10 * images)[:images].tolist()
    return {
        "info": {"year": 2026},
        "images": [
            {"id": i, "file_name": f"part{i % 3}/{i}.jpg", "width": 640, "height": 480 + i % 5}
            for i in ids
        ],
        "annotations": [
            {
                "id": 7 * number + 3,
                "image_id": ids[int(random.integers(images))],
                "category_id": int(random.choice([3, 90, 7])),
                "bbox": [float(value) for value in random.uniform(1, 200, size=4)],
                "iscrowd": int(random.random() < 0.3),
            }
            for number in range(boxes)
        ],
        "categories": [{"id": i, "name": f"kind {i}"} for i in (90, 3, 7)],
    }


def write_json(path: Path, content: object) -> Path:
    """Write a value as JSON; a string is written as it is. Returns the path."""
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def one_box_dataset(
    folder: Path,
    *,
    images: int = 10,
    cls: type[DetectionDataset] = DetectionDataset,
    train: bool,
    **rules: Any,
) -> DetectionDataset:
    """Write images 0.png, 1.png, … (ids from 100) with one box each, and open them."""
    random = np.random.default_rng(0)
    content: dict[str, Any] = {"images": [], "annotations": []}
    for index in range(images):
        pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        image = {"id": 100 + index, "file_name": f"{index}.png", "width": 32, "height": 24}
        box = {"id": index + 1, "image_id": 100 + index, "category_id": 1, "bbox": [2, 3, 8, 9]}
        content["images"].append(image)
        content["annotations"].append(box)
    content["categories"] = [{"id": 1, "name": "object"}]
    annotations = read_annotations(write_json(folder / "labels.json", content))
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    rules = {"image_size": 32} | rules
    return cls(annotations, folder, classes, TrainingRules(**rules), train=train)


def assert_same_annotations(opened: Annotations, expected: Annotations) -> None:
    """Compare all columns, and their types."""
    for field in fields(Annotations):
        a, b = getattr(opened, field.name), getattr(expected, field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype and a.shape == b.shape, field.name
        assert np.array_equal(np.asarray(a), np.asarray(b)), field.name
