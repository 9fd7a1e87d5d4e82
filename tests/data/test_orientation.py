"""Photos with an EXIF orientation: turned where their annotations fit only then."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.decoding import decode_image, installed_decoders

FORMATS = ("jpg", "png", "webp")
STORED = (61, 83)
"""Height and width [pixels]"""


def photo(
    folder: Path, *, orientation: int, suffix: str = "jpg", size: tuple[int, int] = STORED
) -> Path:
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((size[1], size[0]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = folder / f"a.{suffix}"
    image.save(path, exif=exif)
    return path


def as_stored(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def as_displayed(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize("decoder", installed_decoders())
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_read_as_it_was_annotated(
    tmp_path: Path, orientation: int, suffix: str, decoder: str
) -> None:
    path = photo(tmp_path, orientation=orientation, suffix=suffix)
    pixels = decode_image(path, decoder=decoder, annotated_size=STORED)
    assert np.array_equal(pixels, as_stored(path)) and pixels.flags.c_contiguous
    displayed = as_displayed(path)
    for scale in (1, 3):  # annotations of a larger copy
        size = displayed.shape[0] * scale, displayed.shape[1] * scale
        pixels = decode_image(path, decoder=decoder, annotated_size=size)
        expected = displayed if orientation >= 5 else as_stored(path)
        assert np.array_equal(pixels, expected) and pixels.flags.c_contiguous
    upright = decode_image(path, decoder=decoder, apply_exif_orientation=True)
    assert np.array_equal(upright, displayed)


@pytest.mark.parametrize(
    ("size", "annotated", "is_turned"),
    [
        ((60, 60), (60, 60), False),
        ((60, 61), (61, 60), True),
        ((60, 61), (60, 61), False),
        ((60, 61), (120, 120), False),
        ((60, 90), (50, 50), False),
        ((60, 90), (181, 120), True),
    ],
    ids=["square", "one pixel", "stored", "nearly square, resized", "neither", "resized"],
)
def test_the_annotated_size_decides(
    tmp_path: Path, size: tuple[int, int], annotated: tuple[int, int], is_turned: bool
) -> None:
    path = photo(tmp_path, orientation=6, size=size)
    shape = decode_image(path, annotated_size=annotated).shape[:2]
    assert shape == (size[::-1] if is_turned else size)


@pytest.mark.parametrize("content", [b"", b"Exif\0\0", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0II"])
def test_broken_exif_turns_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (83, 61)).save(path, exif=content)
    assert decode_image(path, annotated_size=STORED[::-1]).shape[:2] == STORED


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_turns_nothing(tmp_path: Path, orientation: int) -> None:
    path = photo(tmp_path, orientation=orientation)
    assert decode_image(path, annotated_size=STORED[::-1]).shape[:2] == STORED


def test_a_tiff_is_turned_once(tmp_path: Path) -> None:
    """Pillow turns TIFFs as it reads them."""
    path = photo(tmp_path, orientation=6, suffix="tiff")
    for annotated in (STORED, STORED[::-1]):
        pixels = decode_image(path, annotated_size=annotated)
        assert np.array_equal(pixels, as_displayed(path)) and pixels.shape[:2] == STORED[::-1]
