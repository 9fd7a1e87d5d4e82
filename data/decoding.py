"""Decode image files to RGB arrays: formats and limits, decoders, EXIF orientation, sizes.

A JPEG can be decoded by a library other than Pillow. All of them are libjpeg-turbo with the inverse
DCT and the chroma upsampling that Pillow asks it for, so they give Pillow's pixels. A library is
loaded when it is first called: none is needed. Nothing here loads torch otherwise.
"""

import io
import stat
import struct
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, features

from common.errors import InputError

__all__ = [
    "DECODERS",
    "decode_image",
    "describe_decoder",
    "installed_decoders",
    "resolve_decoder",
]

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""What data sets hold. Pillow knows dozens more, some of which call other programs."""

MAX_SIDE = 65_535
"""JPEG's own. In a few bytes a BMP can claim a line of pixels that takes seconds to fill."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
"""What files of these formats are called, in lower case."""

MAX_PIXELS = 178_956_970
"""512 MiB of RGB, where Pillow draws its line too; the largest cameras have 150 million pixels."""

DAMAGE = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    struct.error,
)


def decode_image(
    path: Path,
    *,
    decoder: str = "pillow",
    apply_exif_orientation: bool = False,
    annotated_size: tuple[int, int] | None = None,
    note_doubt: Callable[[str], None] = lambda doubt: None,
    note_orientation: Callable[[int, bool], None] | None = None,
) -> NDArray[np.uint8]:
    """Read an image file as RGB, uint8 `[H, W, 3]`.

    Grey is repeated, 16 bits are scaled to 8, alpha is dropped, CMYK is converted without a
    colour profile, and of an animation the first frame is taken: what `PIL.Image.convert("RGB")`
    does, except for 16-bit grey, which that clips to white.

    `decoder` is what `resolve_decoder` gave. One other than `pillow` takes RGB and grey JPEGs;
    Pillow takes the rest and whatever the decoder finds fault with. So every decoder gives the
    same pixels, and the same files are refused in the same words.

    `apply_exif_orientation` turns a photo as its EXIF orientation says, for display.

    With `annotated_size`, (height, width), a photo is turned if its annotations fit only then:
    labelling tools annotate photos as displayed, COCO and OpenImages as stored. Where the size
    cannot tell (a square photo, one turned by 180° or only mirrored) it is read as stored, as
    MLPerf's reference and pycocotools do.

    `note_doubt` is told in one line what the decoder found fault with in a JPEG that Pillow then
    read without a word, as it does where the middle of the data is damaged: parts may be grey.
    `note_orientation` is called for a photo with an EXIF orientation other than 1, with it and
    whether `annotated_size` had the photo turned.

    Raises InputError naming the file if it is missing, truncated, none of `FORMATS`, or declares
    more than `MAX_PIXELS` or `MAX_SIDE`; the last before a pixel is decoded.
    """
    try:
        # Pillow warns of broken EXIF and of large sizes, once for each file: those are read.
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe might never end, or never begin
            raise OSError("it is no file")
        with warnings.catch_warnings(action="ignore"), path.open("rb") as file:
            return _decode(
                file,
                decoder=decoder,
                apply_exif_orientation=apply_exif_orientation,
                annotated_size=annotated_size,
                note_doubt=note_doubt,
                note_orientation=note_orientation,
            )
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such image file; check the folder of images") from error
    except Image.UnidentifiedImageError as error:
        raise InputError(
            f"{path}: not an image in {', '.join(FORMATS)}; convert, replace or remove it"
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: too large: {_one_line(error)}; shrink or remove it") from error
    except DAMAGE as error:
        raise InputError(
            f"{path}: damaged image: {_one_line(error)}; replace or remove it"
        ) from error


def _decode(
    file: BinaryIO,
    *,
    decoder: str,
    apply_exif_orientation: bool,
    annotated_size: tuple[int, int] | None,
    note_doubt: Callable[[str], None],
    note_orientation: Callable[[int, bool], None] | None,
) -> NDArray[np.uint8]:
    # Opening reads format, mode and size from the header (0.03 ms), whoever then decodes.
    with Image.open(file, formats=FORMATS) as image:
        size, size_text = image.width * image.height, f"{image.width}×{image.height} pixels"
        if size > MAX_PIXELS:  # Pillow has its own limit, which one may lift
            raise Image.DecompressionBombError(
                f"{size_text} exceed the limit of {MAX_PIXELS} pixels"
            )
        if max(image.size) > MAX_SIDE:
            raise Image.DecompressionBombError(f"{size_text}; a side of {MAX_SIDE} is the limit")
        if apply_exif_orientation:
            return to_rgb(ImageOps.exif_transpose(image))
        pixels = _stored_pixels(image, file, decoder=decoder, note_doubt=note_doubt)
        is_turned = annotated_size is not None and is_quarter_turn(
            (pixels.shape[0], pixels.shape[1]), annotated_size
        )
        if not is_turned and note_orientation is None:
            return pixels  # nearly always: nobody needs to read EXIF
        orientation = exif_orientation(image)
        is_turned = is_turned and orientation in QUARTER_TURNS
        if note_orientation is not None and orientation != AS_STORED:
            note_orientation(orientation, is_turned)
        return turn(pixels, orientation) if is_turned else pixels


def _stored_pixels(
    image: Image.Image, file: BinaryIO, *, decoder: str, note_doubt: Callable[[str], None]
) -> NDArray[np.uint8]:
    is_plain_jpeg = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L")
    if not is_plain_jpeg or decoder == "pillow":
        return to_rgb(image)
    file.seek(0)
    try:
        return JPEG_DECODERS[decoder](file.read())
    except JPEG_ERRORS as error:  # Pillow will refuse it, if it finds fault too
        doubt = _one_line(error)
    pixels = to_rgb(image)
    note_doubt(doubt)
    return pixels


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


DECODERS = ("simplejpeg", "torchvision", "pillow", "accimage")
"""The fastest first, as measured on photos (`python -m data bench`); `auto` takes the first that
works. accimage is last: it pulls the pixels apart into planes, which are wanted together again."""

HOW_TO_INSTALL = {
    "simplejpeg": "run `.venv/bin/pip install simplejpeg`",
    "torchvision": "install the release made for this torch",
    "accimage": "pip has none; its source (0.2.0) must be compiled, against Intel's IPP",
}


def installed_decoders() -> list[str]:
    """Return the names of the decoders that work here, the fastest first."""
    return [name for name in DECODERS if fault_of(name) is None]


def resolve_decoder(name: str) -> str:
    """Return the decoder that `data.decoder` means: itself; for `auto` the fastest that works.

    Raises:
        InputError: It is not known, not installed, or does not work.
    """
    if name == "auto":
        return next(decoder for decoder in DECODERS if fault_of(decoder) is None)
    if name not in DECODERS:
        raise InputError(
            f"data.decoder: {name} is not known; take auto, {', '.join(DECODERS[:-1])} "
            f"or {DECODERS[-1]}"
        )
    fault = fault_of(name)
    if fault is not None:
        raise InputError(f"data.decoder: {name} {fault}; or take auto")
    return name


def fault_of(name: str) -> str | None:
    """Return why a decoder of `DECODERS` cannot be used here, and what to do; None if it can."""
    if name == "pillow":
        return None
    if find_spec(name) is None:
        return f"is not installed: {HOW_TO_INSTALL[name]}"
    try:
        # An installed library may still lack its compiled part. Decoding would then always fall
        # back on Pillow, and nobody would know.
        JPEG_DECODERS[name](smallest_jpeg())
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"is installed and does not work: {reason}; install it anew"
    return None


def smallest_jpeg() -> bytes:
    """Return a black square of 8 by 8 pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="JPEG")
    return buffer.getvalue()


def describe_decoder(name: str) -> str:
    """Return a decoder with its version, such as `simplejpeg 1.9.0` or `pillow-simd 12.1.1 (SIMD)`.

    `pillow` is whichever of Pillow and Pillow-SIMD is in place.
    """
    if name != "pillow":
        return f"{name} {version(name)}"
    library = f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    if is_pillow_simd():
        return f"pillow-simd {PIL.__version__} (SIMD, {library})"
    return f"pillow {PIL.__version__} ({library})"


def is_pillow_simd() -> bool:
    """Return whether Pillow-SIMD is in Pillow's place, as `make simd` puts it."""
    try:
        return version("pillow-simd") == PIL.__version__
    except PackageNotFoundError:
        return False


def decode_by_simplejpeg(content: bytes) -> NDArray[np.uint8]:
    """Decode a baseline or progressive JPEG, RGB or grey, to uint8 `[H, W, 3]`.

    Raises:
        ValueError: It is none, is truncated, or holds anything that libjpeg warns of.
    """
    simplejpeg = import_module("simplejpeg")
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        content, colorspace="RGB", fastdct=False, fastupsample=False, strict=True
    )
    return pixels


