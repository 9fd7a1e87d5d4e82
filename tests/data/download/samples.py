"""Tiny data sets as on their servers: file contents by path."""

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from tests.data.openimages.csv_tables import HEADER

LABELS = {"/m/01yrx": "Cat", "/m/0bt9lr": "Dog", "/m/03k3r": "Horse", "/m/0xyz": "Ratchet"}


def jpeg(seed: int, *, width: int = 40, height: int = 30) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def coco(*, train: int, validation: int) -> dict[str, bytes]:
    """Return COCO's files; every third image has a cat, every fourth a dog."""
    files: dict[str, bytes] = {}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        for number, (folder, count) in enumerate(
            {"train2017": train, "val2017": validation}.items()
        ):
            # Not in the order of their names, as in COCO's own JSON.
            ids = random.Random(number).sample(range(1, 1000), count)
            for image_id in ids:
                files[f"/{folder}/{image_id:012}.jpg"] = jpeg(image_id + 1000 * number)
            content = json.dumps(coco_json(ids))
            members.writestr(_dated(f"annotations/instances_{folder}.json"), content)
            members.writestr(_dated(f"annotations/captions_{folder}.json"), "{}")
    return {"/annotations/annotations_trainval2017.zip": archive.getvalue(), **files}


def coco_json(ids: list[int]) -> dict[str, object]:
    names = [f"{image_id:012}.jpg" for image_id in ids]
    boxes = [
        {"image_id": image_id, "category_id": category, "bbox": [1.5, 2.25, 10.0, 12.5]}
        for index, image_id in enumerate(ids)
        for category in [17] * (index % 3 == 0) + [18] * (index % 4 == 0)
    ]
    return {
        "info": {"description": "test"},
        "licenses": [{"id": 1, "name": "none"}],
        "images": [
            {"id": image_id, "file_name": name, "width": 40, "height": 30, "license": 1}
            for image_id, name in zip(ids, names, strict=True)
        ],
        "annotations": [{"id": index, "iscrowd": 0, **box} for index, box in enumerate(boxes)],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
    }


def openimages(*, train: int, validation: int) -> dict[str, bytes]:
    """Return OpenImages' files; each image has a cat, or a dog, or a horse and a ratchet."""
    names = "".join(f"{label},{name}\n" for label, name in LABELS.items())
    files = {"/class-descriptions-boxable.csv": names.encode()}
    tables = {
        "train": ("oidv6-train-annotations-bbox.csv", train),
        "validation": ("validation-annotations-bbox.csv", validation),
    }
    labels = list(LABELS)
    for number, (split, (table, count)) in enumerate(tables.items()):
        lines = [HEADER]
        for index in range(count):
            image_id = hashlib.sha256(f"{split} {index}".encode()).hexdigest()[:16]
            files[f"/{split}/{image_id}.jpg"] = jpeg(index + 5000 * (number + 1))
            for label in [labels[index % 3]] + ["/m/0xyz"] * (index % 3 == 2):
                lines.append(f"{image_id},xclick,{label},1,0.1,0.75,0.25,0.9,0,0,{index % 2},0,0")
        files[f"/{table}"] = ("\n".join(lines) + "\n").encode()
    return files


def tree(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _dated(name: str) -> zipfile.ZipInfo:
    """Return a member with a fixed date, for equal bytes."""
    member = zipfile.ZipInfo(name, (2017, 9, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    return member
