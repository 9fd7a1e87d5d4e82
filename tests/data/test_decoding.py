"""Decoding of every image mode and format, EXIF orientation, damaged and too large files."""

import io
import itertools
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common.errors import InputError
from data.decoding import DECODERS, MAX_PIXELS, decode_image, image_fault, installed_decoders
from tests.support.commands import error_message

GREY = np.array([[0, 60, 120], [180, 240, 255]], dtype=np.uint8)


def as_rgb(grey: np.ndarray) -> list[object]:
    return np.repeat(grey[:, :, None], 3, axis=2).tolist()


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def png16(path: Path, *, colour_type: int, samples: np.ndarray) -> Path:
    """Write a 16-bit PNG, samples [H, W, channels]; Pillow writes only the grey ones."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))
    chunks += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return path


RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
ALPHA = np.array([[0, 128, 255], [255, 1, 0]], dtype=np.uint8)
RGBA = np.dstack([GREY, GREY[::-1], GREY, ALPHA])
LEVELS = np.array([[0, 257, 1000], [32768, 65278, 65535]], dtype=np.uint16)
BITS = Image.fromarray(GREY).convert("1", dither=Image.Dither.NONE)
IMAGES = {
    "RGB": (Image.fromarray(RGB), RGB.tolist()),
    "grey": (Image.fromarray(GREY), as_rgb(GREY)),
    "one bit": (BITS, as_rgb(np.where(GREY >= 128, 255, 0))),
    "LA": (Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]), as_rgb(GREY)),
    "RGBA": (Image.fromarray(RGBA, "RGBA"), RGBA[:, :, :3].tolist()),
    "16 bits": (Image.fromarray(LEVELS), as_rgb(np.array([[0, 1, 4], [128, 254, 255]]))),
}


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [*itertools.product(IMAGES, ("png", "tiff")), ("grey", "bmp"), ("grey", "gif")],
)
def test_every_mode_is_read_as_rgb(tmp_path: Path, kind: str, suffix: str) -> None:
    image, expected = IMAGES[kind]
    decoded = decode_image(save(image, tmp_path / f"a.{suffix}"))
    assert decoded.dtype == np.uint8 and decoded.tolist() == expected
    assert decoded.flags.writeable and decoded.flags.c_contiguous  # torch.from_numpy needs both


@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80\xff"])
def test_palette_colours(tmp_path: Path, transparency: int | bytes | None) -> None:
    colours = [(255, 0, 0), (0, 128, 255), (10, 20, 30)]
    image = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8), "P")
    image.putpalette([value for colour in colours for value in colour])
    options = {} if transparency is None else {"transparency": transparency}
    path = save(image, tmp_path / "a.png", **options)
    with Image.open(path) as stored:
        assert stored.mode == "P" and ("transparency" in stored.info) == bool(options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = decode_image(path)
    assert decoded.tolist() == [[list(colours[i]) for i in row] for row in ([0, 1, 2], [2, 1, 0])]


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png_of_every_colour_type(
    tmp_path: Path, colour_type: int, channels: int
) -> None:
    eight = np.random.default_rng(1).integers(0, 256, (3, 4, channels))
    path = png16(tmp_path / "a.png", colour_type=colour_type, samples=eight * 257)
    colours = eight[:, :, :1].repeat(3, axis=2) if channels < 3 else eight[:, :, :3]
    assert decode_image(path).tolist() == colours.tolist()


def test_cmyk_jpeg(tmp_path: Path) -> None:
    ink = np.full((16, 16, 4), (10, 200, 50, 30), dtype=np.uint8)
    image = Image.fromarray(ink, "CMYK")
    decoded = decode_image(save(image, tmp_path / "a.jpg", quality=100, subsampling=0))
    # Light left by each ink over black: (255 − ink)(255 − K) / 255.
    expected = [(255 - value) * 225 / 255 for value in (10, 200, 50)]
    assert np.abs(decoded - np.array(expected)).max() <= 3


def test_ycck_jpeg(tmp_path: Path) -> None:
    """Pillow writes CMYK with Adobe's transform 0; with the flag at 2 libjpeg reads YCCK."""
    ink = np.full((16, 16, 4), (128, 128, 128, 255), dtype=np.uint8)
    path = save(Image.fromarray(ink, "CMYK"), tmp_path / "a.jpg", quality=100, subsampling=0)
    content = bytearray(path.read_bytes())
    marker = content.index(b"Adobe")
    assert content[marker + 11] == 0
    content[marker + 11] = 2
    path.write_bytes(bytes(content))
    with Image.open(path) as image:
        assert image.mode == "CMYK"
        expected = np.asarray(image.convert("RGB"))
    decoded = decode_image(path)
    assert decoded.shape == (16, 16, 3) and decoded.tolist() == expected.tolist()


def failure(path: Path, decoder: str = "pillow", **options: bool) -> str:
    message = error_message(decode_image, path, decoder=decoder, **options)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"P6 1 1 255 abc"])
def test_other_formats_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    assert failure(tmp_path / "a.jpg").startswith("not an image in JPEG, PNG")


@pytest.mark.parametrize("name", ["a.avif", "a.jpg"])
def test_photo_in_another_format_is_named(tmp_path: Path, name: str) -> None:
    """Phones and messengers also give HEIC and AVIF the name of a JPEG."""
    Image.new("RGB", (16, 16)).save(tmp_path / name, "AVIF")
    assert ", but HEIC, AVIF or another file of ISO media; convert" in failure(tmp_path / name)


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp", "bmp"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(Image.fromarray(pixels), tmp_path / f"a.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    failure(path)


