"""Work that only arithmetic limits: a matrix product and large 3x3 convolutions, in any type."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Work(NamedTuple):
    """Something to be timed."""

    gflop: float
    """10⁹ multiplications and additions."""
    call: Callable[[], object]


def matrix_product(size: int, dtype: torch.dtype) -> Work:
    """The product of two square matrices [size, size]."""
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    return Work(2 * size**3 / 1e9, lambda: left @ right)


def convolution(
    images: int, channels: tuple[int, int], size: int, dtype: torch.dtype
) -> tuple[Work, Work]:
    """A 3x3 convolution of maps [images, channels in, size, size], forward and to its input.

    `channels` are those in and out; everything is channels_last, and padding counts as work.
    """
    channels_in, channels_out = channels
    gflop = convolution_gflop(images, channels, size)
    maps = channels_last(images, channels_in, size, dtype)
    gradient = channels_last(images, channels_out, size, dtype)
    weight = channels_last(channels_out, channels_in, 3, dtype)

    def forward() -> Tensor:
        with torch.no_grad():
            return torch.conv2d(maps, weight, padding=1)

    def backward() -> Tensor:
        return torch.ops.aten.convolution_backward(
            gradient,
            maps,
            weight,
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
            [True, False, False],
        )[0]

    return Work(gflop, forward), Work(gflop, backward)


def convolution_gflop(images: int, channels: tuple[int, int], size: int) -> float:
    """Arithmetic of a 3x3 convolution that keeps the size of its maps. [10⁹]"""
    return 2 * images * size * size * channels[0] * channels[1] * 9 / 1e9


def channels_last(images: int, channels: int, size: int, dtype: torch.dtype) -> Tensor:
    """Random maps [images, channels, size, size] with the channels of a pixel side by side."""
    maps = torch.randn(images, channels, size, size).to(dtype)
    return maps.contiguous(memory_format=torch.channels_last)
