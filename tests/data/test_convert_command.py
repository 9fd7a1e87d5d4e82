"""`python -m data convert`, from its arguments to what lies on the disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import data.index
from common.cli import run_command
from data.__main__ import main
from data.index import open_annotations
from tests.data.coco_files import random_content, write_json
from tests.data.openimages.csv_tables import (
    Row,
    write_boxes,
    write_descriptions,
    write_image_ids,
    write_photos,
)


class Outcome(NamedTuple):
    code: int
    output: str
    errors: str


Convert = Callable[..., Outcome]


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Convert:
    def command(*words: str | Path) -> Outcome:
        monkeypatch.setattr("sys.argv", ["data", "convert", *map(str, words)])
        code = run_command(main)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


def labels(path: Path, *, boxes: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_json(path, random_content(images=20, boxes=boxes))


def test_an_index_is_made_beside_the_json_and_then_up_to_date(
    tmp_path: Path, convert: Convert
) -> None:
    path = labels(tmp_path / "labels.json")
    first, second = convert(path), convert(path)
    assert first.code == second.code == 0
    assert f"{path}: 20 images, 60 boxes (" in first.output and "3 categories" in first.output
    assert "made in" in first.output and "up to date" in second.output
    assert len(open_annotations(tmp_path / "labels.json.index").boxes) == 60


def test_an_index_made_elsewhere_needs_no_json(tmp_path: Path, convert: Convert) -> None:
    path = labels(tmp_path / "labels.json")
    assert convert(path, "--out", tmp_path / "moved").code == 0
    path.unlink()
    assert len(open_annotations(tmp_path / "moved").boxes) == 60
    assert {entry.name for entry in tmp_path.iterdir()} == {"moved"}


def test_what_is_there_is_kept_unless_told_otherwise(tmp_path: Path, convert: Convert) -> None:
    out = tmp_path / "moved"
    convert(labels(tmp_path / "labels.json"), "--out", out)
    path = labels(tmp_path / "labels.json", boxes=7)
    refused = convert(path, "--out", out)
    assert refused.code == 2 and "is there already; add --overwrite" in refused.errors
    assert len(open_annotations(out).boxes) == 60
    assert convert(path, "--out", out, "--overwrite").code == 0
    assert len(open_annotations(out).boxes) == 7


def test_a_folder_that_is_no_index_is_never_overwritten(tmp_path: Path, convert: Convert) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    path = labels(tmp_path / "labels.json")
    refused = convert(path, "--out", tmp_path / "photos", "--overwrite")
    assert refused.code == 2 and "is there already; name another folder" in refused.errors
    assert (tmp_path / "photos" / "a.jpg").read_text() == "mine"


def test_both_splits_of_a_data_set_are_converted(tmp_path: Path, convert: Convert) -> None:
    for split in ("train", "validation"):
        labels(tmp_path / split / "labels" / "openimages-mlperf.json")
    outcome = convert(tmp_path)
    assert outcome.code == 0 and outcome.output.count("20 images, 60 boxes") == 2
    for split in ("train", "validation"):
        assert (tmp_path / split / "labels" / "openimages-mlperf.json.index").is_dir()


def openimages(folder: Path) -> list[str | Path]:
    """Arguments that convert a small CSV: four images, of which one has boxes of no known class."""
    rows = [Row(3), Row(3, group="1"), Row(1, label="/m/dog"), Row(2, label="/m/0bt9lr"), Row(4)]
    boxes = write_boxes(folder / "boxes.csv", rows)
    descriptions = write_descriptions(folder / "classes.csv")
    images = write_photos(folder / "images", [1, 2, 3, 4])
    return [boxes, "--class-descriptions", descriptions, "--images", images]


def test_openimages_boxes_become_mlperfs_json_and_its_index(
    tmp_path: Path, convert: Convert
) -> None:
    out = tmp_path / "labels" / "openimages-mlperf.json"
    outcome = convert(*openimages(tmp_path), "--classes", "Dog", "Cat", "--out", out)
    assert outcome.code == 0, outcome.errors
    content = json.loads(out.read_bytes())
    assert [category["name"] for category in content["categories"]] == ["Dog", "Cat"]
    annotations = open_annotations(out)
    assert list(annotations.file_names) == [f"{image:016x}.jpg" for image in (1, 3, 4)]
    assert annotations.box_category_ids.tolist() == [0, 1, 1, 1]
    assert annotations.box_is_crowd.tolist() == [False, False, True, False]


def test_images_that_are_missing_are_left_out_when_asked(tmp_path: Path, convert: Convert) -> None:
    words = [*openimages(tmp_path), "--classes", "Cat", "--out", tmp_path / "labels.json"]
    (tmp_path / "images" / f"{3:016x}.jpg").unlink()
    refused = convert(*words)
    assert refused.code == 2 and "--skip-missing-images" in refused.errors
    assert not (tmp_path / "labels.json").exists()
    outcome = convert(*words, "--skip-missing-images")
    assert outcome.code == 0 and "1 images are not in" in outcome.output
    assert len(open_annotations(tmp_path / "labels.json")) == 1


def test_a_list_of_images_and_all_classes_add_images_without_boxes(
    tmp_path: Path, convert: Convert
) -> None:
    words = openimages(tmp_path)
    write_photos(tmp_path / "images", [9])
    listed = write_image_ids(tmp_path / "ids.csv", [1, 3, 9])
    out = tmp_path / "labels.json"
    outcome = convert(*words, "--classes", "all", "--image-ids", listed, "--out", out)
    assert outcome.code == 0, outcome.errors
    annotations = open_annotations(out)
    assert len(annotations) == 3 and len(annotations.boxes) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["{folder}/none.json"], "none.json: cannot be read: No such file"),
        (["{folder}"], "holds no annotations; looked for"),
        (["{folder}/labels.json", "--images", "x"], "--images: only for a CSV of boxes"),
        (["{folder}/labels.json", "--classes", "Cat"], "--classes: only for a CSV of boxes"),
        (["{folder}/boxes.csv"], "--class-descriptions: missing; a CSV of boxes needs it"),
        (["{folder}/photo.jpg"], "not JSON that can be read"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, convert: Convert, words: list[str], expected: str
) -> None:
    labels(tmp_path / "labels.json")
    shutil.copy(next(write_photos(tmp_path / "photos", [1]).iterdir()), tmp_path / "photo.jpg")
    outcome = convert(*(word.format(folder=tmp_path) for word in words))
    assert outcome.code == 2 and expected in outcome.errors
    assert outcome.errors.startswith("error: ") and outcome.errors.count("\n") == 1


def test_an_interruption_leaves_nothing(
    tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    path = labels(tmp_path / "labels.json")
    monkeypatch.setattr(data.index, "read_annotations", interrupt)
    outcome = convert(path)
    assert outcome.code == 130 and outcome.errors == "interrupted\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["labels.json"]
