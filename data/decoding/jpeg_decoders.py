"""JPEG data to RGB arrays, faster than Pillow: one function for each library.

All of them are libjpeg-turbo with the inverse DCT and the chroma upsampling that Pillow asks it
for, so they give Pillow's pixels. Libraries are loaded when first called: none must be installed.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np
from numpy.typing import NDArray


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
    planes = io.decode_jpeg(encoded, mode=io.ImageReadMode.RGB)  # [3, H, W] over interleaved memory
    pixels: NDArray[np.uint8] = planes.permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels)


JPEG_DECODERS: dict[str, Callable[[bytes], NDArray[np.uint8]]] = {
    "simplejpeg": decode_by_simplejpeg,
    "torchvision": decode_by_torchvision,
}
