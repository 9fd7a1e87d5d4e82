"""Checks of downloaded files, and the selection of COCO's annotations."""

import io
import itertools
import json
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
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


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def encoded(form: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, form, **options)
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
        if length % 20 == 0 or length >= len(content) - 250:
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


@pytest.mark.parametrize(
    ("content", "is_accepted"),
    [
        *((encoded("JPEG", mode), True) for mode in ("L", "CMYK")),
        (jpeg(0) + bytes(100), True),  # padding after the end
        *((other, False) for other in (b"", b"<html>", encoded("GIF"), b"\xff\xd8\xff\xd9")),
    ],
)
def test_only_images_are_accepted(tmp_path: Path, content: bytes, is_accepted: bool) -> None:
    with nullcontext() if is_accepted else pytest.raises(AttemptError):
        check_image(write(tmp_path / "a", content))


def test_damaged_zip_is_refused(tmp_path: Path) -> None:
    path, size = tmp_path / "a.zip", len(PIXELS.tobytes())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("a.json", PIXELS.tobytes())
        members.writestr("b.json", "{}")
    content = path.read_bytes()
    check_zip(path, members=["a.json", "b.json"], limit=size)
    with pytest.raises(AttemptError, match="not the expected zip"):
        check_zip(path, members=["a.json", "c.json"], limit=size)
    with pytest.raises(AttemptError, match=r"a\.json"):
        check_zip(path, members=["a.json"], limit=size - 1)
    for place in (*range(40, 140, 11), content.index(b"PK\x01\x02") + 8):  # the last: encrypted
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        with pytest.raises(AttemptError):
            check_zip(write(path, bytes(damaged)), members=["a.json", "b.json"], limit=size)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(AttemptError, match="damaged zip"):
            check_zip(write(path, content[:length]), members=["a.json"], limit=size)


LONG = "\ufeffImageID,XMin,More\n" + "a,1,2\n" * 3000 + "b,1,2"
HEADER, CLASSES = "LabelName,DisplayName\n", '/m/011k07,Tortoise\n/m/0,"Bow, arrow"\n'
check_boxes = partial(check_csv, columns=["XMin", "ImageID"])


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        *((check_boxes, LONG + end) for end in ("", "\n", "\r\n")),
        *((check_class_descriptions, header + CLASSES) for header in ("", HEADER)),
    ],
    ids=itertools.count(),
)
def test_expected_csv_is_accepted(
    tmp_path: Path, check: Callable[[Path], None], accepted: str
) -> None:
    check(write(tmp_path / "a.csv", accepted.encode()))


@pytest.mark.parametrize(
    ("check", "refused"),
    [
        *((check_boxes, text) for text in ("", "<html>", "ImageID\n", "XMin,ImageIDs\n1,2\n")),
        *((check_boxes, text) for text in ("ImageID,XMin\na,1\nb", '"ImageID,XMin\n')),
        *((check_class_descriptions, text) for text in ("", "<html>,\n", "/m/0\n")),
        (check_class_descriptions, "/m/011k07,Tortoise\n/m/0"),
    ],
)
def test_other_or_truncated_csv_is_refused(
    tmp_path: Path, check: Callable[[Path], None], refused: str
) -> None:
    with pytest.raises(AttemptError):
        check(write(tmp_path / "a.csv", refused.encode()))


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


Select = Callable[..., tuple[str, ...]]


@pytest.fixture
def selected(archive: Path, target: Path) -> Select:
    """Writes annotations of some classes of the first images; returns the names of the images."""
    return lambda classes=None, limit=None: write_annotations(
        archive, target, classes=classes, limit=limit
    )


def test_limit_selects_the_first_images_by_name(selected: Select, target: Path) -> None:
    names = selected()
    whole, written = content(target), target.stat().st_mtime_ns
    assert names == tuple(sorted(image["file_name"] for image in whole["images"]))
    assert len(names) == 24 and whole["licenses"]
    assert selected() == names and target.stat().st_mtime_ns == written
    assert selected(limit=5) == names[:5]
    part = content(target)
    assert [i for i in whole["images"] if i["file_name"] in names[:5]] == part["images"]
    ids = {image["id"] for image in part["images"]}
    assert part["annotations"] == [b for b in whole["annotations"] if b["image_id"] in ids]
    assert part["categories"] == whole["categories"]
    assert selected(limit=9) == names[:9]
    assert selected() == names
    assert content(target) == whole and len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize(("name", "hint"), [("Cat", "did you mean 'cat'"), ("zebra", "cat, dog")])
def test_unknown_class_is_refused(selected: Select, target: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        selected((name,))
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["../a.jpg", "/etc/a.jpg", "b/a.jpg", ".a.jpg", "a.part", "", "a\0b", "a\nb.jpg"]
)
def test_file_names_with_folders_are_refused(target: Path, name: str) -> None:
    images = [{"id": 1, "file_name": name}]
    target.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    with pytest.raises(InputError, match="not a plain file name"):
        select(target, classes=None, limit=None)


def test_refused_annotations_leave_nothing(
    selected: Select, archive: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as small:
        small.setattr(datasets, "LARGEST_JSON", 1000)
        with pytest.raises(InputError, match=r"instances_train2017\.json"):
            selected()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr(f"annotations/{target.name}", "[" + " " * 100_000)
    with pytest.raises(InputError):
        selected()
    assert not list(target.parent.iterdir())