def test_damaged_png_and_32_bit_pixels_are_refused(tmp_path: Path) -> None:
    path = save(Image.fromarray(GREY), tmp_path / "a.png")
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 0xFF
    path.write_bytes(bytes(content))
    assert failure(path).startswith("damaged image")
    assert "(mode F)" in failure(save(Image.new("F", (4, 4), 0.5), tmp_path / "a.tiff"))


STORED = (61, 83)
"""Height and width [pixels]"""


def photo(
    folder: Path, *, orientation: int, suffix: str = "jpg", size: tuple[int, int] = STORED
) -> Path:
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((size[1], size[0]))
    return save(image, folder / f"a.{suffix}", exif=orientation_tag(orientation))


def as_stored(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def as_displayed(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize(
    ("suffix", "decoder"),
    [
        *(("jpg", decoder) for decoder in installed_decoders()),
        ("png", "pillow"),
        ("webp", "pillow"),
    ],
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_where_annotations_need_it(
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
def test_annotated_size_decides_whether_to_rotate(
    tmp_path: Path, size: tuple[int, int], annotated: tuple[int, int], is_turned: bool
) -> None:
    path = photo(tmp_path, orientation=6, size=size)
    shape = decode_image(path, annotated_size=annotated).shape[:2]
    assert shape == (size[::-1] if is_turned else size)


def orientation_tag(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


BROKEN = [b"", b"Exif\0\0", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0II"]


@pytest.mark.parametrize("exif", [*BROKEN, *map(orientation_tag, (0, 9, 65535))])
def test_broken_exif_and_orientation_are_ignored(tmp_path: Path, exif: bytes | Image.Exif) -> None:
    path = save(Image.new("RGB", (83, 61)), tmp_path / "a.jpg", exif=exif)
    assert decode_image(path, annotated_size=STORED[::-1]).shape[:2] == STORED


def test_tiff_is_rotated_once(tmp_path: Path) -> None:
    """Pillow turns TIFFs as it reads them."""
    path = photo(tmp_path, orientation=6, suffix="tiff")
    for annotated in (STORED, STORED[::-1]):
        pixels = decode_image(path, annotated_size=annotated)
        assert np.array_equal(pixels, as_displayed(path)) and pixels.shape[:2] == STORED[::-1]


def encoded_image(suffix: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, format=suffix)
    return buffer.getvalue()


def declaring_size(suffix: str, side: int) -> bytes:
    """Return a small image whose header declares `side` x `side` pixels."""
    content = bytearray(encoded_image(suffix))
    places, kind = {
        "jpeg": ([content.find(b"\xff\xc0") + 5], ">HH"),
        "png": ([16], ">II"),
        "bmp": ([18], "<ii"),
        "gif": ([6], "<HH"),
        "tiff": ([content.find(bytes([tag, 1, 4, 0, 1])) + 8 for tag in (0, 1)], "<I"),
        "webp": ([content.find(b"\x9d\x01\x2a") + 3], "<HH"),
    }[suffix]
    for place in places:
        struct.pack_into(kind, content, place, *[side] * (len(kind) - 1))
    if suffix == "png":
        struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", ["jpeg", "png", "bmp", "gif", "tiff", "webp"])
def test_size_above_the_limit_is_refused_before_decoding(
    tmp_path: Path, decoder: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{suffix}"
    side = 16_383 if suffix == "webp" else 60_000  # WebP has no larger sides
    path.write_bytes(declaring_size(suffix, side))
    for decoding in ("to_rgb", "JPEG_DECODERS"):
        monkeypatch.delattr(f"data.decoding.{decoding}")
    for upright in (False, True):
        message = failure(path, decoder, apply_exif_orientation=upright)
        assert message.startswith("too large: ") and str(side**2) in message


@pytest.mark.parametrize("decoder", ["pillow", "simplejpeg"])
def test_size_limit_does_not_depend_on_pillows(
    tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.delattr("data.decoding.JPEG_DECODERS")
    path = tmp_path / "a.jpg"
    path.write_bytes(declaring_size("jpeg", 13_378))  # 13 377² is within the limit
    message = failure(path, decoder)
    assert "13378×13378" in message and str(MAX_PIXELS) in message


def test_large_image_within_the_limit_gives_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded_image("png"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)  # Pillow warns from there on
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Image.DecompressionBombWarning):
            Image.open(path)
        assert decode_image(path).shape == (48, 64, 3)


def test_file_larger_than_any_image_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """simplejpeg gets the whole file: a hole of a terabyte takes no room on the disk."""
    path = save(Image.new("RGB", (8, 8)), tmp_path / "a.jpg")
    os.truncate(path, 10**12)
    for decoder in DECODERS:
        with pytest.raises(InputError, match=r"a\.jpg: cannot be read: it is larger than 1,500,"):
            decode_image(path, decoder=decoder)


def test_fault_of_a_header(tmp_path: Path) -> None:
    path = save(Image.new("RGB", (8, 8)), tmp_path / "a.jpg")
    assert image_fault(path) is None
    path.write_text("text")
    assert (image_fault(path) or "").startswith("not an image in JPEG")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"a\.jpg: cannot be read: it is not a regular file"):
        image_fault(path)
