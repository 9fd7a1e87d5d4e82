"""An image file to an RGB array: what is opened, how large it may be, and how it is refused."""

import io
import struct
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from data.decoding.jpeg_decoders import JPEG_DECODERS
from data.decoding.pillow_decoder import to_rgb
from retinanet.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""What data sets hold. Pillow knows dozens more, some of which call other programs."""

MAX_PIXELS = 178_956_970
"""512 MiB of RGB, where Pillow too draws the line; the largest cameras have 150 million pixels."""

DECODING_ERRORS = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    struct.error,
)


def decode_image(
    path: Path, *, decoder: str = "pillow", apply_exif_orientation: bool = False
) -> NDArray[np.uint8]:
    """Read an image file as RGB, uint8 `[H, W, 3]`.

    Grey is repeated, 16 bits are scaled to 8, alpha is dropped, CMYK is converted without a
    colour profile, and of an animation the first frame is taken: what `PIL.Image.convert("RGB")`
    does, except for 16-bit grey, which that clips to white.

    `decoder` is `pillow`, or what `resolve_decoder` gave: it takes RGB and grey JPEGs, and Pillow
    takes the rest and whatever the decoder finds fault with, so that the same files are refused
    in the same words with every decoder.

    `apply_exif_orientation` turns a photo as its camera was held. Training leaves it off, since
    annotations count pixels as they are stored (so does the MLPerf reference).

    Raises InputError naming the file if it is missing, truncated, none of `FORMATS`, or declares
    more than `MAX_PIXELS`; the last before any pixel is decoded.
    """
    try:
        # Pillow warns of broken EXIF and of sizes below our limit, once for each file.
        with warnings.catch_warnings(action="ignore"):
            return _decode(path, decoder=decoder, apply_exif_orientation=apply_exif_orientation)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such image file; check the folder of images") from error
    except Image.UnidentifiedImageError as error:
        raise InputError(
            f"{path}: not an image in {', '.join(FORMATS)}; convert, replace or remove it"
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: too large: {_one_line(error)}; shrink or remove it") from error
    except DECODING_ERRORS as error:
        reason = _one_line(error)
        raise InputError(f"{path}: damaged image: {reason}; replace or remove it") from error


def _decode(path: Path, *, decoder: str, apply_exif_orientation: bool) -> NDArray[np.uint8]:
    content = path.read_bytes()
    # Opening reads the header only, in 0.03 ms: format, size and mode, whoever decodes.
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            found = f"{image.width}×{image.height} pixels"
            raise Image.DecompressionBombError(f"{found} exceed the limit of {MAX_PIXELS}")
        if apply_exif_orientation:
            return to_rgb(ImageOps.exif_transpose(image))
        if decoder != "pillow" and image.mode in ("RGB", "L") and image.format in ("JPEG", "MPO"):
            try:
                return JPEG_DECODERS[decoder](content)
            except (ValueError, RuntimeError, OSError):
                pass  # Pillow knows better, or says what is wrong
        return to_rgb(image)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
