"""Classes, text columns, and the paths of splits."""

import cmath
import json
import math
from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.annotations import (
    UNNAMED,
    ClassMap,
    GrowingColumns,
    Split,
    SplitName,
    TextColumn,
    enclosing_box,
    find_split,
    images_in_other,
    known_trees,
)
from tests.support.commands import error_message

IDS = np.array([90, 3, 17], dtype=np.int64)
NAMES = ("toothbrush", "car", "cat")
CONTIGUOUS = ClassMap.contiguous(IDS, NAMES)
BY_ID = ClassMap.by_category_id(IDS, NAMES, 91)
FILE = Path("val.json")


@pytest.mark.parametrize("degrees", [-30.0, 0.0, 45.0, 90.0, 181.5])
def test_enclosing_box_has_the_corners_of_the_rotated_one(degrees: float) -> None:
    x1, y1, x2, y2 = box = (20.0, 130.0, 200.0, 150.0)
    centre, turn = complex((x1 + x2) / 2, (y1 + y2) / 2), cmath.rect(1, math.radians(degrees))
    corners = [centre + (complex(x, y) - centre) * turn for x in (x1, x2) for y in (y1, y2)]
    xs, ys = [corner.real for corner in corners], [corner.imag for corner in corners]
    assert enclosing_box(box, degrees) == pytest.approx((min(xs), min(ys), max(xs), max(ys)))


def test_contiguous_labels_follow_the_json_order() -> None:
    assert CONTIGUOUS.num_classes == 3
    assert CONTIGUOUS.to_labels(np.array([3, 90, 3, 17])).tolist() == [1, 0, 1, 2]
    assert CONTIGUOUS.to_category_ids(np.array([1, 0, 2])).tolist() == [3, 90, 17]
    assert CONTIGUOUS.category_ids == (90, 3, 17) and CONTIGUOUS.names == NAMES
    labels = CONTIGUOUS.to_labels(np.zeros(0, dtype=np.int64))
    assert labels.shape == (0,) and labels.dtype == np.int64


def test_labels_by_category_id_equal_the_ids() -> None:
    assert BY_ID.num_classes == 91
    assert BY_ID.to_labels(IDS).tolist() == [90, 3, 17]
    assert BY_ID.to_category_ids(np.array([17, 90])).tolist() == [17, 90]
    assert (BY_ID.names[17], BY_ID.names[0]) == ("cat", "N/A")
    assert BY_ID.category_ids[12] == 12


def test_category_id_outside_the_classes_is_refused() -> None:
    for invalid in (91, -1):
        with pytest.raises(
            InputError, match=rf"^a\.json: categories\[1\]\.id: {invalid} .*0 to 90"
        ):
            ClassMap.by_category_id(np.array([1, invalid]), ("a", "b"), 91, source="a.json")
    for unknown in (-5, 4, 1000):
        with pytest.raises(InputError, match=f"category id {unknown} "):
            CONTIGUOUS.to_labels(np.array([3, unknown]))


@pytest.mark.parametrize(
    ("ids", "names"),
    [([1, 2], ["a"]), ([1, 1], ["a", "b"]), (["1"], ["a"]), ([1], [None]), ([[1]], ["a"])],
)
def test_damaged_dict_is_refused(ids: list[object], names: list[object]) -> None:
    for content in ({}, {"category_ids": ids, "names": names}):
        with pytest.raises(InputError, match=r"^classes: "):
            ClassMap.from_json(content)


@pytest.mark.parametrize("classes", [CONTIGUOUS, BY_ID])
def test_round_trips(classes: ClassMap) -> None:
    assert ClassMap.from_json(json.loads(json.dumps(classes.to_json()))) == classes
    labels = np.arange(classes.num_classes)
    assert classes.to_labels(classes.to_category_ids(labels)).tolist() == labels.tolist()


@pytest.mark.parametrize("classes", [CONTIGUOUS, BY_ID])
def test_validation_categories_are_compared_by_id_in_any_order(classes: ClassMap) -> None:
    classes.check_categories(IDS[::-1], NAMES[::-1], file=FILE)
    for ids, names, match in (
        (IDS, ("toothbrush", "bus", "dog"), r"categories\[1\]: id 3 is 'bus'.*'car'"),
        (np.array([90, 3, 17, 5]), (*NAMES, "x"), r"^val\.json: categories\[3\]: id 5 .*unknown"),
        (IDS[:2], NAMES[:2], r"id 17 \('cat'\).*missing"),
    ):
        with pytest.raises(InputError, match=match):
            classes.check_categories(ids, names, file=FILE)


def test_labels_get_the_ids_of_annotations_with_the_same_names() -> None:
    """As those of a detector that was converted with a list of names."""
    listed = ClassMap((0, 1, 2), ("dog", UNNAMED, "bus"))
    ids, names = np.array([5, 3]), ("bus", "dog")
    assert listed.with_ids_of(ids, names) == ClassMap((3, 6, 5), ("dog", UNNAMED, "bus"))
    listed.with_ids_of(ids, names).check_categories(ids, names, file=FILE)
    for other in (("bus", "cat"), ("bus", "bus"), ("bus", "dog", "cat"), ("bus",)):
        assert listed.with_ids_of(np.arange(len(other)), other) is listed
    twice = ClassMap((0, 1), ("dog", "dog"))
    assert twice.with_ids_of(np.array([1, 2]), ("dog", "bus")) is twice


