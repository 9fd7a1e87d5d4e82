"""Checks of downloaded files, and the selection of COCO's annotations."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.coco_json import read_annotations
from data.download import datasets
from data.download.datasets import (
    check_class_descriptions,
    check_csv,
    check_zip,
    select,
    write_annotations,
)
from data.download.http import AttemptError
from data.download.images import check_image
from tests.data.download.samples import coco, jpeg

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
LIMIT = 1_000_000


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def encoded(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [encoded("JPEG"), encoded("JPEG", progressive=True), encoded("PNG")],
    ids=["jpeg", "progressive", "png"],
)
def test_truncated_image_is_refused(tmp_path: Path, content: bytes) -> None:
    check_image(write(tmp_path / "whole", content))
    # Every byte of the compressed data; the tables before them in steps.
    for length in range(len(content)):
        if length % 20 and length < len(content) - 250:
            continue
        with pytest.raises(AttemptError):
            check_image(write(tmp_path / "cut", content[:length]))


def test_end_marker_of_a_thumbnail_is_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "\xff\xd9".encode("latin-1")
    content = encoded("JPEG", exif=exif)
    assert content.count(b"\xff\xd9") == 2
    check_image(write(tmp_path / "whole", content))
    with pytest.raises(AttemptError):
        check_image(write(tmp_path / "cut", content[:-2]))


def test_padding_after_the_end_is_accepted(tmp_path: Path) -> None:
    check_image(write(tmp_path / "a", jpeg(0) + bytes(100)))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_images_are_accepted(tmp_path: Path, mode: str) -> None:
    Image.fromarray(PIXELS).convert(mode).save(tmp_path / "a.jpg")
    check_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("content", [b"", b"<html></html>", encoded("GIF"), b"\xff\xd8\xff\xd9"])
def test_other_formats_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(AttemptError):
        check_image(write(tmp_path / "a", content))


def write_zip(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("a.json", PIXELS.tobytes())
        members.writestr("b.json", "{}")
    return path.read_bytes()


def test_damaged_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = write_zip(path)
    check_zip(path, members=["a.json", "b.json"], limit=LIMIT)
    with pytest.raises(AttemptError, match="not the expected zip"):
        check_zip(path, members=["a.json", "c.json"], limit=LIMIT)
    for place in range(40, 140, 11):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        with pytest.raises(AttemptError, match="damaged zip"):
            check_zip(write(path, bytes(damaged)), members=["a.json", "b.json"], limit=LIMIT)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(AttemptError, match="damaged zip"):
            check_zip(write(path, content[:length]), members=["a.json"], limit=LIMIT)


def test_zip_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    size = len(PIXELS.tobytes())
    write_zip(path)
    check_zip(path, members=["a.json"], limit=size)
    with pytest.raises(AttemptError, match=r"a\.json"):
        check_zip(path, members=["a.json"], limit=size - 1)


def test_encrypted_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = bytearray(write_zip(path))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(AttemptError):
        check_zip(write(path, bytes(content)), members=["a.json"], limit=LIMIT)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_csv_with_its_columns_is_accepted(tmp_path: Path, end: str) -> None:
    content = "\ufeffImageID,XMin,More\n" + "a,1,2\n" * 3000 + "b,1,2" + end
    check_csv(write(tmp_path / "a.csv", content.encode()), columns=["XMin", "ImageID"])


@pytest.mark.parametrize(
    "content",
    ["", "<html>", "ImageID\n", "XMin,ImageIDs\n1,2\n", "ImageID,XMin\na,1\nb", '"ImageID,XMin\n'],
)
def test_other_or_truncated_csv_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(AttemptError):
        check_csv(write(tmp_path / "a.csv", content.encode()), columns=["ImageID", "XMin"])


@pytest.mark.parametrize("header", ["", "LabelName,DisplayName\n"])
def test_class_descriptions_are_accepted(tmp_path: Path, header: str) -> None:
    content = header + '/m/011k07,Tortoise\n/m/0,"Bow, arrow"\n'
    check_class_descriptions(write(tmp_path / "a.csv", content.encode()))


@pytest.mark.parametrize("content", ["", "<html>,\n", "/m/011k07,Tortoise\n/m/0", "/m/0\n"])
def test_other_class_descriptions_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(AttemptError):
        check_class_descriptions(write(tmp_path / "a.csv", content.encode()))


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


def test_annotations_without_limit_are_those_of_the_zip(archive: Path, target: Path) -> None:
    names = write_annotations(archive, target, classes=None, limit=None)
    whole = content(target)
    assert names == tuple(sorted(image["file_name"] for image in whole["images"]))
    assert len(names) == 24 and whole["licenses"]
    written = target.stat().st_mtime_ns
    assert write_annotations(archive, target, classes=None, limit=None) == names
    assert target.stat().st_mtime_ns == written and len(list(target.parent.iterdir())) == 1


def test_limit_selects_the_first_images_by_name(archive: Path, target: Path) -> None:
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
def test_classes_select_images_and_boxes(
    archive: Path, target: Path, classes: tuple[str, ...], count: int
) -> None:
    names = write_annotations(archive, target, classes=classes, limit=None)
    read = read_annotations(target)
    assert sorted(read.file_names) == list(names) and len(names) == count
    assert tuple(read.category_names) == classes
    assert set(read.box_category_ids.tolist()) == set(read.category_ids.tolist())
    assert min(len(read.boxes[read.box_slice(index)]) for index in range(count)) >= 1


def test_leftovers_of_a_killed_download_are_replaced(archive: Path, target: Path) -> None:
    for name in ("instances_train2017.json.part", "instances_train2017.json.whole.part"):
        (target.parent / name).write_text("half of it")
    write_annotations(archive, target, classes=None, limit=3)
    assert len(content(target)["images"]) == 3 and len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("Cat", "did you mean cat"), ("zebra", "they are cat, dog")]
)
def test_unknown_class_is_refused(archive: Path, target: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_annotations(archive, target, classes=(name,), limit=None)
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["../a.jpg", "/etc/a.jpg", "b/a.jpg", ".a.jpg", "a.part", "", "a\0b", "a\nb.jpg"]
)
def test_file_names_with_folders_are_refused(target: Path, name: str) -> None:
    target.write_text(
        json.dumps({"images": [{"id": 1, "file_name": name}], "annotations": [], "categories": []})
    )
    with pytest.raises(InputError, match="not a plain file name"):
        select(target, classes=None, limit=None)


def test_annotations_above_the_size_limit_are_not_written(
    archive: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "LARGEST_JSON", 1000)
    with pytest.raises(InputError, match=r"instances_train2017\.json"):
        write_annotations(archive, target, classes=None, limit=None)
    assert not list(target.parent.iterdir())


def test_refused_annotations_leave_nothing(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as members:
        members.writestr(f"annotations/{target.name}", "[" + " " * 100_000)
    with pytest.raises(InputError):
        write_annotations(path, target, classes=None, limit=None)
    assert not list(target.parent.iterdir())
