"""What MLPerf's reference does: float pictures, normalized and resized one by one.

Pillow decodes, torchvision makes floats of it, half of the pictures are mirrored, each is
normalized at its own size as `(image - mean) / std` and resized as float, and they are joined
(torchvision's detection presets and GeneralizedRCNNTransform, which the reference has taken over).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import hflip, to_tensor

from data.bench.one_core import keep_to_one_core
from data.bench.photos import read_list
from data.bench.stopwatch import Stopwatch
from data.transforms import IMAGENET_MEAN, IMAGENET_STD
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload


def prepare(workload: Workload, *, photos: str, batch_size: str) -> Prepared:
    """`photos`: the file that lists them. The details are seconds of each stage."""
    keep_to_one_core()
    torch.set_num_threads(1)
    paths = read_list(photos)
    size = int(batch_size)

    def run() -> dict[str, float]:
        stopwatch = Stopwatch()
        for start in range(0, len(paths), size):
            seeds = range(start, min(start + size, len(paths)))
            make_batch(
                [paths[seed] for seed in seeds],
                seeds=seeds,
                image_size=workload.image_size,
                stopwatch=stopwatch,
            )
        return stopwatch.seconds

    return Prepared(run)


def make_batch(
    paths: Sequence[Path], *, seeds: Sequence[int], image_size: int, stopwatch: Stopwatch
) -> Tensor:
    """A batch as the model takes it, float32 `[N, 3, S, S]`.

    Seeds mirror the same pictures as those of `data.dataset.SampleKey` do.
    """
    mean, std = (
        torch.tensor(IMAGENET_MEAN)[:, None, None],
        torch.tensor(IMAGENET_STD)[:, None, None],
    )
    images = []
    for path, seed in zip(paths, seeds, strict=True):
        with Image.open(path) as file:
            picture = file.convert("RGB")
        stopwatch.lap("decode")
        image = to_tensor(picture)
        stopwatch.lap("to float")
        if np.random.default_rng(seed).random() < 0.5:
            image = hflip(image)
        stopwatch.lap("mirror")
        image = (image - mean) / std
        stopwatch.lap("normalize")
        side = (image_size, image_size)
        resized = F.interpolate(image[None], size=side, mode="bilinear", align_corners=False)
        images.append(resized[0])
        stopwatch.lap("resize")
    batch = torch.stack(images)
    stopwatch.lap("collate")
    return batch
