"""Decode image files to RGB arrays: formats and limits, decoders, EXIF orientation, sizes.

A JPEG can be decoded by a library other than Pillow. All of them are libjpeg-turbo with Pillow's
inverse DCT and chroma upsampling, so they give Pillow's pixels. A library is loaded at its first
call: none is required. Nothing here loads torch otherwise.
"""

import io
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, features

from common.errors import InputError
from common.machine import installed_versions
from data.annotations import Annotations, image_path
from data.packed import missing_fix, open_image_file

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""The formats of data sets. Pillow reads dozens more, some of which call other programs."""
ISO_MEDIA = "HEIC, AVIF or another file of ISO media"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
MAX_SIDE = 65_535
"""JPEG's own. In a few bytes a BMP can claim a line of pixels that takes seconds to fill."""
MAX_PIXELS = 178_956_970
"""512 MiB of RGB, which is Pillow's limit too; the largest cameras have 150 million pixels."""
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error)
"""Errors that Pillow raises for a damaged file; SyntaxError is a broken PNG."""

DECODERS = ("simplejpeg", "torchvision", "pillow", "accimage")
"""The fastest first, as measured on photos (`retinanet data bench`); `auto` takes the first that
works, so never accimage, whose planes must be interleaved."""
HOW_TO_INSTALL = {
    "simplejpeg": "run `.venv/bin/pip install simplejpeg`",
    "torchvision": "install the release made for this torch",
    "accimage": "it is not on PyPI; docs/packages.md has the commands",
}
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
"""JPEG's markers; compressed data hold no such pair of bytes."""

DARKEST_RANGE = 16
"""Of 8 bits: all that 12 bits in 16 reach."""
AS_STORED = 1
QUARTER_TURNS = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height; 5 and 7 are mirrored as well."""


@dataclass
class Notes:
    """What is odd about an image file that can be decoded."""

    doubt: str = ""  # the fault of a JPEG that only the decoder found: parts may be grey
    is_dark: bool = False  # it has 16 bits, of which at most the lower 12 are used
    orientation: int = AS_STORED  # EXIF's
    is_turned: bool = False  # whether the pixels were turned by it


def decode_image(
    path: Path,
    *,
    decoder: str = "pillow",
    apply_exif_orientation: bool = False,
    annotated_size: tuple[int, int] | None = None,
    is_displayed: bool = False,
    notes: Notes | None = None,
) -> NDArray[np.uint8]:
    """Read an image file as RGB, uint8 `[H, W, 3]`.

    Grey is repeated, 16 bits are scaled to 8, alpha is dropped, CMYK is converted without a
    colour profile, and of an animation the first frame is taken: what `PIL.Image.convert("RGB")`
    does, except for 16-bit grey, which that clips to white.

    A `decoder` other than `pillow` decodes RGB and grey JPEGs; Pillow decodes all other files and
    those in which the decoder finds a fault. So every decoder gives the same pixels and errors.

    `apply_exif_orientation` rotates a photo by its EXIF orientation, for display.
    With `annotated_size`, (height, width), a photo is turned if its annotations fit only then:
    labelling tools annotate photos as displayed, COCO and OpenImages as stored. If the size
    does not show it (a square photo, one turned by 180° or only mirrored) it is read as stored, as
    MLPerf's reference and pycocotools do, unless `is_displayed`: the annotations are known to be
    of the displayed photo.

    `notes` gets what is odd about the file.

    Raises InputError naming the file if it is missing, truncated, none of `FORMATS`, or declares
    more than `MAX_PIXELS` or `MAX_SIDE`; the last before a pixel is decoded.
    """
    with (
        or_faulty(str(path)),
        open_image_file(path) as file,
        open_image(file) as image,
    ):
        if apply_exif_orientation:
            return to_rgb(ImageOps.exif_transpose(image))
        has_16_bits = ";16" in str(getattr(image, "tile", ""))  # read before it is loaded
        pixels, doubt = _stored_pixels(image, file, decoder=decoder)
        is_turned = annotated_size is not None and is_quarter_turn(
            (pixels.shape[0], pixels.shape[1]), annotated_size
        )
        if not (is_turned or is_displayed or notes):
            return pixels  # nearly always: EXIF is not needed
        orientation = exif_orientation(image)
        is_turned = is_displayed or (is_turned and orientation in QUARTER_TURNS)
        if notes:
            notes.doubt, notes.orientation, notes.is_turned = doubt, orientation, is_turned
            notes.is_dark = bool(has_16_bits and pixels.max() <= DARKEST_RANGE)
        return turn(pixels, orientation) if is_turned else pixels


@contextmanager
def or_faulty(name: str) -> Iterator[None]:
    """Turn the errors of Pillow about an image into InputError: its name, and why.

    Its warnings of broken EXIF and of large sizes, one for each file, are not shown.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except InputError:  # of an index of packed images
        raise
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise InputError(f"{name}: {describe_fault(error)}") from error


