"""Measure the peaks on this process's threads. Loads torch.

Arithmetic limits a matrix product and large 3x3 convolutions, timed in each type of number and
sized for the number of threads. Memory limits copies of more than any cache holds. Times are
medians of a few repetitions.
"""

import re
import time
from collections.abc import Callable, Generator
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from common.machine import installed_versions

TYPES = ("f32", "bf16", "f16", "s8", "u8")  # By oneDNN's names
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ROUNDS = 2  # Their better median counts: another program may disturb one of them
WORK_REPETITIONS, REPETITIONS = 3, 5  # Calls of arithmetic, and of moving memory
PROBES = 3
PROBE_SIZE = 512
"""A product that is done soon even where the type is emulated number by number, and that takes
longer than a busy machine may keep one of the threads waiting."""
EMULATED = 1 / 8  # Share of float32's rate; a slower type is emulated
BUFFER_BYTES = 256 * 2**20  # Many times what the caches of most processors hold
CHANNELS, SMALL_OUT = 256, 720
LARGE, SMALL = 100, 50  # Sides of maps: P3's and P4's of images of 800x800
LEAST_IMAGES = 2

Rates = dict[str, dict[str, float]]


class Work(NamedTuple):
    """An operation to be timed."""

    gflop: float  # 10⁹ multiplications and additions
    call: Callable[[], object]


def prepare_works() -> tuple[dict[str, dict[str, Work]], dict[str, str]]:
    """Return the operations by type and name, and the skipped types with the reasons."""
    threads = torch.get_num_threads()
    # An emulated type would take long at full size, and its rate is no peak.
    slow = probed_rate("f32") * EMULATED
    left_out = {}
    works: dict[str, dict[str, Work]] = {}
    for name in TYPES:
        try:
            rate = probed_rate(name)
            if rate < slow:
                left_out[name] = f"emulated by this processor, {rate:.3g} GFLOP/s"
                continue
            works[name] = make_works(name, threads=threads)
        except RuntimeError as error:
            left_out[name] = f"not supported by torch: {str(error).splitlines()[0]}"
    return works, left_out


def probed_rate(type_name: str) -> float:
    """Return GFLOP/s of a small product; the best of a few, since a busy machine is not emulation.

    Raises:
        RuntimeError: torch cannot multiply the type here.
    """
    work = products(type_name, PROBE_SIZE)
    work.call()
    return work.gflop / min(median_seconds(work.call, repetitions=1) for _ in range(PROBES))


def measure_rates(
    works: dict[str, dict[str, Work]],
) -> Generator[dict[str, Any], None, Rates]:
    """Return GFLOP/s by type and operation; yield the percentage done, and the next step."""
    rates: Rates = {name: {} for name in works}
    # Rounds in turn: a short disturbance meets an operation in one of them only.
    plan = [(name, work) for _ in range(ROUNDS) for name in works for work in works[name]]
    for done, (type_name, name) in enumerate(plan):
        yield {"percent": 100 * done // len(plan), "next": f"{type_name}, {name}"}
        work = works[type_name][name]
        # Warm-up: creates the primitive and touches the memory.
        work.call()
        rate = work.gflop / median_seconds(work.call, repetitions=WORK_REPETITIONS)
        rates[type_name][name] = max(rate, rates[type_name].get(name, 0.0))
    return rates


def measure_bandwidths(*, buffer_bytes: int) -> dict[str, float]:
    """Return GB/s of each way to move memory, reading and writing counted."""
    rates: dict[str, float] = {}
    size = max(BUFFER_BYTES, buffer_bytes)
    for name, call in list(movers(size).items()) * ROUNDS:
        call()
        # Each byte is read once and written once.
        rate = 2 * size / median_seconds(call, repetitions=REPETITIONS) / 1e9
        rates[name] = max(rate, rates.get(name, 0.0))
    return rates


def versions() -> dict[str, str]:
    """Return the versions of torch and of the oneDNN that is built into it."""
    # torch still uses an old name of oneDNN here.
    onednn = re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())
    return installed_versions(["torch"]) | ({"oneDNN": onednn[1]} if onednn else {})


