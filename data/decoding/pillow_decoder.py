"""Pillow's images to RGB, whatever their mode."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """An image's pixels, uint8 `[H, W, 3]`.

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
