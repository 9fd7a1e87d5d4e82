"""`retinanet data convert` and `retinanet data split`."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from subprocess import CompletedProcess
from typing import Any

import pytest

import data.index
from common.files import write_atomically
from data.__main__ import main
from data.coco_json import read_annotations
from data.index import open_annotations
from data.split import stratified_rows
from tests.data.openimages.csv_tables import (
    Row,
    write_boxes,
    write_descriptions,
    write_image_ids,
    write_photos,
)
from tests.data.samples import random_content, write_json
from tests.support.commands import RunHere

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def convert(run_here: RunHere) -> Command:
    return lambda *arguments: run_here(main, "convert", *arguments)


@pytest.fixture
def split(run_here: RunHere) -> Command:
    return lambda *arguments: run_here(main, "split", *arguments)


def labels(path: Path, *, images: int = 20, boxes: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = random_content(images=images, boxes=boxes)
    for box in content["annotations"]:
        box["attributes"] = {"occluded": False}
    return write_json(path, content | {"licenses": [{"id": 1, "name": "mine"}]})


def assert_refused(done: CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 2 and reason in done.stderr.splitlines()[-1]


def test_index_is_created_beside_the_json_and_then_up_to_date(
    tmp_path: Path, convert: Command
) -> None:
    path = labels(tmp_path / "labels.json")
    first, second = convert(path), convert(path)
    assert first.returncode == second.returncode == 0
    assert f"{path}: 20 images, 60 boxes (" in first.stdout and "3 categories" in first.stdout
    assert "made in" in first.stdout and "up to date" in second.stdout
    assert len(open_annotations(tmp_path / "labels.json.index").boxes) == 60


def test_index_in_another_folder_needs_no_json_and_is_not_replaced_unasked(
    tmp_path: Path, convert: Command
) -> None:
    out = tmp_path / "moved"
    path = labels(tmp_path / "labels.json")
    assert convert(path, "--out", out).returncode == 0
    path.unlink()
    assert len(open_annotations(out).boxes) == 60
    assert {entry.name for entry in tmp_path.iterdir()} == {"moved"}
    labels(path, boxes=7)
    assert_refused(convert(path, "--out", out), "--overwrite")
    assert len(open_annotations(out).boxes) == 60
    assert convert(path, "--out", out, "--overwrite").returncode == 0
    assert len(open_annotations(out).boxes) == 7
    # A folder that is no index is never overwritten.
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    assert_refused(convert(path, "--out", tmp_path / "photos", "--overwrite"), "already exists")
    assert (tmp_path / "photos" / "a.jpg").read_text() == "mine"


def test_both_splits_of_a_data_set_are_converted(tmp_path: Path, convert: Command) -> None:
    files = [tmp_path / name / "labels/openimages-mlperf.json" for name in ("train", "validation")]
    for file in files:
        labels(file)
    done = convert(tmp_path)
    assert done.returncode == 0 and done.stdout.count("20 images, 60 boxes") == 2
    assert all(file.with_name(f"{file.name}.index").is_dir() for file in files)


def openimages(folder: Path) -> list[str | Path]:
    """Return arguments that convert a small CSV: four images, one with boxes of other classes."""
    rows = [Row(3), Row(3, group="1"), Row(1, label="/m/dog"), Row(2, label="/m/0bt9lr"), Row(4)]
    boxes = write_boxes(folder / "boxes.csv", rows)
    descriptions = write_descriptions(folder / "classes.csv")
    images = write_photos(folder / "images", [1, 2, 3, 4])
    return [boxes, "--class-descriptions", descriptions, "--images", images]


def test_openimages_boxes_become_mlperfs_json_and_its_index(
    tmp_path: Path, convert: Command
) -> None:
    out = tmp_path / "labels" / "openimages-mlperf.json"
    arguments = [*openimages(tmp_path), "--classes", "Dog", "Cat", "--out", out]
    done = convert(*arguments)
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_bytes())
    assert [category["name"] for category in content["categories"]] == ["Dog", "Cat"]
    annotations = open_annotations(out)
    assert list(annotations.file_names) == [f"{image:016x}.jpg" for image in (1, 3, 4)]
    assert annotations.box_category_ids.tolist() == [0, 1, 1, 1]
    assert annotations.box_is_crowd.tolist() == [False, False, True, False]
    (tmp_path / "images" / f"{3:016x}.jpg").unlink()
    shutil.rmtree(out.parent)
    assert_refused(convert(*arguments), "--skip-missing-images")
    assert not out.parent.exists()
    done = convert(*arguments, "--skip-missing-images")
    assert done.returncode == 0 and "1 images are not in" in done.stdout
    assert len(open_annotations(out)) == 2


def test_list_of_images_with_all_classes_adds_images_without_boxes(
    tmp_path: Path, convert: Command
) -> None:
    arguments = openimages(tmp_path)
    write_photos(tmp_path / "images", [9])
    listed = write_image_ids(tmp_path / "ids.csv", [1, 3, 9])
    out = tmp_path / "labels.json"
    done = convert(*arguments, "--classes", "all", "--image-ids", listed, "--out", out)
    assert done.returncode == 0, done.stderr
    annotations = open_annotations(out)
    assert len(annotations) == 3 and len(annotations.boxes) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{folder}/none.json"], "none.json: cannot be read: No such file"),
        (["{folder}"], "contains no annotations"),
        (["{folder}/labels.json", "--images", "x"], "--images: only with --from, or for a CSV"),
        (["{folder}/boxes.csv"], "--class-descriptions: missing"),
        (["{folder}/photo.jpg"], "photo.jpg: cannot be parsed as JSON"),
    ],
)
def test_bad_input_of_convert_is_one_line(
    tmp_path: Path, convert: Command, arguments: list[str], expected: str
) -> None:
    labels(tmp_path / "labels.json")
    shutil.copy(next(write_photos(tmp_path / "photos", [1]).iterdir()), tmp_path / "photo.jpg")
    done = convert(*(argument.format(folder=tmp_path) for argument in arguments))
    assert done.returncode == 2 and expected in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_interrupted_conversion_leaves_nothing(
    tmp_path: Path, convert: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    path = labels(tmp_path / "labels.json")
    monkeypatch.setattr(data.index, "read_annotations", interrupt)
    done = convert(path)
    assert done.returncode == 130 and done.stderr == "interrupted\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["labels.json"]


def parts(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    train, validation = folder / "train.json", folder / "validation.json"
    return json.loads(train.read_text()), json.loads(validation.read_text())


def test_both_splits_together_have_all_entries_and_fields(tmp_path: Path, split: Command) -> None:
    whole = labels(tmp_path / "all.json")
    content = json.loads(whole.read_text())
    done = split(whole, "--out", tmp_path / "splits", "--validation", "0.25")
    assert done.returncode == 0, done.stderr
    train, validation = parts(tmp_path / "splits")
    assert len(train["images"]) == 15 and len(validation["images"]) == 5
    for field in ("images", "annotations"):
        both = sorted(train[field] + validation[field], key=lambda entry: entry["id"])
        assert both == sorted(content[field], key=lambda entry: entry["id"])
    for part in (train, validation):
        ids = {image["id"] for image in part["images"]}
        assert {box["image_id"] for box in part["annotations"]} <= ids
        assert part["categories"] == content["categories"]
        assert part["licenses"] == content["licenses"]
    assert f"train       15 images, {len(train['annotations'])} boxes" in done.stdout
    assert len(read_annotations(tmp_path / "splits" / "train.json")) == 15


def test_split_depends_on_the_seed_alone(tmp_path: Path, split: Command) -> None:
    whole = labels(tmp_path / "all.json")
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        split(whole, "--out", tmp_path / name, "--seed", seed)
    a, b, c = (parts(tmp_path / name) for name in "abc")
    assert a == b != c


@pytest.mark.parametrize(("share", "validation_images"), [("0.01", 1), ("0.99", 2)])
def test_each_split_has_an_image(
    tmp_path: Path, split: Command, share: str, validation_images: int
) -> None:
    split(labels(tmp_path / "all.json", images=3), "--out", tmp_path, "--validation", share)
    train, validation = parts(tmp_path)
    assert len(validation["images"]) == validation_images == 3 - len(train["images"])


def test_ids_may_be_texts(tmp_path: Path, split: Command) -> None:
    content = json.loads(labels(tmp_path / "all.json").read_text())
    split(tmp_path / "all.json", "--out", tmp_path / "expected")
    for image in content["images"]:
        image["id"] = str(image["id"])
    for box in content["annotations"]:
        box |= {"category_id": float(box["category_id"]), "iscrowd": bool(box["iscrowd"])}
    path = write_json(tmp_path / "texts.json", content)
    done = split(path, "--out", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    assert parts(tmp_path / "found") == parts(tmp_path / "expected")


def test_entries_of_one_file_are_on_one_side(tmp_path: Path, split: Command) -> None:
    content = random_content(images=40, boxes=80)
    names = [f"{row // 2}.jpg" for row in range(40)]
    for image, name in zip(content["images"], names, strict=True):
        image["file_name"] = name if image["id"] % 2 else f"./{name}"
    done = split(write_json(tmp_path / "all.json", content), "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    train, validation = (
        [image["file_name"].removeprefix("./") for image in part["images"]]
        for part in parts(tmp_path)
    )
    assert (len(train), len(validation)) == (32, 8)
    assert len(set(train)) == 16 and not set(train) & set(validation)
    for image in content["images"]:
        image["file_name"] = "same.jpg"
    path = write_json(tmp_path / "same.json", content)
    assert_refused(split(path, "--out", tmp_path / "same"), "same.json: images: 1; a split needs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_between_the_files_of_a_split_leaves_nothing(
    tmp_path: Path, split: Command, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def interrupted(file: Path, content: str) -> None:
        if file.name == "validation.json":
            signal.raise_signal(number)
        write_atomically(file, content)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr("data.split.write_atomically", interrupted)
    done = split(labels(tmp_path / "all.json"), "--out", tmp_path / "out")
    assert done.returncode == 130 and list((tmp_path / "out").iterdir()) == []


def test_class_without_boxes_is_reported_once(tmp_path: Path, split: Command) -> None:
    content = random_content(images=6, boxes=12)
    content["categories"].append({"id": 4711, "name": "Unicorn"})
    done = split(write_json(tmp_path / "all.json", content), "--out", tmp_path)
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert ["Unicorn" in note for note in notes] == [True] + [False] * (len(notes) - 1)
    assert "--seed" not in notes[0]


def test_existing_files_are_kept_without_overwrite(tmp_path: Path, split: Command) -> None:
    whole, out = labels(tmp_path / "train.json"), tmp_path / "splits"
    out.mkdir()
    mine = write_json(out / "validation.json", "mine")
    assert_refused(split(whole, "--out", out), "--overwrite")
    assert mine.read_text() == "mine" and not (out / "train.json").exists()
    assert split(whole, "--out", out, "--overwrite").returncode == 0
    assert mine.read_text() != "mine"
    before = whole.read_bytes()
    assert_refused(split(whole, "--out", tmp_path, "--overwrite"), "would replace")
    assert whole.read_bytes() == before  # the input never is


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ("no JSON", [], "labels.json: line 1"),
        (random_content(images=1, boxes=2), [], "labels.json: images: 1;"),
        *(
            (random_content(images=4, boxes=4), [f"--validation={share}"], "between 0 and 1")
            for share in ("0", "1", "1.5", "-1", "half", "nan")
        ),
    ],
)
def test_bad_input_of_split_is_refused(
    tmp_path: Path, split: Command, content: object, arguments: list[str], expected: str
) -> None:
    path = write_json(tmp_path / "labels.json", content)
    assert_refused(split(path, "--out", tmp_path, *arguments), expected)


def test_lone_surrogates_are_preserved(tmp_path: Path, split: Command) -> None:
    content = random_content(images=6, boxes=12)
    content["categories"][0]["name"] = "half a \ud83d\nnew line"
    content["images"][0]["file_name"] = "a\udce9.jpg"
    done = split(write_json(tmp_path / "whole.json", content), "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    train, validation = parts(tmp_path)
    assert train["categories"] == validation["categories"] == content["categories"]
    assert content["images"][0] in train["images"] + validation["images"]
    assert "\nnew line" not in done.stdout


def photo_classes(*, images: int, classes: int, seed: int) -> list[frozenset[int]]:
    """Return the classes in each image: some common, many rare; some images show nothing."""
    random = Random(seed)
    weights = [1 / (1 + rank) for rank in range(classes)]
    return [
        frozenset(random.choices(range(classes), weights, k=random.randint(0, 4)))
        for _ in range(images)
    ]


@pytest.mark.parametrize(("share", "seed"), [(0.1, 0), (0.1, 1), (0.2, 2), (0.2, 3), (0.5, 4)])
def test_each_class_has_its_share_in_both_splits(share: float, seed: int) -> None:
    classes = photo_classes(images=1000, classes=40, seed=seed)
    count = round(share * 1000)
    rows = stratified_rows(classes, count=count, seed=seed)
    assert len(rows) == count
    for category in range(40):
        images = {row for row, shown in enumerate(classes) if category in shown}
        held_out = len(images & rows)
        if len(images) > 1:
            assert 1 <= held_out < len(images)
        assert abs(held_out - len(images) * share) <= max(1, 0.1 * len(images))


def test_two_images_of_a_class_are_in_different_splits() -> None:
    classes = [frozenset({row // 2}) for row in range(40)] + [frozenset[int]()] * 60
    rows = stratified_rows(classes, count=20, seed=0)
    assert all(len(rows & {row, row + 1}) == 1 for row in range(0, 40, 2))
    for count in (1, 3, 7):
        assert len(stratified_rows([frozenset[int]()] * 8, count=count, seed=0)) == count
