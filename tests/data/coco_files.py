"""COCO-format files for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def random_content(*, images: int, boxes: int, seed: int = 0) -> dict[str, Any]:
    """Images with shuffled ids, three categories, boxes in no order, a few of crowds."""
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
    """Write a value as JSON; returns the path."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
