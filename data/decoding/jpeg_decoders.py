"""JPEG data to RGB arrays by libraries other than Pillow: one function for each.

All of them are libjpeg-turbo with the inverse DCT and the chroma upsampling that Pillow asks it
for, so they give Pillow's pixels. A library is loaded when it is first called: none is needed.
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
    """Whether a JPEG's end marker follows its last scan: a thumbnail in its header has one too."""
    return content.rfind(END_OF_IMAGE) > content.rfind(START_OF_SCAN)


JPEG_DECODERS: dict[str, Callable[[bytes], NDArray[np.uint8]]] = {
    "simplejpeg": decode_by_simplejpeg,
    "torchvision": decode_by_torchvision,
    "accimage": decode_by_accimage,
}

JPEG_ERRORS = (ValueError, RuntimeError, OSError)
"""What they raise where they find fault with the data."""
