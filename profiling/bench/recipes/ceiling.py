"""What the machine can do: the network's large convolutions alone, and a matrix product."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.torchvision_model import step_gflop
from profiling.bench.workload import Workload

MATRIX_SIZE = 4096
REPETITIONS = 3
CHANNELS = 256
ANCHORS = 9


def prepare(workload: Workload) -> Prepared:
    """Each in BF16, convolutions in channels_last, forward and backward to their input.

    A run's details are GFLOP/s by name; the facts hold `step_gflop`.
    """
    side = workload.image_size // 8
    shapes = {
        f"tower 3x3 256→256 at {side}x{side}": (CHANNELS, side),
        f"tower 3x3 256→256 at {side // 2}x{side // 2}": (CHANNELS, side // 2),
        f"logits 3x3 256→{ANCHORS * workload.classes} at {side}x{side}": (
            ANCHORS * workload.classes,
            side,
        ),
    }
    works: dict[str, tuple[float, Callable[[], object]]] = {
        f"matrix product {MATRIX_SIZE}³": _matrix_product()
    }
    for name, (channels_out, size) in shapes.items():
        forward, backward = _convolution(workload.images, channels_out, size)
        works[f"{name}, forward"] = forward
        works[f"{name}, backward data"] = backward

    def run() -> dict[str, float]:
        return {name: gflop / _seconds(work) for name, (gflop, work) in works.items()}

    return Prepared(run, {"step_gflop": step_gflop(workload)})


def _seconds(work: Callable[[], object]) -> float:
    """Median of a few repetitions."""
    seconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _matrix_product() -> tuple[float, Callable[[], object]]:
    """10⁹ operations, and what does them."""
    left, right = (torch.randn(MATRIX_SIZE, MATRIX_SIZE).bfloat16() for _ in range(2))
    return 2 * MATRIX_SIZE**3 / 1e9, lambda: left @ right


def _convolution(
    images: int, channels_out: int, size: int
) -> tuple[tuple[float, Callable[[], object]], tuple[float, Callable[[], object]]]:
    """A 3x3 convolution of `size` x `size` maps: 10⁹ operations and call, forward and backward."""
    gflop = 2 * images * size * size * channels_out * CHANNELS * 9 / 1e9
    maps = _channels_last(images, CHANNELS, size)
    gradient = _channels_last(images, channels_out, size)
    weight = _channels_last(channels_out, CHANNELS, 3)

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

    return (gflop, forward), (gflop, backward)


def _channels_last(images: int, channels: int, size: int) -> Tensor:
    return (
        torch.randn(images, channels, size, size)
        .bfloat16()
        .contiguous(memory_format=torch.channels_last)
    )
