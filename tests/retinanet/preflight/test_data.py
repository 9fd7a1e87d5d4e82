from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retinanet.config import Config
from retinanet.config_file import config_from_tree
from retinanet.preflight import run
from retinanet.preflight.findings import Finding
from retinanet.preflight.run import check_data, sampled
from tests.data.samples import write_json

IMAGES = 6


def content_of(split: str) -> dict[str, Any]:
    return {
        "images": [
            {"id": number, "file_name": f"{split}-{number}.jpg", "width": 48, "height": 40}
            for number in range(IMAGES)
        ],
        "annotations": [
            {
                "id": number + 1,
                "image_id": number,
                "category_id": 7,
                "bbox": [4, 4, 20, 20],
                "area": 400,
                "iscrowd": 0,
            }
            for number in range(IMAGES)
        ],
        "categories": [{"id": 7, "name": "kite"}],
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set in COCO's tree."""
    (tmp_path / "annotations").mkdir()
    for folder in ("train2017", "val2017"):
        (tmp_path / folder).mkdir()
        content = content_of(folder)
        write_json(tmp_path / "annotations" / f"instances_{folder}.json", content)
        for image in content["images"]:
            Image.new("RGB", (48, 40)).save(tmp_path / folder / image["file_name"])
    return tmp_path


def config_in(folder: Path | None, **changes: object) -> Config:
    data = {"root": folder and str(folder), "image_size": 64, **changes}
    return config_from_tree({"run": {"name": "tried"}, "data": data}, "test")


def checked(folder: Path | None, *, ranks: int = 1, **changes: object) -> list[Finding]:
    return check_data(config_in(folder, **changes), ranks=ranks)


def levels(findings: list[Finding]) -> list[str]:
    return [one.level for one in findings]


def test_a_data_set_that_can_be_read_is_left_as_it_was(root: Path) -> None:
    before = sorted(root.rglob("*"))
    found = checked(root)
    assert levels(found) == ["ok", "ok", "ok"]
    assert found[0].found.startswith(f"6 images in {root / 'train2017'}, 1 classes; 6 decoded")
    assert found[2].found == "3 an epoch, of 2 × 1 images"
    assert sorted(root.rglob("*")) == before  # no index


@pytest.mark.parametrize(("on_bad_image", "level"), [("stop", "failure"), ("skip", "warning")])
def test_an_image_that_is_cut_is_named(root: Path, on_bad_image: str, level: str) -> None:
    image = root / "val2017" / "val2017-5.jpg"
    image.write_bytes(image.read_bytes()[:200])
    [found] = [one for one in checked(root, on_bad_image=on_bad_image) if one.level != "ok"]
    assert found.level == level and found.found.startswith(str(image))


def test_missing_images_and_annotations_are_named(root: Path) -> None:
    (root / "train2017" / "train2017-0.jpg").unlink()
    [found] = [one for one in checked(root) if one.level == "failure"]
    assert "train2017-0.jpg" in found.found
    (root / "annotations" / "instances_val2017.json").unlink()
    [found] = checked(root)
    assert "data.validation_annotations" in found.found


def test_other_categories_in_the_validation_split_are_a_failure(root: Path) -> None:
    content = content_of("val2017") | {"categories": [{"id": 7, "name": "dog"}]}
    write_json(root / "annotations" / "instances_val2017.json", content)
    [found] = checked(root)
    assert found.level == "failure" and "'dog' here and 'kite' in the training set" in found.found


def test_annotations_too_large_to_be_read_now_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "READ_UP_TO", 10)
    found = checked(root)
    assert levels(found) == ["warning", "warning"]
    assert "has no index yet" in found[0].found


def test_an_epoch_without_a_step_is_a_failure(root: Path) -> None:
    tree = {
        "run": {"name": "tried"},
        "data": {"root": str(root), "image_size": 64},
        "training": {"gradient_accumulation": 4},
    }
    found = check_data(config_from_tree(tree, "test"), ranks=1)[-1]
    assert found.level == "failure" and "but an epoch has only 3" in found.found


def test_scenes_need_no_files_and_allow_none(tmp_path: Path) -> None:
    [found] = checked(None, scenes={"train": 5, "validation": 2})
    assert found.level == "ok" and found.found.startswith("5 scenes to train on and 2 others")
    [found] = checked(tmp_path, scenes={"train": 5, "validation": 2})
    assert found.level == "failure" and "is given beside data.scenes" in found.found


def test_the_first_and_the_last_image_are_always_looked_at() -> None:
    assert {0, 999} <= set(sampled(1000)) and len(sampled(1000)) == 24
    assert sorted(sampled(3)) == [0, 1, 2]
    assert list(sampled(1)) == [0]
