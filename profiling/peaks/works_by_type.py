"""What is timed for the peak of each type of number, sized for the number of threads."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from profiling.peaks.works import (
    Work,
    channels_last,
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


def byte_product(size: int) -> Work:
    """u8 · s8, scaled to u8: oneDNN's matmul as quantized models call it."""
    quantized = quantized_operators()
    packed = quantized.linear_prepack(weights(size, size), None)
    inputs = activations(torch.rand(size, size))
    return Work(2 * size**3 / 1e9, lambda: quantized.linear(inputs, packed, 0.1, 0))


def byte_convolution(images: int) -> Work:
    """u8 · s8 with u8 out, 3x3: the convolution of quantized models."""
    quantized = quantized_operators()
    packed = quantized.conv2d_prepack(
        weights(CHANNELS, CHANNELS, 3, 3), None, [1, 1], [1, 1], [1, 1], 1
    )
    maps = activations(channels_last(images, CHANNELS, LARGE, torch.float32))
    gflop = convolution_gflop(images, (CHANNELS, CHANNELS), LARGE)
    return Work(gflop, lambda: quantized.conv2d(maps, packed, 0.1, 0))


def quantized_operators() -> "torch._ops._OpNamespace":
    """torch's, done by oneDNN.

    Raises:
        RuntimeError: This torch has none.
    """
    torch.backends.quantized.engine = "onednn"
    return torch.ops.quantized


def weights(*shape: int) -> Tensor:
    """Random signed weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer releases of torch plan to move quantized tensors
        return torch.quantize_per_tensor(torch.randn(shape), 0.02, 0, torch.qint8)


def activations(values: Tensor) -> Tensor:
    """Values as unsigned bytes, in the same layout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(values, 0.01, 0, torch.quint8)
