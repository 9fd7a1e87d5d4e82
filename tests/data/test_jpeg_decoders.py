"""Every decoder against Pillow: the same pixels of the same files, the same words for the rest."""

import io
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from data.decoding import JPEG_DECODERS, decode_image, decoder_fault

OTHERS = ["simplejpeg", "torchvision"] + ["accimage"] * (decoder_fault("accimage") is None)
"""The first two are among the requirements; accimage takes part where somebody compiled it."""

KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "coded as RGB": {"keep_rgb": True},
    "restart markers": {"restart_marker_rows": 1},
    "low quality": {"quality": 5},
}


def picture(height: int = 61, width: int = 83) -> Image.Image:
    """Colours that change smoothly, with some noise: its JPEG has all frequencies."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(-20, 20, (height, width, 3))
    smooth = np.dstack([rows * 3, columns * 2, 255 - rows - columns])
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image or picture()).save(buffer, format="JPEG", **options)
    return buffer.getvalue()


def by_pillow(content: bytes) -> list[object]:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB")).tolist()


def written(folder: Path, content: bytes) -> Path:
    path = folder / "a.jpg"
    path.write_bytes(content)
    return path


def outcome(path: Path, decoder: str) -> object:
    """The pixels, or the words of the refusal."""
    try:
        return decode_image(path, decoder=decoder).tolist()
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_pillows(decoder: str, kind: str) -> None:
    content = jpeg(**KINDS[kind])
    pixels = JPEG_DECODERS[decoder](content)
    assert pixels.dtype == np.uint8 and pixels.shape == (61, 83, 3)
    assert pixels.flags.writeable and pixels.flags.c_contiguous  # torch.from_numpy wants both
    assert pixels.tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (16, 16)])
def test_any_size_is_decoded(decoder: str, size: tuple[int, int]) -> None:
    content = jpeg(picture(*size))
    assert JPEG_DECODERS[decoder](content).tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
def test_grey_is_repeated(decoder: str) -> None:
    content = jpeg(picture().convert("L"))
    assert JPEG_DECODERS[decoder](content).tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
def test_a_sound_photo_is_not_left_to_pillow(
    tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, jpeg())
    monkeypatch.delattr("data.decoding.to_rgb")
    assert decode_image(path, decoder=decoder).shape == (61, 83, 3)
    with pytest.raises(NameError):
        decode_image(path, decoder="pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_ink_is_left_to_pillow(tmp_path: Path, decoder: str) -> None:
    path = written(tmp_path, jpeg(picture().convert("CMYK")))
    assert outcome(path, decoder) == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "tiff", "gif"])
def test_other_formats_are_left_to_pillow_whatever_the_file_is_called(
    tmp_path: Path, decoder: str, suffix: str
) -> None:
    buffer = io.BytesIO()
    picture().save(buffer, format=suffix)
    path = written(tmp_path, buffer.getvalue())
    pixels = outcome(path, decoder)
    assert isinstance(pixels, list) and pixels == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_a_jpeg_by_another_name_is_decoded(tmp_path: Path, decoder: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(jpeg())
    assert outcome(path, decoder) == by_pillow(jpeg())


@pytest.mark.parametrize("decoder", OTHERS)
def test_a_phones_multi_picture_jpeg_gives_the_first(tmp_path: Path, decoder: str) -> None:
    path = tmp_path / "a.jpg"
    second = Image.new("RGB", (8, 8), (0, 0, 250))
    picture().save(path, format="MPO", save_all=True, append_images=[second])
    assert outcome(path, decoder) == outcome(path, "pillow")
    assert decode_image(path, decoder=decoder).shape == (61, 83, 3)


@pytest.mark.parametrize("decoder", OTHERS)
def test_exif_orientation_is_applied_only_on_request(tmp_path: Path, decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    path = written(tmp_path, jpeg(exif=exif))
    assert outcome(path, decoder) == by_pillow(jpeg())
    upright = decode_image(path, decoder=decoder, apply_exif_orientation=True)
    assert upright.tolist() == np.rot90(np.array(by_pillow(jpeg())), k=-1).tolist()


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.9, 0.99, -10, -2, -1])
def test_a_truncated_jpeg_is_refused_in_the_same_words(
    tmp_path: Path, decoder: str, options: dict[str, Any], kept: float
) -> None:
    content = jpeg(**options)
    end = int(kept * len(content)) if kept > 0 else int(kept)
    path = written(tmp_path, content[:end])
    refusal = outcome(path, decoder)
    assert isinstance(refusal, str) and refusal.startswith(f"{path}: damaged image: ")
    assert refusal == outcome(path, "pillow")


def test_a_thumbnail_does_not_hide_that_a_jpeg_is_truncated(tmp_path: Path) -> None:
    """Its end of image lies in the file, before the picture's own start."""
    exif = Image.Exif()
    exif[0x010E] = "a title"
    content = jpeg(exif=exif.tobytes() + jpeg(picture(8, 8)))
    assert content.count(b"\xff\xd9") == 2
    path = written(tmp_path, content[:-40])
    with pytest.raises(ValueError, match="no end"):
        JPEG_DECODERS["accimage"](path.read_bytes())


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0", b"<html></html>"])
def test_what_is_no_picture_is_refused_in_the_same_words(
    tmp_path: Path, decoder: str, content: bytes
) -> None:
    path = written(tmp_path, content)
    refusal = outcome(path, decoder)
    assert isinstance(refusal, str) and refusal == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_damage_that_pillow_reads_over_gives_pillows_pixels(tmp_path: Path, decoder: str) -> None:
    content = jpeg(picture(200, 300))
    middle = len(content) // 2
    damaged = {
        "garbage after its end": content + b"garbage" * 30,
        "other bytes in its middle": content[:middle] + bytes(range(40)) + content[middle + 40 :],
        "its end too early": content[:middle] + b"\xff\xd9",
    }
    for what, one in damaged.items():
        path = written(tmp_path, one)
        pixels = outcome(path, decoder)
        assert isinstance(pixels, list), what
        assert pixels == outcome(path, "pillow"), what


class AccimageStandIn:
    """What accimage 0.2.0 does, as its source says: an image of a JPEG's bytes, which it copies
    into planes, and fills with grey where the JPEG ends too early.
    """

    def __init__(self, content: bytes) -> None:
        self._pixels = import_module("simplejpeg").decode_jpeg(content, strict=False)
        self.height, self.width, self.channels = self._pixels.shape

    def copyto(self, buffer: np.ndarray) -> None:
        assert buffer.shape == (self.channels, self.height, self.width)
        buffer[:] = self._pixels.transpose(2, 0, 1)


def test_accimages_planes_become_pixels_and_its_grey_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("accimage")
    module.Image = AccimageStandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accimage", module)
    content = jpeg()
    pixels = JPEG_DECODERS["accimage"](content)
    assert pixels.flags.writeable and pixels.flags.c_contiguous
    assert pixels.tolist() == by_pillow(content)
    exif = Image.Exif()
    exif[0x010E] = "a title"
    with_thumbnail = jpeg(exif=exif.tobytes() + jpeg(picture(8, 8)))
    assert JPEG_DECODERS["accimage"](with_thumbnail).tolist() == by_pillow(content)
    assert AccimageStandIn(content[:-200]).height == 61
    with pytest.raises(ValueError, match="no end"):
        JPEG_DECODERS["accimage"](content[:-200])
