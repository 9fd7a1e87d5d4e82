"""What is trained, as the data says it."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from common.errors import InputError
from profiling.studies.tune.measure import TrainedData, synthetic_data, trained_data
from retinanet.config_file import load_config

QUIET = Console(quiet=True)


def annotations(file: Path, *, images: int, with_boxes: int) -> Path:
    """COCO's JSON of some images, the first of which have a box."""
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.jpg", "width": 64, "height": 64}
            for number in range(images)
        ],
        "annotations": [
            {"id": number + 1, "image_id": number, "category_id": 3, "bbox": [1, 1, 20, 20]}
            | {"area": 400, "iscrowd": 0}
            for number in range(with_boxes)
        ],
        "categories": [{"id": 3, "name": "cup"}, {"id": 7, "name": "jug"}],
    }
    file.write_text(json.dumps(content))
    return file


def own_data(folder: Path) -> tuple[str, ...]:
    """Settings of a data set of one's own, on top of coco.yaml."""
    (folder / "0.jpg").touch()
    train = annotations(folder / "train.json", images=5, with_boxes=3)
    validation = annotations(folder / "validation.json", images=2, with_boxes=2)
    return (
        "data.root=null",
        f"data.train_annotations={train}",
        f"data.train_images={folder}",
        f"data.validation_annotations={validation}",
        f"data.validation_images={folder}",
        "data.class_indices=contiguous",
        "model.num_classes=null",
    )


def test_own_data_has_the_images_that_train_and_its_classes(tmp_path: Path) -> None:
    overrides = own_data(tmp_path)
    found = trained_data("coco.yaml", overrides, console=QUIET)
    assert found == TrainedData(
        name="coco.yaml", config="coco.yaml", images=3, evaluated_images=2, classes=2
    )
    assert synthetic_data(load_config("coco.yaml", overrides), classes=2) == ()


def test_drawn_scenes_are_counted_and_fewer_are_drawn_to_measure_steps() -> None:
    few_scenes = ["data.scenes={train: 40, validation: 3}"]
    found = trained_data("demo.yaml", few_scenes, console=QUIET)
    assert 30 < found.images <= 40 and found.evaluated_images == 3
    many = load_config("demo.yaml")
    assert synthetic_data(many, classes=found.classes) == (
        "data.scenes={train: 96, validation: 1}",
    )


def test_data_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path / "none")):
        trained_data("coco.yaml", [f"data.root={tmp_path / 'none'}"], console=QUIET)


def test_openimages_needs_no_data_set_to_be_planned_for() -> None:
    found = trained_data("openimages", [], console=QUIET)
    assert found.config == "openimages.yaml" and found.classes == 264
    settings = synthetic_data(load_config("openimages.yaml"), classes=264)
    assert settings[0] == "data.root=null" and "model.num_classes=264" in settings