def decode_bytes(content: bytes) -> NDArray[np.uint8]:
    """Read the content of an image file for display, by Pillow; otherwise like `decode_image`."""
    with or_faulty(f"{len(content):,} bytes"), open_image(io.BytesIO(content)) as image:
        return to_rgb(ImageOps.exif_transpose(image))


def describe_fault(error: Exception) -> str:
    """Return why an image file cannot be read, and the fix, in a line without its path.

    `error` is one of `DAMAGE`, or Pillow's `DecompressionBombError`.
    """
    if isinstance(error, FileNotFoundError):
        return f"no such image file; {missing_fix(Path(error.filename or ''))}"
    if isinstance(error, OSError) and error.strerror:  # the system's, not Pillow's
        return f"cannot be read: {error.strerror}"
    # Pillow's message of this error ends with the Python object that was read.
    if isinstance(error, Image.UnidentifiedImageError):
        found = f", but {ISO_MEDIA}" if ISO_MEDIA in error.args else ""
        return f"not an image in {', '.join(FORMATS)}{found}; convert, replace or remove it"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: {_one_line(error)}; shrink or remove it"
    return f"damaged image: {_one_line(error)}; replace or remove it"


def decode_annotated(
    annotations: Annotations, folder: Path, row: int, *, decoder: str = "pillow"
) -> NDArray[np.uint8]:
    """Read an image of annotations as training sees it: `decode_image`, with what they say."""
    return decode_image(
        image_path(folder, annotations.file_names[row]),
        decoder=decoder,
        annotated_size=annotations.image_size(row),
        is_displayed=bool(annotations.is_displayed[row]),
    )


def image_fault(path: Path) -> str | None:
    """Return why a file is no image by its header, as `describe_fault`; None for an image.

    Raises InputError if it cannot be read.
    """
    try:
        with warnings.catch_warnings(action="ignore"), open_image_file(path) as file:
            open_image(file)
    except (*DAMAGE, Image.DecompressionBombError) as error:
        fault = describe_fault(error)
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path}: {fault}") from error
        return fault
    return None


def open_image(file: BinaryIO) -> Image.Image:
    """Read an image's format, mode and size from its header (0.03 ms), and check its size."""
    head = file.read(8)
    file.seek(0)
    if head[4:] == b"ftyp":  # a phone's photo, often under the name of a JPEG
        raise Image.UnidentifiedImageError(ISO_MEDIA)
    image = Image.open(file, formats=FORMATS)
    if fault := size_fault(image.width, image.height):  # Pillow's limit can be changed elsewhere
        raise Image.DecompressionBombError(fault)
    return image


def read_photo(path: Path) -> tuple[tuple[int, int], int]:
    """Return an image's stored size (width, height) and its EXIF orientation, by its header.

    Raises InputError if it is no image, or cannot be read.
    """
    with or_faulty(str(path)), open_image_file(path) as file:
        image = open_image(file)
        return image.size, exif_orientation(image)


def displayed_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return the size at which a photo of a stored size is displayed."""
    return size[::-1] if orientation in QUARTER_TURNS else size


def size_fault(width: int, height: int) -> str | None:
    """Return why pixels are too many to be read, or None."""
    text = f"{width}×{height} pixels"
    if width * height > MAX_PIXELS:
        return f"{text} exceed the limit of {MAX_PIXELS} pixels"
    return f"{text}; a side of {MAX_SIDE} is the limit" if max(width, height) > MAX_SIDE else None


def _stored_pixels(
    image: Image.Image, file: BinaryIO, *, decoder: str
) -> tuple[NDArray[np.uint8], str]:
    """Return the pixels, and the fault of a JPEG that only the decoder finds."""
    # MPO is Pillow's name for a JPEG with further pictures behind it, which many phones write.
    is_plain_jpeg = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L")
    if not is_plain_jpeg or decoder == "pillow":
        return to_rgb(image), ""
    file.seek(0)
    try:
        return JPEG_DECODERS[decoder](file.read()), ""
    except (ValueError, RuntimeError, OSError) as error:  # Pillow refuses it, if it is damaged
        return to_rgb(image), _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def installed_decoders() -> list[str]:
    """Return the names of the decoders that work here, the fastest first."""
    return [name for name in DECODERS if decoder_fault(name) is None]


def resolve_decoder(name: str) -> str:
    """Return the decoder, for `auto` the fastest available; raise InputError if there is none."""
    if name == "auto":
        return next(decoder for decoder in DECODERS if decoder_fault(decoder) is None)
    if name not in DECODERS:
        raise InputError(
            f"data.decoder: {name} is unknown; use auto, {', '.join(DECODERS[:-1])} "
            f"or {DECODERS[-1]}"
        )
    fault = decoder_fault(name)
    if fault is not None:
        raise InputError(f"data.decoder: {name} {fault}; or use auto")
    return name


def decoder_fault(name: str) -> str | None:
    """Return why a decoder of `DECODERS` cannot be used here, and what to do; None if it can."""
    if name == "pillow":
        return None
    if find_spec(name) is None:
        return f"is not installed: {HOW_TO_INSTALL[name]}"
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="JPEG")
    try:
        # An installed library may still lack its compiled part. Decoding would then always fall
        # back on Pillow, without a message.
        JPEG_DECODERS[name](buffer.getvalue())
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"is installed but does not work: {reason}; reinstall it"
    return None


def describe_decoder(name: str) -> str:
    """Return a decoder with its version, such as `simplejpeg 1.9.0`."""
    if name != "pillow":
        return f"{name} {version(name)}"
    library = f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    [(package, number)] = installed_versions([name]).items()  # or Pillow-SIMD in its place
    return f"{package} {number} ({library})"


# The decoders: a baseline or progressive JPEG, RGB or grey, to uint8 `[H, W, 3]`.


def decode_by_simplejpeg(content: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG; raise ValueError if it is none, truncated, or libjpeg warns of anything."""
    simplejpeg = import_module("simplejpeg")
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        content, colorspace="RGB", fastdct=False, fastupsample=False, strict=True
    )
    return pixels


