"""Findings of image files, each compared with what training does."""

import struct
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.annotations import Split
from data.dataset import SampleKey, open_data
from data.decoding import is_resized_copy
from data.verify.findings import KINDS
from retinanet.training.data import BadImages
from tests.data.verify.small_set import (
    HEIGHT,
    IMAGES,
    WIDTH,
    counts,
    entries,
    small_content,
    train_on,
    verify,
    write_config,
    write_split,
    write_splits,
)


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_at_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill_with_text(path: Path) -> None:
    path.write_text("<html>404 Not Found</html>")


def declare_too_many_pixels(path: Path) -> None:
    """Write a small PNG whose header declares 60,000 × 60,000 pixels."""
    to_png(path)
    content = bytearray(path.read_bytes())
    struct.pack_into(">II", content, 16, 60_000, 60_000)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    path.write_bytes(content)


def turn(path: Path) -> None:
    with Image.open(path) as image:
        image.rotate(90, expand=True).save(path)


def with_orientation(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def store_turned(path: Path) -> None:
    """Store an image as a phone held upright; the annotations fit the displayed image."""
    with Image.open(path) as image:
        image.rotate(90, expand=True).save(path, exif=with_orientation(6))


def store_upside_down(path: Path) -> None:
    with Image.open(path) as image:
        image.rotate(180).save(path, exif=with_orientation(3))


def add_orientation_tag(path: Path) -> None:
    """Add an EXIF orientation; the annotations fit the stored pixels."""
    with Image.open(path) as image:
        image.save(path, exif=with_orientation(6))


def shrink(path: Path) -> None:
    with Image.open(path) as image:
        image.resize((WIDTH // 2, HEIGHT // 2)).save(path)


def to_png(path: Path) -> None:
    with Image.open(path) as image:
        image.save(path, format="PNG")


def fill_the_end_with_zeros(path: Path) -> None:
    """Overwrite the end with zeros, as after a power failure."""
    content = path.read_bytes()
    path.write_bytes(content[: -len(content) // 4].ljust(len(content), b"\0"))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


STOPPING: list[tuple[str, Callable[[Path], None]]] = [
    ("image_missing", Path.unlink),
    ("image_damaged", cut_in_half),
    ("image_damaged", cut_at_the_end),
    ("image_damaged", replace_by_folder),
    ("image_other_format", empty),
    ("image_other_format", fill_with_text),
    ("image_too_large", declare_too_many_pixels),
    ("image_other_shape", turn),
]


def splits_of(folder: Path) -> tuple[Split, Split]:
    train, validation = (
        Split(folder / name / "labels.json", folder / name / "images")
        for name in ("train", "validation")
    )
    return train, validation


def trained(folder: Path, **options: Any) -> int:
    return train_on(*splits_of(folder), **options)


@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
@pytest.mark.parametrize(("kind", "spoil"), STOPPING)
def test_file_that_stops_training(
    tmp_path: Path, kind: str, spoil: Callable[[Path], None], decoder: str
) -> None:
    config, *_ = write_splits(tmp_path, decoder=decoder)
    spoil(tmp_path / "validation" / "images" / "4.jpg")
    code, report = verify(config)
    assert code == 1 and counts(report) == {} and counts(report, "validation") == {kind: 1}
    assert entries(report, kind, "validation") == ["images[4]"]
    with pytest.raises(InputError):
        trained(tmp_path, decoder=decoder)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (to_png, {}),
        (shrink, {"image_resized": 1}),
        (store_turned, {"image_turned": 1}),
        (store_upside_down, {"image_orientation_unclear": 1}),
        (add_orientation_tag, {}),
        (fill_the_end_with_zeros, {"image_doubtful": 1}),
    ],
)
def test_file_that_training_accepts(
    tmp_path: Path, spoil: Callable[[Path], None], expected: dict[str, int]
) -> None:
    config, *_ = write_splits(tmp_path)
    spoil(tmp_path / "train" / "images" / "4.jpg")
    code, report = verify(config)
    assert code == 0 and counts(report) == expected
    assert trained(tmp_path) == 4 * IMAGES


def test_every_kind_of_image_finding_is_tested() -> None:
    harmless = {"image_resized", "image_doubtful", "image_turned", "image_orientation_unclear"}
    of_files = (
        {"image_missing"}
        | harmless
        | {name for name in KINDS if name.startswith(("image_d", "image_o", "image_t"))}
    )
    assert of_files == {kind for kind, _ in STOPPING} | harmless >= {"image_other_shape"}


def test_unused_image_does_not_stop_training(tmp_path: Path) -> None:
    """An image without boxes is unused in training, but read in the validation split."""
    content = small_content()
    boxes = [entry for entry in content["annotations"] if entry["image_id"] != 12]
    content["annotations"] = boxes
    config, *_ = write_splits(tmp_path, content, content)
    cut_in_half(tmp_path / "train" / "images" / "2.jpg")
    code, report = verify(config)
    assert code == 0 and counts(report) == {"image_damaged": 1, "image_without_boxes": 1}
    assert trained(tmp_path) == 2 * len(boxes)
    code, _ = verify(config, "data.images_without_boxes=train")
    assert code == 1
    with pytest.raises(InputError):
        trained(tmp_path, skip_images_without_boxes=False)


def test_first_image_must_exist(tmp_path: Path) -> None:
    content = small_content()
    content["annotations"] = [e for e in content["annotations"] if e["image_id"] != 10]
    config, *_ = write_splits(tmp_path, content, content)
    (tmp_path / "train" / "images" / "0.jpg").unlink()
    code, report = verify(config)
    assert code == 1 and counts(report)["image_missing"] == 1
    with pytest.raises(InputError):
        trained(tmp_path)


@pytest.mark.parametrize("size", [(24, 32), (48, 65), (50, 64), (64, 48)])
def test_training_accepts_resized_copies_only(tmp_path: Path, size: tuple[int, int]) -> None:
    write_splits(tmp_path)
    height, width = size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "train" / "images" / "3.jpg")
    if is_resized_copy(size, (HEIGHT, WIDTH)):
        assert trained(tmp_path) == 4 * IMAGES
    else:
        with pytest.raises(InputError, match="the image is"):
            trained(tmp_path)


def test_findings_of_all_processes_are_in_order(
    tmp_path: Path,
) -> None:
    content = small_content()
    content["images"] = [
        dict(content["images"][0], id=n, file_name=f"{n % IMAGES if n < 16 else n}.jpg")
        for n in range(200)
    ]
    content["annotations"] = []
    split = write_split(tmp_path / "train", content)
    config = write_config(tmp_path, split, split, images_without_boxes="train")
    _, report = verify(config)
    assert entries(report, "image_missing") == [f"images[{n}]" for n in range(16, 200)]


def test_unused_files_are_notes(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    folder = tmp_path / "train" / "images"
    (folder / "more").mkdir()
    for name in ("spare.JPG", "more/spare.png", "notes.txt"):
        (folder / name).write_text("not looked into")
    code, report = verify(config)
    assert code == 0 and counts(report) == {"file_unused": 2}
    assert entries(report, "file_unused") == ["spare.JPG", "more/spare.png"]


def test_splits_with_one_folder(tmp_path: Path) -> None:
    parts = []
    for name, belongs in (("train", lambda i: i <= 12), ("validation", lambda i: i > 12)):
        content = small_content()
        content["images"] = [image for image in content["images"] if belongs(image["id"])]
        content["annotations"] = [e for e in content["annotations"] if belongs(e["image_id"])]
        parts.append(write_split(tmp_path / name, content))
    train, validation = parts
    (train.images / "spare.jpg").touch()
    config = write_config(tmp_path, train, Split(validation.annotations, train.images))
    code, report = verify(config)
    assert code == 0 and counts(report) == {"file_unused": 1}
    assert counts(report, "validation") == {}
    _, report = verify(config, split="train")
    assert counts(report) == {}


def test_sample_is_marked_in_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, *_ = write_splits(tmp_path)
    code, report = verify(config, sample=2)
    assert code == 0 and report["splits"]["train"]["images_checked"] == 2
    printed = capsys.readouterr().out
    assert "ONLY 2 OF 6 images decoded" in printed
    assert "not all images were checked" in printed
    code, report = verify(config, no_images=True)
    assert code == 0 and report["splits"]["train"]["images_checked"] == 0
    assert "NO IMAGE WAS CHECKED" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "code"), [(3, 0), (2, 1)])
def test_bad_image_limit_is_for_both_splits(tmp_path: Path, limit: int, code: int) -> None:
    """The limit is for both splits together, as a run counts them."""
    config, *_ = write_splits(tmp_path, on_bad_image="skip", bad_image_limit=limit)
    (tmp_path / "train" / "images" / "0.jpg").unlink()
    turn(tmp_path / "train" / "images" / "2.jpg")
    cut_in_half(tmp_path / "validation" / "images" / "5.jpg")
    status, report = verify(config)
    assert status == code
    severities = {
        (name, finding["name"]): finding["severity"]
        for name, split in report["splits"].items()
        for finding in split["findings"]
    }
    assert severities == dict.fromkeys(
        [
            ("train", "image_missing"),
            ("train", "image_other_shape"),
            ("validation", "image_damaged"),
        ],
        "stops" if code else "mended",
    )
    opened = open_data(
        *splits_of(tmp_path),
        image_size=64,
        class_indices="contiguous",
        num_classes=None,
        skip_images_without_boxes=True,
        replace_bad_images=True,
    )
    run = BadImages(limit)
    with pytest.raises(InputError) if code else nullcontext():
        for dataset in (opened.train, opened.validation):
            for index in range(len(dataset)):
                run.note(dataset[SampleKey(index, index)].bad_images)


def test_all_training_images_are_bad(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path, on_bad_image="skip", bad_image_limit=100)
    for n in range(IMAGES):
        cut_in_half(tmp_path / "train" / "images" / f"{n}.jpg")
    code, _ = verify(config)
    assert code == 1
