import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from data.coco_json import read_annotations
from data.download import datasets
from data.download.datasets import choose, write_annotations
from tests.data.download.datasets import coco


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "a.zip"
    path.write_bytes(coco(train=24, validation=6)["/annotations/annotations_trainval2017.zip"])
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "annotations").mkdir()
    return tmp_path / "annotations" / "instances_train2017.json"


def content(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes()))


def test_without_limits_it_is_the_zips_own(archive: Path, target: Path) -> None:
    names = write_annotations(archive, target, classes=None, limit=None)
    whole = content(target)
    assert names == tuple(sorted(image["file_name"] for image in whole["images"]))
    assert len(names) == 24 and whole["licenses"]
    written = target.stat().st_mtime_ns
    assert write_annotations(archive, target, classes=None, limit=None) == names
    assert target.stat().st_mtime_ns == written and len(list(target.parent.iterdir())) == 1


def test_a_limit_takes_the_first_by_name_and_a_larger_one_adds(archive: Path, target: Path) -> None:
    names = write_annotations(archive, target, classes=None, limit=None)
    whole = content(target)
    assert write_annotations(archive, target, classes=None, limit=5) == names[:5]
    part = content(target)
    assert [i for i in whole["images"] if i["file_name"] in names[:5]] == part["images"]
    ids = {image["id"] for image in part["images"]}
    assert part["annotations"] == [b for b in whole["annotations"] if b["image_id"] in ids]
    assert part["categories"] == whole["categories"]
    assert write_annotations(archive, target, classes=None, limit=9) == names[:9]
    assert write_annotations(archive, target, classes=None, limit=None) == names
    assert content(target) == whole and len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize(("classes", "count"), [(("dog",), 6), (("cat", "dog"), 12)])
def test_classes_choose_images_and_boxes(
    archive: Path, target: Path, classes: tuple[str, ...], count: int
) -> None:
    names = write_annotations(archive, target, classes=classes, limit=None)
    read = read_annotations(target)
    assert sorted(read.file_names) == list(names) and len(names) == count
    assert tuple(read.category_names) == classes
    assert set(read.box_category_ids.tolist()) == set(read.category_ids.tolist())
    assert min(len(read.boxes[read.boxes_of(index)]) for index in range(count)) >= 1


def test_leftovers_of_a_kill_are_no_matter(archive: Path, target: Path) -> None:
    for name in ("instances_train2017.json.part", "instances_train2017.json.whole.part"):
        (target.parent / name).write_text("half of it")
    write_annotations(archive, target, classes=None, limit=3)
    assert len(content(target)["images"]) == 3 and len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("Cat", "did you mean cat"), ("zebra", "they are cat, dog")]
)
def test_an_unknown_class_is_named(archive: Path, target: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_annotations(archive, target, classes=(name,), limit=None)
    assert not target.exists()


@pytest.mark.parametrize(
    "name",
    [
        "../a.jpg",
        "/etc/a.jpg",
        "b/a.jpg",
        ".a.jpg",
        "a.part",
        "",
        "a\0b",
        "a\nb.jpg",
        "a\ud800.jpg",
    ],
)
def test_file_names_that_lead_elsewhere_are_refused(target: Path, name: str) -> None:
    target.write_text(
        json.dumps({"images": [{"id": 1, "file_name": name}], "annotations": [], "categories": []})
    )
    with pytest.raises(InputError, match="no plain name of an image file"):
        choose(target, classes=None, limit=None)


def test_annotations_larger_than_expected_are_not_written(
    archive: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "LARGEST_JSON", 1000)
    with pytest.raises(InputError, match=r"instances_train2017\.json"):
        write_annotations(archive, target, classes=None, limit=None)
    assert not list(target.parent.iterdir())


def test_annotations_that_are_refused_leave_nothing(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as members:
        members.writestr(f"annotations/{target.name}", "[" + " " * 100_000)
    with pytest.raises(InputError):
        write_annotations(path, target, classes=None, limit=None)
    assert not list(target.parent.iterdir())
