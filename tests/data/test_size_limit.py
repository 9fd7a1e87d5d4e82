"""Pictures that declare more pixels than memory has room for, or many."""

import io
import struct
import warnings
import zlib
from pathlib import Path

import pytest
from PIL import Image

from common.errors import InputError
from data.decoding import DECODERS, MAX_PIXELS, decode_image


def content_of(suffix: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48)).save(buffer, format=suffix)
    return buffer.getvalue()


def declaring(suffix: str, side: int) -> bytes:
    """A small picture whose header says that it is `side` pixels wide and high."""
    content = bytearray(content_of(suffix))
    at, kind = {
        "jpeg": (content.find(b"\xff\xc0") + 5, ">HH"),
        "png": (16, ">II"),
        "bmp": (18, "<ii"),
        "gif": (6, "<HH"),
    }[suffix]
    struct.pack_into(kind, content, at, side, side)
    if suffix == "png":
        struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    return bytes(content)


def refusal(path: Path, decoder: str) -> str:
    with pytest.raises(InputError) as caught:
        decode_image(path, decoder=decoder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", ["jpeg", "png", "bmp", "gif"])
def test_a_declared_size_above_the_limit_is_refused_before_decoding(
    tmp_path: Path, decoder: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(declaring(suffix, 60_000))
    for decoding in ("to_rgb", "JPEG_DECODERS"):
        monkeypatch.delattr(f"data.decoding.{decoding}")
    message = refusal(path, decoder)
    assert message.startswith(f"{path}: too large: ")
    assert str(60_000**2) in message and str(MAX_PIXELS) in message
    assert message.endswith("; shrink or remove it")


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_limit_holds_where_pillows_was_lifted(
    tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.delattr("data.decoding.JPEG_DECODERS")
    path = tmp_path / "a.jpg"
    path.write_bytes(declaring("jpeg", 13_378))  # 13 377² is within the limit
    message = refusal(path, decoder)
    assert f"13378×13378 pixels exceed the limit of {MAX_PIXELS}" in message


def test_a_large_picture_within_the_limit_is_read_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content_of("png"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)  # Pillow warns from there on
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Image.DecompressionBombWarning):
            Image.open(path)
        assert decode_image(path).shape == (48, 64, 3)
