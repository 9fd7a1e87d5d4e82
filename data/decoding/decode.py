"""An image file to an RGB array: what is opened, how large it may be, and how it is refused."""

import stat
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.decoding.jpeg_decoders import JPEG_DECODERS, JPEG_ERRORS
from data.decoding.orientation import AS_STORED, QUARTER_TURNS, exif_orientation, turn
from data.decoding.pillow_decoder import to_rgb
from data.sizes import is_quarter_turn
from retinanet.errors import InputError

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
        size, found = image.width * image.height, f"{image.width}×{image.height} pixels"
        if size > MAX_PIXELS:  # Pillow has its own limit, which one may lift
            raise Image.DecompressionBombError(f"{found} exceed the limit of {MAX_PIXELS} pixels")
        if max(image.size) > MAX_SIDE:
            raise Image.DecompressionBombError(f"{found}; a side of {MAX_SIDE} is the limit")
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
