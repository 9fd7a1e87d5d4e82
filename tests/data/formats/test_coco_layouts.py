"""COCO's format in other layouts of folders: the files of the splits, and their images."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from data.coco_json import read_annotations
from data.formats.coco import read_coco, split_of
from data.formats.labels import merge_classes, select_classes
from tests.data.formats.written import reading
from tests.data.samples import write_json
from tests.data.verify.small_set import small_content, write_split
from tests.support.commands import error_message

read = reading(read_coco)


def place(folder: Path, labels: str, images: str, *, prefix: str = "") -> None:
    """Write a split whose JSON is at `labels` and whose photos are in `images`."""
    made = write_split(folder / "made", small_content())
    for photo in made.images.iterdir():
        (folder / images).mkdir(parents=True, exist_ok=True)
        photo.rename(folder / images / photo.name)
    content = small_content()
    for image in content["images"]:
        image["file_name"] = prefix + image["file_name"]
    (folder / labels).parent.mkdir(parents=True, exist_ok=True)
    write_json(folder / labels, content)
    made.annotations.unlink()
    made.images.rmdir()
    (folder / "made").rmdir()


@contextmanager
def changed(folder: Path) -> Iterator[dict[str, Any]]:
    """Write a split as `train.json` and `images`, with the JSON as the context changes it."""
    place(folder, "train.json", "images")
    content = small_content()
    yield content
    write_json(folder / "train.json", content)


@pytest.mark.parametrize(
    ("labels", "images", "prefix"),
    [
        ("{}/_annotations.coco.json", "{}", ""),
        ("annotations/instances_{}2017.json", "{}2017", ""),
        ("annotations/{}.json", "images/{}", ""),
        ("annotations/{}.json", "images", "{}/"),
        ("{}/labels.json", "{}/data", ""),
        ("{}.json", "photos/{}", ""),
        ("{}.json", "photos/{}", "/home/somebody/old place/"),
    ],
)
def test_splits_and_images_are_found(tmp_path: Path, labels: str, images: str, prefix: str) -> None:
    folder = images if "{}" in images else f"{images}/{prefix}".rstrip("/")
    for name in ("train", "val"):
        text = prefix if prefix.startswith("/") else prefix.format(name)
        if prefix.startswith("/"):
            text = text.lstrip("/")  # refused by the validator: names are relative
        place(tmp_path, labels.format(name), folder.format(name), prefix=text)
    (tmp_path / "annotations").mkdir(exist_ok=True)
    write_json(tmp_path / "annotations" / "captions_train2017.json", {})
    train, validation = sorted(read(tmp_path), key=lambda split: split.name)
    for split, name in ((train, "train"), (validation, "val")):
        expected = images.format(name) if "{}" in images else images
        assert split.images == tmp_path / expected
        assert all((split.images / file).is_file() for file in split.annotations.file_names)
    assert (train.name, validation.name) == ("train", "validation")
    assert bool(train.notes) == prefix.startswith("/")


def test_one_file_is_one_split(tmp_path: Path) -> None:
    place(tmp_path, "result.json", "images", prefix="images/")
    [split] = read(tmp_path / "result.json")
    assert (split.name, split.images) == ("all", tmp_path)
    assert [part.name for part in read(tmp_path)] == ["all"]


def test_given_folder_of_images_is_taken(tmp_path: Path) -> None:
    source = tmp_path / "mine"
    place(source, "train.json", "../photos")
    message = error_message(read, source)
    assert "images[0].file_name: '0.jpg' is in no folder near it" in message
    assert "set --images" in message
    [split] = read(source, images=tmp_path / "photos")
    assert split.images == tmp_path / "photos" and len(split.annotations) == 6
    assert "is not a folder" in error_message(read, source, images=tmp_path / "none")


PATHS = ["../../studio/media/upload/4/{}", "photos\\{}", "/data/upload/4/{}", "C:\\Users\\me\\{}",
         "file:///home/me/{}", "/data/local-files/?d=photos/{}", "//server/photos/{}"]  # fmt: skip


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_paths_of_another_machine_are_shortened(tmp_path: Path, path: str, is_given: bool) -> None:
    place(tmp_path / "set", "result.json", "../elsewhere" if is_given else "photos")
    photos = (
        tmp_path / "set" / "../elsewhere" if is_given else tmp_path / "set" / "photos"
    ).resolve()
    (photos / "0.jpg").rename(photos / "my 0.jpg")
    content = small_content()
    for image in content["images"]:
        name = image["file_name"].replace("0.jpg", "my%200.jpg")
        image["file_name"] = path.format(name)
    write_json(tmp_path / "set" / "result.json", content)
    [split] = read(tmp_path / "set", images=photos if is_given else None)
    files = [split.images / name for name in split.annotations.file_names]
    assert files == [photos / name for name in ("my 0.jpg", *(f"{n}.jpg" for n in range(1, 6)))]
    assert split.notes == ["file names are shortened to the parts that exist"]


def test_nothing_outside_is_taken_for_an_image(tmp_path: Path) -> None:
    place(tmp_path / "set", "train.json", "images", prefix="../../")
    for photo in (tmp_path / "set" / "images").iterdir():
        photo.rename(tmp_path / photo.name)
    assert "'0.jpg' is in no folder near it" in error_message(read, tmp_path / "set")
    (tmp_path / "set" / "images" / "0.jpg").symlink_to(tmp_path / "0.jpg")
    assert "0.jpg leads outside of" in error_message(read, tmp_path / "set")


def test_two_names_of_one_image_are_refused(tmp_path: Path) -> None:
    with changed(tmp_path) as content:
        for image in content["images"]:
            image["file_name"] = f"/upload/{image['id']}/0.jpg"
    message = error_message(read, tmp_path)
    assert "would both be" in message and message.count("0.jpg") == 3


def test_fix_is_not_what_was_done(tmp_path: Path) -> None:
    place(tmp_path, "train.json", "images", prefix="x/")
    (tmp_path / "none").mkdir()
    message = error_message(read, tmp_path, images=tmp_path / "none")
    assert "set --images" not in message and f"is not in {tmp_path / 'none'}" in message
    (tmp_path / "images" / "2.jpg").unlink()
    assert "set --images, or skip with" in error_message(read, tmp_path)
    message = error_message(read, tmp_path, images=tmp_path / "images")
    assert "2.jpg does not exist; skip with --skip-missing-images" in message


def test_missing_images_are_refused_or_skipped(tmp_path: Path) -> None:
    place(tmp_path, "train.json", "images")
    (tmp_path / "images" / "2.jpg").unlink()
    (tmp_path / "images" / "4.jpg").unlink()
    message = error_message(read, tmp_path)
    assert "2.jpg does not exist, and 1 more images" in message
    [split] = read(tmp_path, skip_missing_images=True)
    kept = split.annotations
    assert list(kept.file_names) == ["0.jpg", "1.jpg", "3.jpg", "5.jpg"]
    assert np.diff(kept.box_offsets).tolist() == [2, 2, 2, 2]
    assert kept.box_ids.tolist() == [100, 106, 101, 107, 103, 109, 105, 111]


def test_missing_sizes_are_those_of_the_images(tmp_path: Path) -> None:
    with changed(tmp_path) as content:
        content["images"][1]["width"] = None
        del content["images"][2]["height"]
        content["images"][3]["height"] = 0
    [split] = read(tmp_path)
    assert split.annotations.widths.tolist() == [64] * 6
    assert split.annotations.heights.tolist() == [48] * 6
    assert split.notes[0].endswith("(that of the displayed image is taken): 3")
    (tmp_path / "images" / "3.jpg").write_bytes(b"no image")
    assert "3.jpg: not an image in " in error_message(read, tmp_path)
    message = error_message(read_annotations, tmp_path / "train.json")
    assert "images[1].width: expected an integer from 1" in message
    assert message.endswith("retinanet data convert --from coco reads it from the image")


def test_bad_labels_are_all_named_and_skipped_if_asked(tmp_path: Path) -> None:
    with changed(tmp_path) as content:
        content["annotations"][2]["bbox"] = None
        content["annotations"][3]["bbox"] = []
        content["annotations"][4]["image_id"] = 99
        for row in (5, 11):  # all boxes of image 5
            content["annotations"][row]["bbox"] = [1, 2, 3]
    printed = io.StringIO()
    message = error_message(read, tmp_path, console=Console(file=printed))
    assert message.endswith(" (4 more, --skip-bad-labels leaves bad labels out)")
    for row in (2, 3, 4, 5, 11):
        assert f"train.json: annotations[{row}]." in printed.getvalue()
    [split] = read(tmp_path, skip_bad_labels=True)
    assert split.annotations.box_ids.tolist() == [100, 106, 101, 107, 108, 109, 110]
    assert list(split.annotations.file_names) == [f"{row}.jpg" for row in range(5)]
    content["categories"][0]["name"] = ""
    write_json(tmp_path / "train.json", content)
    assert "categories[0].name" in error_message(read, tmp_path, skip_bad_labels=True)


@pytest.mark.parametrize("is_used", [False, True])
def test_root_of_roboflows_categories_is_no_class(tmp_path: Path, *, is_used: bool) -> None:
    for name in ("train", "valid"):
        place(tmp_path, f"{name}/_annotations.coco.json", name)
        content = small_content()
        for category in content["categories"]:
            category["supercategory"] = "things"
        content["categories"].insert(0, {"id": 0, "name": "things", "supercategory": "none"})
        content["annotations"][0]["category_id"] = 0 if is_used and name == "valid" else 3
        write_json(tmp_path / name / "_annotations.coco.json", content)
    for split in read(tmp_path):
        names = ["kind 3", "kind 5", "kind 9"]
        assert list(split.annotations.category_names) == (["things"] if is_used else []) + names
        assert is_used or "becomes no class" in split.notes[-1]


def test_classes_of_one_name_are_merged(tmp_path: Path) -> None:
    with changed(tmp_path) as content:
        for category, name in zip(content["categories"], ["Chair", "chair", "Chair"], strict=True):
            category["name"] = name
    splits = read(tmp_path)
    [split] = merge_classes(splits, ["chair=Chair"])
    assert split.annotations.category_names == ("Chair", "Chair")
    assert np.bincount(split.annotations.box_category_ids)[[3, 5, 9]].tolist() == [8, 0, 4]
    [split] = merge_classes(splits, ["chair=Chair", "Chair=Chair"])
    assert split.annotations.category_names == ("Chair",)
    assert split.annotations.box_category_ids.tolist() == [3] * 12
    message = error_message(merge_classes, splits, ["chairs=Chair"])
    assert message.startswith("--merge-classes: 'chairs=Chair': 'chairs' is not a class; did you")


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    place(tmp_path, "train.json", "images")
    write_json(tmp_path / "old_train.json", small_content())
    assert "are both of the split 'train'" in error_message(read, tmp_path)
    empty = tmp_path / "images"
    assert "contains no JSON file" in error_message(read, empty)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("instances_val2017.json", "validation"),
        ("valid/_annotations.coco.json", "validation"),
        ("test/train.json", "train"),
        ("training.json", "train"),
        ("trainer.json", "all"),
        ("constraint.json", "all"),
    ],
)
def test_split_is_named_by_words(file: str, expected: str) -> None:
    assert split_of(Path("set") / file, Path("set")) == expected


def test_chosen_classes_leave_out_images_of_others_only(tmp_path: Path) -> None:
    # Image n has boxes n and n + 6, of class n % 3 both.
    with changed(tmp_path) as content:
        boxes = content["annotations"]
        content["annotations"] = [box for box in boxes if box["image_id"] != 15]
    [split] = select_classes(read(tmp_path), ["kind 9", "kind 3"])
    chosen = split.annotations
    assert chosen.category_names == ("kind 9", "kind 3")
    assert chosen.category_ids.tolist() == [9, 3]
    # Image 5 never had a box; 1 and 4 have boxes of another class.
    assert list(chosen.file_names) == ["0.jpg", "2.jpg", "3.jpg", "5.jpg"]
    assert chosen.box_category_ids.tolist() == [3, 3, 9, 9, 3, 3]
    assert split.notes == ["images with boxes of other classes only (left out): 2"]
    message = error_message(select_classes, read(tmp_path), ["Kind 4"])
    assert message.startswith("--classes: 'Kind 4' is not a class of train; did you mean 'kind ")
    assert "listed twice" in error_message(select_classes, read(tmp_path), ["a", "a"])


def test_class_named_as_labelmes_field_is_read(tmp_path: Path) -> None:
    with changed(tmp_path) as content:
        content["categories"][0]["name"] = "shapes"
        for name in ("images", "annotations"):  # which stand behind the classes then
            content[name] = content.pop(name)
    [split] = read(tmp_path)
    assert "shapes" in split.annotations.category_names
