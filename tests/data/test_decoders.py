"""Selection of the decoder, and comparison of every decoder with Pillow."""

import importlib
import io
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from common.errors import InputError
from data.decoding import (
    JPEG_DECODERS,
    decode_image,
    decoder_fault,
    describe_decoder,
    installed_decoders,
    resolve_decoder,
)


def refusal(name: str) -> str:
    with pytest.raises(InputError) as caught:
        resolve_decoder(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # Python's own sign for: not to be found


def test_auto_selects_the_fastest_installed_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_decoder("auto") == "simplejpeg"
    hide(monkeypatch, "simplejpeg")
    assert resolve_decoder("auto") == "torchvision"
    hide(monkeypatch, "torchvision")
    assert resolve_decoder("auto") == "pillow"


def test_installed_decoders_are_listed_fastest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "accimage")
    assert installed_decoders() == ["simplejpeg", "torchvision", "pillow"]


@pytest.mark.parametrize("name", ["simplejpeg", "torchvision", "accimage"])
def test_missing_decoder_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, name)
    assert refusal(name).startswith(f"data.decoder: {name} is not installed: ")
    assert "auto" in refusal(name)


def test_unknown_decoder_is_refused() -> None:
    assert refusal("opencv").startswith("data.decoder: opencv ")


@pytest.mark.parametrize("code", ["raise ImportError('no libippi')", "Image = None", ""])
def test_decoder_without_its_compiled_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Without the error, Pillow would silently decode every image."""
    (tmp_path / "accimage.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    hide(monkeypatch, "accimage")  # monkeypatch then removes the module imported here
    monkeypatch.delitem(sys.modules, "accimage")
    importlib.invalidate_caches()
    assert (decoder_fault("accimage") or "").startswith("is installed but does not work")
    assert refusal("accimage").startswith("data.decoder: accimage is installed but does not work")
    assert "accimage" not in installed_decoders()


def test_decoders_are_described_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_decoder("simplejpeg").startswith("simplejpeg 1.")
    assert describe_decoder("torchvision").startswith("torchvision 0.")
    pillow = describe_decoder("pillow")
    assert PIL.__version__ in pillow and "libjpeg-turbo" in pillow
    # Pillow-SIMD's package is called so, and its versions end in .post0.
    assert pillow.startswith("pillow-simd ") == (".post" in PIL.__version__)
    monkeypatch.setattr("data.decoding.version", lambda name: PIL.__version__)
    assert describe_decoder("pillow").startswith(f"pillow-simd {PIL.__version__} (SIMD")


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
    """Return smooth colours with some noise: its JPEG has all frequencies."""
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
    """Return the pixels, or the error message."""
    try:
        return decode_image(path, decoder=decoder).tolist()
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_pillows(decoder: str, kind: str) -> None:
    content = jpeg(**KINDS[kind])
    pixels = JPEG_DECODERS[decoder](content)
    assert pixels.dtype == np.uint8 and pixels.shape == (61, 83, 3)
    assert pixels.flags.writeable and pixels.flags.c_contiguous  # torch.from_numpy wants both
    assert pixels.tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (16, 16)])
def test_any_image_size(decoder: str, size: tuple[int, int]) -> None:
    content = jpeg(picture(*size))
    assert JPEG_DECODERS[decoder](content).tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
def test_grey_jpeg(decoder: str) -> None:
    content = jpeg(picture().convert("L"))
    assert JPEG_DECODERS[decoder](content).tolist() == by_pillow(content)


@pytest.mark.parametrize("decoder", OTHERS)
def test_intact_jpeg_is_not_decoded_by_pillow(
    tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, jpeg())
    monkeypatch.delattr("data.decoding.to_rgb")
    assert decode_image(path, decoder=decoder).shape == (61, 83, 3)
    with pytest.raises(NameError):
        decode_image(path, decoder="pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_cmyk_is_decoded_by_pillow(tmp_path: Path, decoder: str) -> None:
    path = written(tmp_path, jpeg(picture().convert("CMYK")))
    assert outcome(path, decoder) == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_other_formats_are_decoded_by_pillow_whatever_the_suffix(
    tmp_path: Path, decoder: str, suffix: str
) -> None:
    buffer = io.BytesIO()
    picture().save(buffer, format=suffix)
    path = written(tmp_path, buffer.getvalue())
    pixels = outcome(path, decoder)
    assert isinstance(pixels, list) and pixels == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_first_picture_of_a_multi_picture_jpeg(tmp_path: Path, decoder: str) -> None:
    path = tmp_path / "a.jpg"
    second = Image.new("RGB", (8, 8), (0, 0, 250))
    picture().save(path, format="MPO", save_all=True, append_images=[second])
    assert outcome(path, decoder) == outcome(path, "pillow")
    assert decode_image(path, decoder=decoder).shape == (61, 83, 3)


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99, -10, -1])
def test_truncated_jpeg_is_refused_with_pillows_message(
    tmp_path: Path, decoder: str, options: dict[str, Any], share: float
) -> None:
    content = jpeg(**options)
    end = int(share * len(content)) if share > 0 else int(share)
    path = written(tmp_path, content[:end])
    refusal = outcome(path, decoder)
    assert isinstance(refusal, str) and refusal.startswith(f"{path}: damaged image: ")
    assert refusal == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0", b"<html></html>"])
def test_other_content_is_refused_with_pillows_message(
    tmp_path: Path, decoder: str, content: bytes
) -> None:
    path = written(tmp_path, content)
    refusal = outcome(path, decoder)
    assert isinstance(refusal, str) and refusal == outcome(path, "pillow")


@pytest.mark.parametrize("decoder", OTHERS)
def test_damage_that_pillow_tolerates_gives_pillows_pixels(tmp_path: Path, decoder: str) -> None:
    content = jpeg(picture(100, 150))
    middle = len(content) // 2
    damaged = {
        "garbage after its end": content + b"garbage" * 30,
        "other bytes in its middle": content[:middle] + bytes(range(40)) + content[middle + 40 :],
        "its end too early": content[:middle] + b"\xff\xd9",
    }
    for what, damaged_content in damaged.items():
        path = written(tmp_path, damaged_content)
        pixels = outcome(path, decoder)
        assert isinstance(pixels, list), what
        assert pixels == outcome(path, "pillow"), what


class AccimageStandIn:
    """Behaves like accimage 0.2.0, by its source: an image of a JPEG's bytes, which it copies
    into planes, and fills with grey where the JPEG ends too early.
    """

    def __init__(self, content: bytes) -> None:
        self._pixels = import_module("simplejpeg").decode_jpeg(content, strict=False)
        self.height, self.width, self.channels = self._pixels.shape

    def copyto(self, buffer: np.ndarray) -> None:
        assert buffer.shape == (self.channels, self.height, self.width)
        buffer[:] = self._pixels.transpose(2, 0, 1)


def test_accimage_planes_are_interleaved_and_truncation_refused(
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
