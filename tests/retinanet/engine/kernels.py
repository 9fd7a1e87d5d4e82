"""Maps for tests of kernels, and comparisons with float64."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

BF16_ROUNDING = 2.0**-8
ZEROS, NAN = 0x00, 0xFF  # a byte of memory; float32 and BF16 of such bytes are 0 and NaN
M_PERTURB = -6  # /usr/include/malloc.h


@contextmanager
def new_memory(byte: int) -> Iterator[None]:
    """Let glibc fill what it allocates with a byte, also where it was used before and freed."""
    libc = ctypes.CDLL(None)
    # The value's lowest byte is what freed memory gets, its complement what new memory gets.
    assert libc.mallopt(M_PERTURB, byte ^ 0xFF | 0x100) == 1, "no glibc"
    try:
        assert set(torch.empty(4096, dtype=torch.uint8).tolist()) == {byte}, "another malloc"
        yield
    finally:
        libc.mallopt(M_PERTURB, 0)


def random_maps(*shape: int, seed: int = 0) -> Tensor:
    """Return BF16 maps [N, C, H, W] in channels_last memory, with NaN before and behind them."""
    images, channels, height, width = shape
    size = images * channels * height * width
    memory = torch.full((size + 4096,), torch.nan, dtype=torch.bfloat16)
    inside = memory[2048 : 2048 + size]
    inside.copy_(torch.randn(size, generator=torch.Generator().manual_seed(seed)))
    return inside.view(images, height, width, channels).permute(0, 3, 1, 2)


class Case(NamedTuple):
    """A convolution of some levels, for kernels of any kind."""

    images: int
    inputs: int
    outputs: int
    sizes: list[tuple[int, int]]
    threads: int = 2
    kernel: int = 3
    stride: int = 1

    def inputs_of_levels(self, seed: int = 0) -> list[Tensor]:
        return [random_maps(self.images, self.inputs, *size, seed=seed) for size in self.sizes]

    def outputs_of_levels(self, seed: int = 1) -> list[Tensor]:
        sizes = [(-(-h // self.stride), -(-w // self.stride)) for h, w in self.sizes]
        return [random_maps(self.images, self.outputs, *size, seed=seed) for size in sizes]

    def weight_and_bias(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2)
        shape = (self.outputs, self.inputs, self.kernel, self.kernel)
        weight = torch.randn(shape, generator=generator).bfloat16()
        return weight, torch.randn(self.outputs, generator=generator)


def distance(value: Tensor, reference: Tensor) -> float:
    """Return the norm of the difference over that of the reference."""
    return ((value.double() - reference).norm() / reference.norm().clamp(min=1e-30)).item()


def assert_rounded(actual: Tensor, expected: Tensor, *, absolute: float = 1e-4) -> None:
    """Assert BF16 maps of float32 sums; `absolute` is a share of the largest value."""
    assert actual.dtype == torch.bfloat16 and actual.shape == expected.shape
    assert actual.permute(0, 2, 3, 1).is_contiguous()
    allowed = BF16_ROUNDING * expected.abs() + absolute * expected.abs().max()
    assert bool(((actual.double() - expected).abs() <= allowed).all())


def assert_close_sums(
    actual: Sequence[Tensor], expected: Sequence[Tensor], *, allowed: float = 2e-6
) -> None:
    """Assert sums in float32: errors are a share of the largest value."""
    for value, reference in zip(actual, expected, strict=True):
        error = float((value - reference).detach().abs().max())
        assert error <= allowed * max(float(reference.detach().abs().max()), 1e-3)


def assert_equal(*results: Sequence[Tensor]) -> None:
    """Assert that all results are equal to the last bit."""
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other, strict=True))
