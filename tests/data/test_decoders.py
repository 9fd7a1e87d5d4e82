"""Selection of the decoder, and comparison of every decoder with Pillow."""

import importlib
import io
import itertools
import sys
from pathlib import Path
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
from tests.support.commands import error_message


def refusal(name: str) -> str:
    return error_message(resolve_decoder, name)


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # Python's own sign for: not to be found


def test_auto_selects_the_fastest_installed_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "accimage")
    assert installed_decoders() == ["simplejpeg", "torchvision", "pillow"]
    for fastest in ("simplejpeg", "torchvision"):
        assert resolve_decoder("auto") == fastest
        hide(monkeypatch, fastest)
    assert resolve_decoder("auto") == "pillow"
    for name in ("simplejpeg", "torchvision", "accimage"):
        assert refusal(name).startswith(f"data.decoder: {name} is not installed: ")
        assert "auto" in refusal(name)
    assert refusal("opencv").startswith("data.decoder: opencv ")


@pytest.mark.parametrize("code", ["raise ImportError('no libjpeg')", "decode_jpeg = None", ""])
def test_decoder_without_its_compiled_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Without the error, Pillow would silently decode every image."""
    (tmp_path / "simplejpeg.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    hide(monkeypatch, "simplejpeg")  # monkeypatch then removes the module imported here
    monkeypatch.delitem(sys.modules, "simplejpeg")
    importlib.invalidate_caches()
    assert (decoder_fault("simplejpeg") or "").startswith("is installed but does not work")
    fault = "data.decoder: simplejpeg is installed but does not work"
    assert refusal("simplejpeg").startswith(fault)
    hide(monkeypatch, "accimage")
    assert installed_decoders() == ["torchvision", "pillow"]


def test_decoders_are_described_with_their_versions() -> None:
    assert describe_decoder("simplejpeg").startswith("simplejpeg 1.")
    assert describe_decoder("torchvision").startswith("torchvision 0.")
    pillow = describe_decoder("pillow")
    assert pillow.startswith(f"pillow {PIL.__version__}") and "libjpeg-turbo" in pillow


@pytest.mark.accimage
def test_accimage_is_described_with_its_version() -> None:
    assert describe_decoder("accimage").startswith("accimage 0.")


OTHERS = ["simplejpeg", "torchvision", pytest.param("accimage", marks=pytest.mark.accimage)]

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


def outcome(path: Path, decoder: str) -> object:
    """Return the pixels, or the error message."""
    try:
        return decode_image(path, decoder=decoder).tolist()
    except InputError as error:
        return str(error)


SIZES = [(1, 1), (7, 300), (16, 16)]
CONTENTS = {
    **{kind: jpeg(**options) for kind, options in KINDS.items()},
    **{f"size {size}": jpeg(picture(*size)) for size in SIZES},
    "grey": jpeg(picture().convert("L")),
}


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_pixels_equal_pillows(
    tmp_path: Path, decoder: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = JPEG_DECODERS[decoder](content)
    assert pixels.dtype == np.uint8 and pixels.tolist() == by_pillow(content)
    assert pixels.flags.writeable and pixels.flags.c_contiguous  # torch.from_numpy wants both
    monkeypatch.delattr("data.decoding.to_rgb")  # an intact JPEG is not decoded by Pillow
    (tmp_path / "a.jpg").write_bytes(content)
    assert outcome(tmp_path / "a.jpg", decoder) == pixels.tolist()
    with pytest.raises(NameError):
        decode_image(tmp_path / "a.jpg", decoder="pillow")


def in_format(form: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture().convert(mode).save(buffer, format=form, **options)
    return buffer.getvalue()


SECOND = Image.new("RGB", (8, 8), (0, 0, 250))
BASELINE, PROGRESSIVE, LARGE = jpeg(), jpeg(progressive=True), jpeg(picture(100, 150))
MIDDLE = len(LARGE) // 2
DECODED = {
    "CMYK": in_format("JPEG", "CMYK"),
    "png": in_format("PNG"),
    "gif": in_format("GIF"),
    "first of two pictures": in_format("MPO", save_all=True, append_images=[SECOND]),
    "garbage after its end": LARGE + b"garbage" * 30,
    "other bytes in its middle": LARGE[:MIDDLE] + bytes(range(40)) + LARGE[MIDDLE + 40 :],
    "its end too early": LARGE[:MIDDLE] + b"\xff\xd9",
}
TRUNCATED = [
    content[: int(share * len(content)) if share > 0 else int(share)]
    for content in (BASELINE, PROGRESSIVE)
    for share in (0.1, 0.5, 0.99, -10, -1)
]
OTHER = [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0", b"<html></html>"]


@pytest.mark.parametrize("decoder", OTHERS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, None) for content in DECODED.values()),
        *((content, "damaged image: ") for content in TRUNCATED),
        *((content, "") for content in OTHER),
    ],
    ids=itertools.count(),
)
def test_other_or_damaged_file_is_read_as_by_pillow(
    tmp_path: Path, decoder: str, content: bytes, reason: str | None
) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    result = outcome(path, decoder)
    assert result == outcome(path, "pillow")
    if reason is None:
        assert isinstance(result, list)
    else:
        assert isinstance(result, str) and result.startswith(f"{path}: {reason}")