def test_text_column_of_any_script_and_length() -> None:
    texts = ["", "a.jpg", "fotó/ñ.jpg", "日本.png", "\ud800 lone surrogate", "x" * 5000]
    column = TextColumn.of(texts)
    assert list(column) == texts and len(column) == len(texts)
    assert column[-1] == texts[-1] and column[1:3] == texts[1:3]
    assert list(TextColumn.of([])) == []
    growing = GrowingColumns()
    for part in ([], texts, [], texts):
        growing.extend({"names": TextColumn.of(part)})
    assert list(growing.finish()["names"]) == texts + texts
    with pytest.raises(IndexError):
        column[len(texts)]


def make_tree(root: Path, name: str) -> None:
    for split in ("train", "validation"):
        annotations, images = known_trees(root, split)[name]
        images.mkdir(parents=True)
        annotations.parent.mkdir(parents=True, exist_ok=True)
        annotations.write_text("{}")


OPENIMAGES, COCO = "MLPerf's OpenImages", "COCO's"
NONE = {"annotations": "none.json"}
LABELS = "labels/openimages-mlperf.json"


@pytest.mark.parametrize(
    ("tree", "split", "annotations", "images"),
    [
        (OPENIMAGES, "train", f"train/{LABELS}", "train/data"),
        (OPENIMAGES, "validation", f"validation/{LABELS}", "validation/data"),
        (COCO, "train", "annotations/instances_train2017.json", "train2017"),
        (COCO, "validation", "annotations/instances_val2017.json", "val2017"),
    ],
)
def test_known_tree_is_found(
    tmp_path: Path, tree: str, split: SplitName, annotations: str, images: str
) -> None:
    make_tree(tmp_path, tree)
    paths = find_split(tmp_path, split, annotations=None, images=None)
    assert paths == Split(tmp_path / annotations, tmp_path / images)


def test_given_paths_override_the_tree(tmp_path: Path) -> None:
    root = tmp_path / "coco"
    make_tree(root, "COCO's")
    given = Split(tmp_path / "mine.json", tmp_path / "mine")
    given.images.mkdir()
    given.annotations.write_text("{}")
    paths = given._asdict()
    assert find_split(None, "train", **paths) == given
    assert find_split(root, "train", **paths) == given
    mixed = find_split(root, "train", annotations=given.annotations, images=None)
    assert mixed == Split(given.annotations, root / "train2017")


@pytest.mark.parametrize(
    ("root", "split", "given", "parts"),
    [
        (None, "validation", {}, ["data.root: not set", "data.validation_annotations"]),
        (None, "validation", {}, ["data.validation_images"]),
        ("empty", "train", {}, ["data.root: {}/empty ", "/train/labels/openimages-mlperf.json"]),
        ("empty", "train", {}, ["/annotations/instances_train2017", "data.train_annotations"]),
        ("none", "train", {}, ["data.root: {}/none is not a folder"]),
        ("half", "validation", {}, ["data.validation_images: {}/half/val2017 does not exist"]),
        ("half", "train", NONE, ["data.train_annotations: {}/none.json does not exist"]),
        (None, "train", NONE, ["data.root: not set; set it, or data.train_images"]),
    ],
)
def test_missing_path_is_reported_with_its_field(
    tmp_path: Path, root: str | None, split: SplitName, given: dict[str, str], parts: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    make_tree(tmp_path / "half", COCO)
    (tmp_path / "half" / "val2017").rmdir()
    paths: dict[str, Path | None] = {"annotations": None, "images": None}
    paths |= {name: tmp_path / file for name, file in given.items()}
    text = error_message(find_split, tmp_path / root if root else None, split, **paths)
    assert all(part.format(tmp_path) in text for part in parts)


def test_images_of_two_splits_are_compared_by_their_files(tmp_path: Path) -> None:
    photos, links = tmp_path / "photos", tmp_path / "links"
    (photos / "part").mkdir(parents=True)
    links.mkdir()
    for name in ("a.jpg", "b.jpg", "part/c.jpg", "d.jpg"):
        (photos / name).write_bytes(b"")
    (links / "b.jpg").write_bytes(b"")  # another file of the same name
    (links / "of a.jpg").symlink_to("../photos/a.jpg")
    (links / "part").symlink_to(photos / "part")
    (links / "loop.jpg").symlink_to("loop.jpg")
    names = ["b.jpg", "of a.jpg", "part/c.jpg", "loop.jpg", "none/x.jpg", "\0.jpg", "\0/\ud800.jpg"]

    def shared(other: list[str], folder: Path) -> list[int]:
        rows = images_in_other(names, links, other_names=other, other_folder=folder)
        return rows.tolist()

    assert shared(["./a.jpg", "b.jpg", "part//c.jpg"], photos) == [1, 2]
    assert shared(["photos/a.jpg", "links/b.jpg"], tmp_path) == [0, 1]
    assert shared(["links/none/x.jpg", "links/\0.jpg"], tmp_path) == [4, 5]
    assert shared(["d.jpg"], photos) == shared([], photos) == []
    assert shared(names, tmp_path / "nowhere") == []
    (tmp_path / "same").symlink_to(links)
    assert shared(names, tmp_path / "same") == [0, 1, 2, 3, 4, 5]  # no folder has a NUL in it


def test_relative_and_absolute_folders_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = images_in_other(["a.jpg"], Path("x"), other_names=["a.jpg"], other_folder=tmp_path / "x")
    assert rows.tolist() == [0]
