"""Findings of image files, each compared with what training does."""

import json
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
from data.annotations import TrainingRules
from data.dataset import open_data
from data.decoding import decode_annotated, decode_image
from data.findings import KINDS
from retinanet.training.data import BadImages
from tests.data.verify.small_set import (
    HEIGHT,
    IMAGES,
    WIDTH,
    both_splits,
    counts,
    entries,
    small_content,
    train_on,
    verify,
    write_config,
    write_split,
    write_splits,
)

Spoil = Callable[[Path], object]


def replaced(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def saved(change: Callable[[Image.Image], Image.Image], orientation: int = 1) -> Spoil:
    def spoil(path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        with Image.open(path) as image:
            change(image).save(path, exif=exif)

    return spoil


def to_png(path: Path) -> None:
    with Image.open(path) as image:
        image.save(path, format="PNG")


def declare_too_many_pixels(path: Path) -> None:
    """Write a small PNG whose header declares 60,000 × 60,000 pixels."""
    to_png(path)
    content = bytearray(path.read_bytes())
    struct.pack_into(">II", content, 16, 60_000, 60_000)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    path.write_bytes(content)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


cut_in_half = replaced(lambda content: content[: len(content) // 2])


def to_twelve_bits(path: Path) -> None:
    """Write a 16-bit image of a camera with 12 bits, which few programs scale."""
    values = np.linspace(0, 4095, HEIGHT * WIDTH).astype(np.uint16).reshape(HEIGHT, WIDTH)
    Image.fromarray(values).save(path, format="PNG")


def to_sixteen_bits(path: Path) -> None:
    values = np.linspace(0, 65535, HEIGHT * WIDTH).astype(np.uint16).reshape(HEIGHT, WIDTH)
    Image.fromarray(values).save(path, format="PNG")


turn = saved(lambda image: image.rotate(90, expand=True))

STOPPING: list[tuple[str, Spoil]] = [
    ("image_missing", Path.unlink),
    ("image_damaged", cut_in_half),
    ("image_damaged", replaced(lambda content: content[:-40])),
    ("image_damaged", replace_by_folder),
    ("image_other_format", replaced(lambda content: b"")),
    ("image_other_format", replaced(lambda content: b"<html>404 Not Found</html>")),
    ("image_too_large", declare_too_many_pixels),
    ("image_other_shape", turn),
]
ACCEPTED: list[tuple[Spoil, str | None]] = [
    (to_png, None),
    (to_sixteen_bits, None),
    (to_twelve_bits, "image_dark"),
    (lambda path: Image.new("RGB", (WIDTH, HEIGHT)).save(path), None),
    (saved(lambda image: image.resize((WIDTH // 2, HEIGHT // 2))), "image_resized"),
    # As a phone held upright stores it: the annotations are of what it displays, then not.
    (saved(lambda image: image.rotate(90, expand=True), 6), "image_turned"),
    (saved(lambda image: image, 6), None),
    (saved(lambda image: image.rotate(180), 3), "image_orientation_unclear"),
    # Zeros at the end, as a file system leaves them after a power failure.
    (replaced(lambda c: c[: -len(c) // 4].ljust(len(c), b"\0")), "image_doubtful"),
]


def trained(folder: Path, **options: Any) -> int:
    return train_on(*both_splits(folder), **options)


@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
@pytest.mark.parametrize(("kind", "spoil"), STOPPING)
def test_file_that_stops_training(tmp_path: Path, kind: str, spoil: Spoil, decoder: str) -> None:
    config, *_ = write_splits(tmp_path, decoder=decoder)
    spoil(tmp_path / "validation" / "images" / "4.jpg")
    code, report = verify(config)
    assert code == 1 and counts(report) == {} and counts(report, "validation") == {kind: 1}
    assert entries(report, kind, "validation") == ["images[4]"]
    with pytest.raises(InputError):
        trained(tmp_path, decoder=decoder)


@pytest.mark.parametrize(("spoil", "kind"), ACCEPTED)
def test_file_that_training_accepts(tmp_path: Path, spoil: Spoil, kind: str | None) -> None:
    config, *_ = write_splits(tmp_path)
    spoil(tmp_path / "train" / "images" / "4.jpg")
    code, report = verify(config)
    assert code == 0 and counts(report) == ({kind: 1} if kind else {})
    assert trained(tmp_path) == 4 * IMAGES


def test_every_kind_of_image_finding_is_tested() -> None:
    tested = {kind for kind, _ in STOPPING} | {kind for _, kind in ACCEPTED}
    prefixes = ("image_d", "image_m", "image_o", "image_t", "image_r")
    assert {name for name in KINDS if name.startswith(prefixes)} == tested - {None}


@pytest.mark.parametrize("is_marked", [False, True])
def test_marked_photo_is_read_as_displayed(tmp_path: Path, *, is_marked: bool) -> None:
    content = small_content()
    content["images"][4]["exif_applied"] = is_marked
    config, split, _ = write_splits(tmp_path, content)
    before = decode_image(split.images / "4.jpg").astype(int)
    saved(lambda image: image.rotate(180), 3)(split.images / "4.jpg")
    _, report = verify(config)
    kind = "image_turned" if is_marked else "image_orientation_unclear"
    assert counts(report) == {kind: 1}
    data = open_data(split, split, TrainingRules(image_size=64))
    pixels = decode_annotated(data.validation.annotations, split.images, 4).astype(int)
    difference = np.abs(pixels - (before if is_marked else before[::-1, ::-1])).mean()
    assert difference < 20  # saved twice as JPEG; the other way round it is above 60


def test_unused_image_does_not_stop_training(tmp_path: Path) -> None:
    """An image without boxes is unused in training, but read in the validation split."""
    content = small_content()
    content["annotations"] = [e for e in content["annotations"] if e["image_id"] not in (10, 12)]
    config, *_ = write_splits(tmp_path, content, content)
    cut_in_half(tmp_path / "train" / "images" / "2.jpg")
    code, report = verify(config)
    assert code == 0 and counts(report) == {"image_damaged": 1, "image_without_boxes": 2}
    assert trained(tmp_path) == 2 * len(content["annotations"])
    assert verify(config, "data.images_without_boxes=train")[0] == 1
    with pytest.raises(InputError):
        trained(tmp_path, skip_images_without_boxes=False)
    (tmp_path / "train" / "images" / "0.jpg").unlink()  # the first image must exist
    code, report = verify(config)
    assert code == 1 and counts(report)["image_missing"] == 1
    with pytest.raises(InputError):
        trained(tmp_path)


def test_findings_of_all_processes_are_in_order(tmp_path: Path) -> None:
    content = small_content() | {"annotations": []}
    names = [f"{n % IMAGES if n < 16 else n}.jpg" for n in range(200)]
    image = content["images"][0]
    content["images"] = [dict(image, id=n, file_name=name) for n, name in enumerate(names)]
    split = write_split(tmp_path / "train", content)
    _, report = verify(write_config(tmp_path, split, split, images_without_boxes="train"))
    assert entries(report, "image_missing") == [f"images[{n}]" for n in range(16, 200)]


def test_unused_files_are_notes(tmp_path: Path) -> None:
    config, train, validation = write_splits(tmp_path)
    (train.images / "more").mkdir()
    for name in ("spare.JPG", "more/spare.png", "notes.txt"):
        (train.images / name).write_text("not looked into")
    code, report = verify(config)
    assert code == 0 and counts(report) == {"file_unused": 2}
    assert entries(report, "file_unused") == ["spare.JPG", "more/spare.png"]
    # Both splits in one folder: an image of one is not unused.
    for split, ids in ((train, range(10, 13)), (validation, range(13, 16))):
        content = small_content()
        content["images"] = [image for image in content["images"] if image["id"] in ids]
        content["annotations"] = [e for e in content["annotations"] if e["image_id"] in ids]
        split.annotations.write_text(json.dumps(content))
    config = write_config(tmp_path, train, validation._replace(images=train.images))
    code, report = verify(config)
    assert code == 0 and counts(report) == {"file_unused": 2}
    assert counts(report, "validation") == {}
    assert counts(verify(config, split="train")[1]) == {}


@pytest.mark.parametrize(("options", "rows"), [({"no_images": True}, [1, 2]), ({}, [1, 2, 3])])
def test_training_images_among_the_validation_images_are_noted(
    tmp_path: Path,
    options: dict[str, bool],
    rows: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two are links to files of the training split; one is a copy, which only its content shows."""
    config, train, validation = write_splits(tmp_path)
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (validation.images / name).unlink()
    (validation.images / "1.jpg").symlink_to(train.images / "1.jpg")
    (validation.images / "2.jpg").symlink_to("../../train/images/4.jpg")
    (validation.images / "3.jpg").write_bytes((train.images / "5.jpg").read_bytes())
    code, report = verify(config, **options)
    assert code == 0 and counts(report) == {}
    assert counts(report, "validation") == {"image_in_both_splits": len(rows)}
    places = [f"images[{row}].file_name" for row in rows]
    assert entries(report, "image_in_both_splits", "validation") == places
    output = capsys.readouterr().out
    assert f"{len(rows)} of 6 validation images are training images too" in output


def test_splits_that_are_one_file_share_every_image(tmp_path: Path) -> None:
    _, train, _ = write_splits(tmp_path)
    (tmp_path / "copy.json").write_bytes(train.annotations.read_bytes())
    copy = train._replace(annotations=tmp_path / "copy.json")
    _, report = verify(write_config(tmp_path, train, copy), no_images=True)
    assert counts(report, "validation") == {"image_in_both_splits": IMAGES}
    assert counts(verify(tmp_path / "small.yaml", split="validation")[1], "validation") == {}


def test_unreadable_files_are_no_copies(tmp_path: Path) -> None:
    config, train, validation = write_splits(tmp_path)
    for split in (train, validation):
        (split.images / "2.jpg").write_bytes(b"")
    _, report = verify(config)
    assert counts(report, "validation") == {"image_other_format": 1}


def test_sample_is_marked_in_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, *_ = write_splits(tmp_path)
    code, report = verify(config, sample=2)
    assert code == 0 and report["splits"]["train"]["images_checked"] == 2
    assert "ONLY 2 OF 6 images" in capsys.readouterr().out
    code, report = verify(config, no_images=True)
    assert code == 0 and report["splits"]["train"]["images_checked"] == 0
    assert "NO IMAGE" in capsys.readouterr().out


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
    missing, shape = ("train", "image_missing"), ("train", "image_other_shape")
    bad = [missing, shape, ("validation", "image_damaged")]
    assert severities == dict.fromkeys(bad, "stops" if code else "mended")
    run = BadImages(limit)
    with pytest.raises(InputError) if code else nullcontext():
        train_on(*both_splits(tmp_path), note=run.note, bad_image_limit=9)


def test_all_training_images_are_bad(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path, on_bad_image="skip", bad_image_limit=100)
    for file in (tmp_path / "train" / "images").iterdir():
        cut_in_half(file)
    assert verify(config)[0] == 1