def decode_by_torchvision(content: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG; raise RuntimeError if it is none, or truncated."""
    torch, io = import_module("torch"), import_module("torchvision.io")
    # A bytearray, since torch warns of a buffer that cannot be written, as bytes are.
    encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB)  # [3, H, W], channels last in memory
    pixels: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels)


def decode_by_accimage(content: bytes) -> NDArray[np.uint8]:
    """Decode a JPEG; raise OSError if it is none, ValueError if truncated (else it is grey)."""
    if not has_end_of_image(content):
        raise ValueError("the JPEG has no end marker")
    image = import_module("accimage").Image(content)
    planes = np.empty((image.channels, image.height, image.width), dtype=np.uint8)
    image.copyto(planes)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


JPEG_DECODERS: dict[str, Callable[[bytes], NDArray[np.uint8]]] = {
    "simplejpeg": decode_by_simplejpeg,
    "torchvision": decode_by_torchvision,
    "accimage": decode_by_accimage,
}


def has_end_of_image(content: bytes) -> bool:
    """Return whether a JPEG's end marker follows its last scan: thumbnails have one too."""
    return content.rfind(END_OF_IMAGE) > content.rfind(START_OF_SCAN)


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return an image's pixels, uint8 `[H, W, 3]`; raise ValueError if they have 32 bits."""
    if image.mode.startswith("I;16"):
        # 65,535 × 255 needs more than 16 bits. Adding 32,767 rounds to the nearest level.
        pixels = np.asarray(image).astype(np.uint32)
        grey = ((pixels * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        # The range of 32-bit pixels is unknown; Pillow's own conversion clips at 255.
        raise ValueError(f"32-bit pixels (mode {image.mode}) where 8 or 16 bits are expected")
    if image.mode in ("P", "PA", "RGBa", "La"):
        # By way of RGBA: a palette may have its transparency per entry, and the modes with
        # premultiplied alpha have no direct conversion.
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    # A copy: np.asarray of an image is read-only, and torch.from_numpy warns of that.
    return np.array(image.convert("RGB"))


def exif_orientation(image: Image.Image) -> int:
    """Return an opened image's EXIF orientation, 1 to 8; 1 where there is none that makes sense."""
    if image.format == "TIFF":  # Pillow turns these itself
        return AS_STORED
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, AS_STORED)
    except Exception:  # EXIF is often broken, in ways of which Pillow expects some only
        return AS_STORED
    return orientation if orientation in range(1, 9) else AS_STORED


def turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return the pixels [H, W, 3] as displayed; by one of `QUARTER_TURNS` they are [W, H, 3]."""
    if orientation in QUARTER_TURNS:
        pixels = pixels.transpose(1, 0, 2)
    # 1 and 5 are that alone; the others also reverse the columns, both, or the rows.
    flips = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1)}
    down, right = flips[(orientation - 1) % 4 + 1]
    return np.ascontiguousarray(pixels[::down, ::right])


def is_resized_copy(decoded: tuple[int, int], annotated: tuple[int, int]) -> bool:
    """Return whether two (height, width) have one shape, so that boxes can be scaled."""
    # A copy's sides are rounded by half a pixel at most, so the cross products differ by at most
    # (width + height) / 2. They are integers, while quotients of sides would be rounded.
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