def decode_by_torchvision(content: bytes) -> NDArray[np.uint8]:
    """Decode a baseline or progressive JPEG, RGB or grey, to uint8 `[H, W, 3]`.

    Raises:
        RuntimeError: It is none, or it is truncated.
    """
    torch, io = import_module("torch"), import_module("torchvision.io")
    encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB)  # [3, H, W], channels last in memory
    pixels: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels)


def decode_by_accimage(content: bytes) -> NDArray[np.uint8]:
    """Decode a baseline or progressive JPEG, RGB or grey, to uint8 `[H, W, 3]`.

    Raises:
        ValueError: It is truncated, which accimage itself would fill up with grey.
        OSError: It is no JPEG.
    """
    if not has_end_of_image(content):
        raise ValueError("the JPEG has no end")
    image = import_module("accimage").Image(content)
    planes = np.empty((image.channels, image.height, image.width), dtype=np.uint8)
    image.copyto(planes)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
"""JPEG's markers; compressed data hold no such pair of bytes."""


def has_end_of_image(content: bytes) -> bool:
    """Return whether a JPEG's end marker follows its last scan: thumbnails have one too."""
    return content.rfind(END_OF_IMAGE) > content.rfind(START_OF_SCAN)


JPEG_DECODERS: dict[str, Callable[[bytes], NDArray[np.uint8]]] = {
    "simplejpeg": decode_by_simplejpeg,
    "torchvision": decode_by_torchvision,
    "accimage": decode_by_accimage,
}

