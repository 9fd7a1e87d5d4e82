"""The EXIF orientation of photos: how the stored pixels are to be turned for display."""

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

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
