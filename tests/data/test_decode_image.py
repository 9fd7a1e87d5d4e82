"""Every image mode as a real file, written with Pillow or, where it cannot, byte by byte."""

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.decoding import decode_image

GREY = np.array([[0, 60, 120], [180, 240, 255]], dtype=np.uint8)


def as_rgb(grey: np.ndarray) -> list[object]:
    return np.repeat(grey[:, :, None], 3, axis=2).tolist()


def save(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def png16(path: Path, *, colour_type: int, samples: np.ndarray) -> Path:
    """Write a 16-bit PNG, samples [H, W, channels]; Pillow writes only the grey ones."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    height, width, _ = samples.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path


def test_rgb_is_read_as_stored(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    decoded = decode_image(save(Image.fromarray(pixels), tmp_path / "a.png"))
    assert decoded.dtype == np.uint8 and decoded.shape == (5, 7, 3)
    assert decoded.tolist() == pixels.tolist()
    assert decoded.flags.writeable and decoded.flags.c_contiguous  # torch.from_numpy wants both


@pytest.mark.parametrize("suffix", ["png", "tiff", "bmp", "gif"])
def test_grey_is_repeated(tmp_path: Path, suffix: str) -> None:
    decoded = decode_image(save(Image.fromarray(GREY), tmp_path / f"a.{suffix}"))
    assert decoded.tolist() == as_rgb(GREY)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_one_bit_becomes_black_and_white(tmp_path: Path, suffix: str) -> None:
    image = Image.fromarray(GREY).convert("1", dither=Image.Dither.NONE)
    assert image.mode == "1"
    decoded = decode_image(save(image, tmp_path / f"a.{suffix}"))
    assert decoded.tolist() == as_rgb(np.where(GREY >= 128, 255, 0))


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_alpha_is_dropped(tmp_path: Path, suffix: str) -> None:
    alpha = np.array([[0, 128, 255], [255, 1, 0]], dtype=np.uint8)
    grey_alpha = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])
    assert decode_image(save(grey_alpha, tmp_path / f"la.{suffix}")).tolist() == as_rgb(GREY)
    rgba = np.dstack([GREY, GREY[::-1], GREY, alpha])
    decoded = decode_image(save(Image.fromarray(rgba, "RGBA"), tmp_path / f"rgba.{suffix}"))
    assert decoded.tolist() == rgba[:, :, :3].tolist()


@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80\xff"])
def test_a_palettes_colours_are_read(tmp_path: Path, transparency: int | bytes | None) -> None:
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


def test_a_palette_gif_is_read(tmp_path: Path) -> None:
    image = Image.new("P", (4, 3), color=1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert (decode_image(save(image, tmp_path / "a.gif")) == [10, 200, 30]).all()


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    levels = np.array([[0, 257, 1000], [32768, 65278, 65535]], dtype=np.uint16)
    decoded = decode_image(save(Image.fromarray(levels), tmp_path / f"a.{suffix}"))
    assert decoded.tolist() == as_rgb(np.round(levels / 257).astype(np.uint8))
    assert decoded[0, 2, 0] == 4 and decoded[1, 0, 0] == 128


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bit_png_of_every_colour_type(
    tmp_path: Path, colour_type: int, channels: int
) -> None:
    eight = np.random.default_rng(1).integers(0, 256, (3, 4, channels))
    path = png16(tmp_path / "a.png", colour_type=colour_type, samples=eight * 257)
    colours = eight[:, :, :1].repeat(3, axis=2) if channels < 3 else eight[:, :, :3]
    assert decode_image(path).tolist() == colours.tolist()


def test_cmyk_jpeg_is_converted(tmp_path: Path) -> None:
    ink = np.full((16, 16, 4), (10, 200, 50, 30), dtype=np.uint8)
    image = Image.fromarray(ink, "CMYK")
    decoded = decode_image(save(image, tmp_path / "a.jpg", quality=100, subsampling=0))
    # Light left by each ink over black: (255 − ink)(255 − K) / 255.
    expected = [(255 - value) * 225 / 255 for value in (10, 200, 50)]
    assert np.abs(decoded - np.array(expected)).max() <= 3


def test_ycck_jpeg_is_converted(tmp_path: Path) -> None:
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


def test_a_jpeg_photo_is_close_to_what_was_saved(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    pixels = np.dstack(
        [
            np.tile(ramp, (64, 1)),
            np.tile(ramp[:, None], (1, 64)),
            GREY[1, 0] * 0 + np.full((64, 64), 90, dtype=np.uint8),
        ]
    )
    decoded = decode_image(save(Image.fromarray(pixels), tmp_path / "a.jpg", quality=95))
    assert np.abs(decoded.astype(int) - pixels).mean() < 3


def test_webp_is_read(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 6), (200, 30, 60))
    decoded = decode_image(save(image, tmp_path / "a.webp", lossless=True))
    assert decoded.shape == (6, 8, 3) and (decoded == [200, 30, 60]).all()


def test_a_phones_multi_picture_jpeg_gives_the_first(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (8, 8), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    path = tmp_path / "a.jpg"
    first.save(path, format="MPO", save_all=True, append_images=[second], quality=100)
    decoded = decode_image(path)
    assert decoded[..., 0].min() > 240 and decoded[..., 2].max() < 10


def test_exif_orientation_is_applied_only_on_request(tmp_path: Path) -> None:
    pixels = np.zeros((8, 16, 3), dtype=np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    path = save(Image.fromarray(pixels), tmp_path / "a.png", exif=exif)
    assert decode_image(path).tolist() == pixels.tolist()
    upright = decode_image(path, apply_exif_orientation=True)
    assert upright.tolist() == np.rot90(pixels, k=-1).tolist()


def failure(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        decode_image(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert failure(tmp_path / "none.jpg").startswith("no such image file")


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"P6 1 1 255 abc"])
def test_what_is_no_image_or_no_format_of_ours_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    assert failure(path).startswith("not an image in JPEG, PNG")


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff", "webp", "bmp"])
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(Image.fromarray(pixels), tmp_path / f"a.{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    failure(path)


def test_a_damaged_png_is_named(tmp_path: Path) -> None:
    path = save(Image.fromarray(GREY), tmp_path / "a.png")
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 0xFF
    path.write_bytes(bytes(content))
    assert failure(path).startswith("damaged image")


def test_thirty_two_bit_pixels_are_refused(tmp_path: Path) -> None:
    path = save(Image.new("F", (4, 4), 0.5), tmp_path / "a.tiff")
    assert "32-bit pixels (mode F)" in failure(path)


def test_an_image_of_absurd_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(Image.fromarray(GREY), tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    assert failure(path).startswith("too large")