JPEG_ERRORS = (ValueError, RuntimeError, OSError)
"""What they raise where they find fault with the data."""


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return an image's pixels, uint8 `[H, W, 3]`.

    Raises:
        ValueError: Its pixels have 32 bits.
        OSError, SyntaxError, EOFError, struct.error: The file that it was opened from is damaged.
    """
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image).astype(np.uint32)
        grey = ((pixels * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        # The range of 32-bit pixels is anyone's guess; Pillow's own conversion clips at 255.
        raise ValueError(f"32-bit pixels (mode {image.mode}) where 8 or 16 bits are expected")
    if image.mode in ("P", "PA", "RGBa", "La"):
        # By way of RGBA: a palette may have its transparency per entry, and the modes with
        # premultiplied alpha have no direct conversion.
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    return np.array(image.convert("RGB"))


AS_STORED = 1
QUARTER_TURNS = (5, 6, 7, 8)
"""Orientations that exchange width and height; 5 and 7 are mirrored as well."""


def exif_orientation(image: Image.Image) -> int:
    """Return an opened image's EXIF orientation, 1 to 8; 1 where there is none that makes sense.

    A PNG's pixels may be read for it. Pillow turns TIFFs itself, so theirs is 1.
    """
    if image.format == "TIFF":
        return AS_STORED
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, AS_STORED)
    except Exception:  # EXIF is often broken, in ways of which Pillow expects some only
        return AS_STORED
    return orientation if orientation in range(1, 9) else AS_STORED


def turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return the pixels [H, W, 3] as displayed, given one of `QUARTER_TURNS`: [W, H, 3]."""
    transposed = pixels.transpose(1, 0, 2)
    flips = {5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}
    down, right = flips[orientation]
    return np.ascontiguousarray(transposed[::down, ::right])


def is_resized_copy(decoded: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether two sizes (height, width) have one shape, but for a pixel of rounding.

    Boxes can be scaled from one to the other. With another shape (a turned photo, another picture)
    they would be nonsense.
    """
    excess = abs(decoded[0] * annotated[1] - decoded[1] * annotated[0])
    return excess <= max(annotated)


def is_quarter_turn(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image only once it is turned by 90°, by (height, width)."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return annotated != stored
    return not is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)


def fits_both_ways(stored: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether annotations fit an image as well turned by 90° as not turned."""
    turned = stored[::-1]
    if annotated in (stored, turned):
        return stored == turned
    return is_resized_copy(stored, annotated) and is_resized_copy(turned, annotated)