def movers(buffer_bytes: int = BUFFER_BYTES) -> dict[str, Callable[[], object]]:
    """Return ways to read `buffer_bytes` and write as many, by name, on all of torch's threads."""
    source = torch.ones(buffer_bytes // 4)
    target = torch.zeros_like(source)
    return {
        "copy": lambda: target.copy_(source),
        "scale in place": lambda: target.mul_(1.0),
    }


def make_works(type_name: str, *, threads: int) -> dict[str, Work]:
    """Return the timed operations of one type, by name.

    Raises:
        RuntimeError: torch cannot do it here.
    """
    # An image for each thread at least, so that all have work.
    size, images = matrix_size(threads), max(LEAST_IMAGES, threads)
    works = {f"matrix product {size}³": products(type_name, size)}
    # RetinaNet's largest kinds of convolution.
    if type_name in FLOATS:
        for channels_out, side in ((CHANNELS, LARGE), (SMALL_OUT, SMALL)):
            pair = convolution(images, (CHANNELS, channels_out), side, FLOATS[type_name])
            name = f"3x3 {CHANNELS}→{channels_out} at {side}x{side}"
            works[f"{name}, forward"], works[f"{name}, backward data"] = pair
    if type_name == "u8":
        name = f"3x3 {CHANNELS}→{CHANNELS} at {LARGE}x{LARGE}, forward"
        works[name] = byte_convolution(images)
    return works


def matrix_size(threads: int) -> int:
    """Return a multiple of 512 with about 9 · 10⁹ operations or more for each thread."""
    # The work grows with the cube of the size.
    least: float = 2048 * (threads / 2) ** (1 / 3)
    return max(2048, -(-round(least) // 512) * 512)


def products(type_name: str, size: int) -> Work:
    """Return a square matrix product in the type; of s8 · s8, it is summed in s32."""
    if type_name == "u8":
        return byte_product(size)
    if type_name != "s8":
        return matrix_product(size, FLOATS[type_name])
    left, right = (torch.randint(-127, 127, (size, size), dtype=torch.int8) for _ in range(2))
    return Work(2 * size**3 / 1e9, lambda: torch._int_mm(left, right))


def matrix_product(size: int, dtype: torch.dtype) -> Work:
    """Return the product of two square matrices [size, size]."""
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    return Work(2 * size**3 / 1e9, lambda: left @ right)


def convolution(
    images: int, channels: tuple[int, int], size: int, dtype: torch.dtype
) -> tuple[Work, Work]:
    """Return a 3x3 convolution of maps [images, channels in, size, size], forward and to its input.

    `channels` are those in and out; everything is channels_last, and padding counts as work.
    """

    def random_maps(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)

    channels_in, channels_out = channels
    gflop = convolution_gflop(images, channels, size)
    maps = random_maps(images, channels_in, size, size)
    gradient = random_maps(images, channels_out, size, size)
    weight = random_maps(channels_out, channels_in, 3, 3)

    def forward() -> Tensor:
        with torch.no_grad():
            return torch.conv2d(maps, weight, padding=1)

    def backward() -> Tensor:
        # Of the gradients to input, weight and bias, only the first is computed.
        ones, output_mask = [1, 1], [True, False, False]
        return torch.ops.aten.convolution_backward(
            gradient, maps, weight, None, ones, ones, ones, False, [0, 0], 1, output_mask
        )[0]

    return Work(gflop, forward), Work(gflop, backward)


def convolution_gflop(images: int, channels: tuple[int, int], size: int) -> float:
    """Return the arithmetic of a 3x3 convolution that keeps the size of its maps. [10⁹]"""
    return 2 * images * size * size * channels[0] * channels[1] * 9 / 1e9


# Plain bytes and separate scales, because torch is removing tensors of quantized types.
def byte_product(size: int) -> Work:
    """Return u8 · s8, scaled to u8: oneDNN's matmul as quantized models call it."""
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
    """Return u8 · s8 with u8 out, 3x3: the convolution of quantized models."""
    onednn = torch.ops.onednn
    maps = random_bytes(images, CHANNELS, LARGE, LARGE, dtype=torch.uint8)
    maps = maps.to(memory_format=torch.channels_last)
    weights = random_bytes(CHANNELS, CHANNELS, 3, 3, dtype=torch.int8)
    scale, zero = torch.tensor([0.02]), torch.tensor([0], dtype=torch.int32)
    # Stride, padding, dilation, groups.
    geometry = ([1, 1], [1, 1], [1, 1], 1)
    packed = onednn.qconv_prepack(weights, scale, 0.01, 0, *geometry, list(maps.shape))

    def convolve() -> Tensor:
        return onednn.qconv_pointwise(
            *(maps, 0.01, 0, packed, scale, zero, None, *geometry),
            *(0.1, 0, torch.uint8, "none", [], ""),
        )

    return Work(convolution_gflop(images, (CHANNELS, CHANNELS), LARGE), convolve)


def random_bytes(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a random tensor in which all values of the type are as likely."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.randint(least, most + 1, shape, dtype=dtype)


def median_seconds(call: Callable[[], object], *, repetitions: int) -> float:
    """Return the median of that many calls, one after the other. [seconds]"""
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
