import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.annotations import Split
from data.dataset import DetectionData, open_data

CATEGORIES = [{"id": 7, "name": "seven"}, {"id": 2, "name": "two"}]


def split(folder: Path, *, categories: list[dict[str, Any]] = CATEGORIES) -> Split:
    folder.mkdir()
    Image.fromarray(np.zeros((40, 80, 3), np.uint8)).save(folder / "one.png")
    content = {
        "images": [{"id": 5, "file_name": "one.png", "width": 80, "height": 40}],
        "annotations": [
            {"id": 1, "image_id": 5, "category_id": categories[0]["id"], "bbox": [1, 2, 30, 20]}
        ],
        "categories": categories,
    }
    (folder / "labels.json").write_text(json.dumps(content))
    return Split(folder / "labels.json", folder)


def opened(
    train: Split,
    validation: Split,
    *,
    class_indices: str = "contiguous",
    num_classes: int | None = None,
) -> DetectionData:
    return open_data(
        train,
        validation,
        image_size=64,
        class_indices=class_indices,
        num_classes=num_classes,
        skip_images_without_boxes=False,
    )


def test_both_splits_share_the_training_splits_classes(tmp_path: Path) -> None:
    train = split(tmp_path / "train")
    validation = split(tmp_path / "validation", categories=CATEGORIES[::-1])
    data = opened(train, validation)
    assert data.classes.category_ids == (7, 2) and data.classes.names == ("seven", "two")
    assert data.train.class_map == data.validation.class_map == data.classes
    assert data.train.train and not data.validation.train
    assert data.train.image_size == data.validation.image_size == 64


@pytest.mark.parametrize(("num_classes", "outputs"), [(None, 8), (8, 8), (91, 91)])
def test_category_ids_as_class_indices(
    num_classes: int | None, outputs: int, tmp_path: Path
) -> None:
    data = opened(
        split(tmp_path / "train"),
        split(tmp_path / "validation"),
        class_indices="category_id",
        num_classes=num_classes,
    )
    assert data.classes.num_classes == outputs
    assert data.classes.names[7] == "seven" and data.classes.names[3] == "N/A"


def test_a_category_id_out_of_range_names_the_file_and_the_entry(tmp_path: Path) -> None:
    train, validation = split(tmp_path / "train"), split(tmp_path / "validation")
    with pytest.raises(InputError, match=r"categories\[0\]\.id: 7 \(seven\)") as caught:
        opened(train, validation, class_indices="category_id", num_classes=7)
    assert str(caught.value).startswith(f"{train.annotations}: ")


@pytest.mark.parametrize("num_classes", [1, 3])
def test_contiguous_classes_must_be_as_many_as_the_categories(
    num_classes: int, tmp_path: Path
) -> None:
    train, validation = split(tmp_path / "train"), split(tmp_path / "validation")
    with pytest.raises(InputError, match=f"has 2 categories, model.num_classes is {num_classes}"):
        opened(train, validation, num_classes=num_classes)


def test_splits_of_different_categories_are_refused(tmp_path: Path) -> None:
    train = split(tmp_path / "train")
    validation = split(tmp_path / "validation", categories=[{"id": 7, "name": "other"}])
    with pytest.raises(InputError, match="same categories") as caught:
        opened(train, validation)
    assert str(caught.value).startswith(f"{validation.annotations}: ")


def test_a_class_name_that_no_checkpoint_can_hold_is_refused(tmp_path: Path) -> None:
    names = [{"id": 1, "name": "cat"}, {"id": 2, "name": "half a \ud83d"}]
    train = split(tmp_path / "train", categories=names)
    with pytest.raises(InputError) as caught:
        opened(train, split(tmp_path / "validation", categories=names))
    assert str(caught.value).startswith(f"{train.annotations}: categories[1].name: ")


def test_annotations_without_boxes_are_named(tmp_path: Path) -> None:
    train = split(tmp_path / "train")
    content = json.loads(train.annotations.read_text())
    train.annotations.write_text(json.dumps(content | {"annotations": []}))
    with pytest.raises(InputError) as caught:
        open_data(
            train,
            split(tmp_path / "validation"),
            image_size=64,
            class_indices="contiguous",
            num_classes=None,
            skip_images_without_boxes=True,
        )
    assert str(caught.value).startswith(f"{train.annotations}: ")
    assert "data.images_without_boxes" in str(caught.value)


def test_a_file_name_that_the_system_refuses_is_told_in_a_line(tmp_path: Path) -> None:
    train = split(tmp_path / "train")
    content = json.loads(train.annotations.read_text())
    content["images"][0]["file_name"] = "ü" * 128 + ".png"
    train.annotations.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"File name too long; .*file_name"):
        opened(train, split(tmp_path / "validation"))
