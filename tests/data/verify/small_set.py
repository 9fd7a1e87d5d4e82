"""A small data set for tests of `retinanet data verify`, and ways to run it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ruamel.yaml import YAML

from common.options import check_outputs
from data.annotations import Split, TrainingRules
from data.dataset import SampleKey, open_data
from retinanet.verify_command import VerifyOptions, run
from tests.data.samples import write_json

WIDTH, HEIGHT, IMAGES = 64, 48, 6
IMAGE_SIZE = 64
Content = dict[str, Any]


def small_content() -> Content:
    """Return six images with two boxes each, and three categories."""
    return {
        "images": [
            {"id": 10 + n, "file_name": f"{n}.jpg", "width": WIDTH, "height": HEIGHT}
            for n in range(IMAGES)
        ],
        "annotations": [
            {
                "id": 100 + n,
                "image_id": 10 + n % IMAGES,
                "category_id": (3, 5, 9)[n % 3],
                "bbox": [2 + n, 3, 20, 10],
                "iscrowd": 0,
            }
            for n in range(2 * IMAGES)
        ],
        "categories": [{"id": i, "name": f"kind {i}"} for i in (3, 5, 9)],
    }


def write_split(folder: Path, content: object) -> Split:
    """Write annotations and the six images."""
    (folder / "images").mkdir(parents=True)
    random = np.random.default_rng(list(folder.name.encode()))  # no image is in both splits
    for n in range(IMAGES):
        pixels = random.integers(0, 256, size=(HEIGHT, WIDTH, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{n}.jpg")
    return Split(write_json(folder / "labels.json", content), folder / "images")


def write_splits(
    folder: Path, train: object = None, validation: object = None, **data: object
) -> tuple[Path, Split, Split]:
    """Write both splits (default: `small_content`) and their configuration, which comes first."""
    splits = (
        write_split(folder / "train", train or small_content()),
        write_split(folder / "validation", validation or small_content()),
    )
    return write_config(folder, splits[0], splits[1], **data), *splits


def both_splits(folder: Path) -> tuple[Split, Split]:
    """Return the splits that `write_splits` wrote."""
    train, validation = folder / "train", folder / "validation"
    return (
        Split(train / "labels.json", train / "images"),
        Split(validation / "labels.json", validation / "images"),
    )


def write_config(folder: Path, train: Split, validation: Split, **data: object) -> Path:
    """Write a configuration with the two splits."""
    settings = {
        "train_annotations": str(train.annotations),
        "train_images": str(train.images),
        "validation_annotations": str(validation.annotations),
        "validation_images": str(validation.images),
        "image_size": IMAGE_SIZE,
        **data,
    }
    path = folder / "small.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML().dump({"data": settings}, file)
    return path


def verify(config: Path, *overrides: str, **options: Any) -> tuple[int, Content]:
    """Run the command; return its exit code and its JSON."""
    file = options.setdefault("json", config.with_suffix(".json"))
    file.unlink(missing_ok=True)
    taken = VerifyOptions(config=str(config), overrides=list(overrides), **options)
    check_outputs(taken)
    code = run(taken)
    return code, json.loads(file.read_text(encoding="utf-8"))


def counts(report: Content, split: str = "train") -> dict[str, int]:
    """Return the number of findings of each kind."""
    return {each["name"]: each["count"] for each in report["splits"][split]["findings"]}


def entries(report: Content, name: str, split: str = "train") -> list[str]:
    """Return the places of a finding."""
    findings = report["splits"][split]["findings"]
    return [place["entry"] for each in findings if each["name"] == name for place in each["places"]]


def train_on(
    train: Split,
    validation: Split,
    *,
    note: Callable[[tuple[str, ...]], object] = lambda bad_images: None,
    **options: Any,
) -> int:
    """Read all samples of both splits as a run does; returns how many boxes they have."""
    settings: dict[str, Any] = {"skip_images_without_boxes": True, **options}
    opened = open_data(train, validation, TrainingRules(image_size=IMAGE_SIZE, **settings))
    boxes = 0
    for dataset in (opened.train, opened.validation):
        for index in range(len(dataset)):
            sample = dataset[SampleKey(index, index)]
            note(sample.bad_images)
            boxes += len(sample.target["labels"])
    return boxes
