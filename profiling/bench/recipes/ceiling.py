"""What the machine can do: the network's large convolutions alone, and a matrix product."""

import torch

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.torchvision_model import step_gflop
from profiling.bench.workload import Workload
from profiling.peaks.median_seconds import median_seconds
from profiling.peaks.works import convolution, matrix_product

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
    works = {f"matrix product {MATRIX_SIZE}³": matrix_product(MATRIX_SIZE, torch.bfloat16)}
    for name, (channels_out, size) in shapes.items():
        forward, backward = convolution(
            workload.images, (CHANNELS, channels_out), size, torch.bfloat16
        )
        works[f"{name}, forward"] = forward
        works[f"{name}, backward data"] = backward

    def run() -> dict[str, float]:
        return {
            name: work.gflop / median_seconds(work.call, repetitions=REPETITIONS)
            for name, work in works.items()
        }

    return Prepared(run, {"step_gflop": step_gflop(workload)})
