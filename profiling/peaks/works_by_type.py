"""What is timed for the peak of each type of number, sized for the number of threads."""

from collections.abc import Callable

import torch
from torch import Tensor

from profiling.peaks.works import (
    Work,
    convolution,
    convolution_gflop,
    matrix_product,
)

FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CHANNELS = 256
LARGE, SMALL = 100, 50
"""Sides of maps: P3's and P4's of images of 800x800."""
SMALL_OUT = 720
LEAST_IMAGES = 2
PROBE_SIZE = 512
"""A product that is done soon even where the type is emulated number by number, and that takes
longer than a busy machine may keep one of the threads waiting."""


def probe(type_name: str) -> Work:
    """A small matrix product, which shows whether the type is worth more time.

    Raises:
        RuntimeError: torch cannot multiply it here.
    """
    return products(type_name, PROBE_SIZE)


def works_of(type_name: str, *, threads: int) -> dict[str, Work]:
    """Everything that is timed for one type, by what it is.

    Raises:
        RuntimeError: torch cannot do it here.
    """
    size, images = matrix_size(threads), max(LEAST_IMAGES, threads)
    works = {f"matrix product {size}³": products(type_name, size)}
    if type_name in FLOATS:
        works |= convolutions(FLOATS[type_name], images)
    if type_name == "u8":
        name = f"3x3 {CHANNELS}→{CHANNELS} at {LARGE}x{LARGE}, forward"
        works[name] = byte_convolution(images)
    return works


def products(type_name: str, size: int) -> Work:
    """A square matrix product in the type."""
    makers: dict[str, Callable[[int], Work]] = {"s8": signed_product, "u8": byte_product}
    if type_name in makers:
        return makers[type_name](size)
    return matrix_product(size, FLOATS[type_name])


def matrix_size(threads: int) -> int:
    """A multiple of 512 with about 9 · 10⁹ operations or more for each thread."""
    least: float = 2048 * (threads / 2) ** (1 / 3)
    return max(2048, -(-round(least) // 512) * 512)


def convolutions(dtype: torch.dtype, images: int) -> dict[str, Work]:
    """RetinaNet's largest kinds of convolution."""
    works = {}
    for channels_out, side in ((CHANNELS, LARGE), (SMALL_OUT, SMALL)):
        forward, backward = convolution(images, (CHANNELS, channels_out), side, dtype)
        name = f"3x3 {CHANNELS}→{channels_out} at {side}x{side}"
        works[f"{name}, forward"] = forward
        works[f"{name}, backward data"] = backward
    return works


def signed_product(size: int) -> Work:
    """s8 · s8, summed in s32."""
    left, right = (torch.randint(-127, 127, (size, size), dtype=torch.int8) for _ in range(2))
    return Work(2 * size**3 / 1e9, lambda: torch._int_mm(left, right))


# Of plain bytes, scales beside them: torch is about to give up tensors of quantized types.
def byte_product(size: int) -> Work:
    """u8 · s8, scaled to u8: oneDNN's matmul as quantized models call it."""
    onednn = torch.ops.onednn
    inputs = random_bytes(size, size, dtype=torch.uint8)
    packed = onednn.qlinear_prepack(random_bytes(size, size, dtype=torch.int8), [size, size])
    scale, zero = torch.tensor([0.02]), torch.tensor([0], dtype=torch.int32)

    def multiply() -> Tensor:
        return onednn.qlinear_pointwise(
            *(inputs, 0.01, 0, packed, scale, zero, None, 0.1, 0, torch.uint8, "none", [], "")
        )

    return Work(2 * size**3 / 1e9, multiply)


def byte_convolution(images: int) -> Work:
    """u8 · s8 with u8 out, 3x3: the convolution of quantized models."""
    onednn = torch.ops.onednn
    maps = random_bytes(images, CHANNELS, LARGE, LARGE, dtype=torch.uint8)
    maps = maps.to(memory_format=torch.channels_last)
    weights = random_bytes(CHANNELS, CHANNELS, 3, 3, dtype=torch.int8)
    scale, zero = torch.tensor([0.02]), torch.tensor([0], dtype=torch.int32)
    geometry = ([1, 1], [1, 1], [1, 1], 1)  # stride, padding, dilation, groups
    packed = onednn.qconv_prepack(weights, scale, 0.01, 0, *geometry, list(maps.shape))

    def convolve() -> Tensor:
        return onednn.qconv_pointwise(
            *(maps, 0.01, 0, packed, scale, zero, None, *geometry),
            *(0.1, 0, torch.uint8, "none", [], ""),
        )

    return Work(convolution_gflop(images, (CHANNELS, CHANNELS), LARGE), convolve)


def random_bytes(*shape: int, dtype: torch.dtype) -> Tensor:
    """All values of the type are as likely."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.randint(least, most + 1, shape, dtype=dtype)
