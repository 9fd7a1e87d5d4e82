"""Image files to RGB arrays, whatever their mode."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from retinanet.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""What data sets hold. Pillow knows dozens more, some of which call other programs."""

DECODING_ERRORS = (
    OSError,
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)


def decode_image(path: Path, *, apply_exif_orientation: bool = False) -> NDArray[np.uint8]:
    """Read an image file as RGB, uint8 `[H, W, 3]`.

    Grey is repeated, 16 bits are scaled to 8, alpha is dropped, CMYK is converted without a
    colour profile, and of an animation the first frame is taken: what `PIL.Image.convert("RGB")`
    does, except for 16-bit grey, which that clips to white.

    `apply_exif_orientation` turns a photo as its camera was held. Training leaves it off, since
    annotations count pixels as they are stored (so does the MLPerf reference).

    Raises InputError naming the file if it is missing, truncated, or none of `FORMATS`.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            upright = ImageOps.exif_transpose(image) if apply_exif_orientation else image
            return _to_rgb(upright)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such image file; check the folder of images") from error
    except Image.UnidentifiedImageError as error:
        raise InputError(
            f"{path}: not an image in {', '.join(FORMATS)}; convert, replace or remove it"
        ) from error
    except DECODING_ERRORS as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged image: {reason}; replace or remove it") from error


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
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
