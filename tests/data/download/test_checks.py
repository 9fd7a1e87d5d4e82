import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.download.datasets import check_class_descriptions, check_csv, check_zip
from data.download.http import AttemptError
from data.download.images import check_image
from tests.data.download.datasets import jpeg

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
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
def test_an_image_cut_at_any_byte_is_refused(tmp_path: Path, content: bytes) -> None:
    check_image(write(tmp_path / "whole", content))
    for length in range(len(content)):
        with pytest.raises(AttemptError):
            check_image(write(tmp_path / "cut", content[:length]))


def test_the_end_of_a_thumbnail_is_not_the_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "\xff\xd9".encode("latin-1")
    content = encoded("JPEG", exif=exif)
    assert content.count(b"\xff\xd9") == 2
    check_image(write(tmp_path / "whole", content))
    with pytest.raises(AttemptError):
        check_image(write(tmp_path / "cut", content[:-2]))


def test_padding_after_the_end_is_no_matter(tmp_path: Path) -> None:
    check_image(write(tmp_path / "a", jpeg(0) + bytes(100)))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_are_images(tmp_path: Path, mode: str) -> None:
    Image.fromarray(PIXELS).convert(mode).save(tmp_path / "a.jpg")
    check_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("content", [b"", b"<html></html>", encoded("GIF"), b"\xff\xd8\xff\xd9"])
def test_what_is_neither_jpeg_nor_png_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(AttemptError):
        check_image(write(tmp_path / "a", content))


def archive(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("a.json", PIXELS.tobytes())
        members.writestr("b.json", "{}")
    return path.read_bytes()


def test_a_zip_is_checked_to_the_last_byte_of_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = archive(path)
    check_zip(path, members=["a.json", "b.json"], limit=LIMIT)
    with pytest.raises(AttemptError, match="not the zip asked for"):
        check_zip(path, members=["a.json", "c.json"], limit=LIMIT)
    for place in range(40, 1800, 97):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        with pytest.raises(AttemptError, match="damaged zip"):
            check_zip(write(path, bytes(damaged)), members=["a.json", "b.json"], limit=LIMIT)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(AttemptError, match="damaged zip"):
            check_zip(write(path, content[:length]), members=["a.json"], limit=LIMIT)


def test_a_zip_that_inflates_to_more_than_expected_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    size = len(PIXELS.tobytes())
    archive(path)
    check_zip(path, members=["a.json"], limit=size)
    with pytest.raises(AttemptError, match=r"a\.json"):
        check_zip(path, members=["a.json"], limit=size - 1)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    content = bytearray(archive(path))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(AttemptError):
        check_zip(write(path, bytes(content)), members=["a.json"], limit=LIMIT)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_csv_with_its_columns_passes(tmp_path: Path, end: str) -> None:
    content = "\ufeffImageID,XMin,More\n" + "a,1,2\n" * 3000 + "b,1,2" + end
    check_csv(write(tmp_path / "a.csv", content.encode()), columns=["XMin", "ImageID"])


@pytest.mark.parametrize(
    "content",
    ["", "<html>", "ImageID\n", "XMin,ImageIDs\n1,2\n", "ImageID,XMin\na,1\nb", '"ImageID,XMin\n'],
)
def test_another_csv_or_a_part_of_one_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(AttemptError):
        check_csv(write(tmp_path / "a.csv", content.encode()), columns=["ImageID", "XMin"])


@pytest.mark.parametrize("header", ["", "LabelName,DisplayName\n"])
def test_class_descriptions_of_both_kinds_pass(tmp_path: Path, header: str) -> None:
    content = header + '/m/011k07,Tortoise\n/m/0,"Bow, arrow"\n'
    check_class_descriptions(write(tmp_path / "a.csv", content.encode()))


@pytest.mark.parametrize("content", ["", "<html>,\n", "/m/011k07,Tortoise\n/m/0", "/m/0\n"])
def test_other_class_descriptions_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(AttemptError):
        check_class_descriptions(write(tmp_path / "a.csv", content.encode()))
