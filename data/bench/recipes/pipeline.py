"""The whole of ours: training samples, joined into a uint8 batch, normalized as one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data.annotations import Annotations
from data.bench.one_core import keep_to_one_core
from data.bench.photos import read_list
from data.bench.stopwatch import Stopwatch
from data.classes import ClassMap
from data.dataset import DetectionDataset, SampleKey, collate
from data.transforms import normalize
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload


def prepare(workload: Workload, *, photos: str, decoder: str, batch_size: str) -> Prepared:
    """`photos`: the file that lists them. The details are seconds of each stage."""
    keep_to_one_core()
    torch.set_num_threads(1)
    dataset = photo_dataset(read_list(photos), image_size=workload.image_size, decoder=decoder)
    keys = [SampleKey(index, seed=index) for index in range(len(dataset))]
    size = int(batch_size)

    def run() -> dict[str, float]:
        stopwatch = Stopwatch()
        for start in range(0, len(keys), size):
            make_batch(dataset, keys[start : start + size], stopwatch=stopwatch)
        return stopwatch.seconds

    return Prepared(run)


def make_batch(
    dataset: DetectionDataset, keys: Sequence[SampleKey], *, stopwatch: Stopwatch
) -> Tensor:
    """A batch as the model takes it, float32 `[N, 3, S, S]`."""
    samples = [dataset[key] for key in keys]
    stopwatch.lap("decode, resize, mirror")
    batch = collate(samples)
    stopwatch.lap("collate")
    images = normalize(batch.images)
    stopwatch.lap("normalize")
    return images


def photo_dataset(photos: Sequence[Path], *, image_size: int, decoder: str) -> DetectionDataset:
    """Photos as a training split without boxes, which take next to no time."""
    sizes = []
    for photo in photos:
        with Image.open(photo) as image:
            sizes.append(image.size)
    count = len(photos)
    annotations = Annotations(
        category_ids=np.array([1]),
        category_names=["thing"],
        image_ids=np.arange(count),
        file_names=[str(photo.resolve().relative_to("/")) for photo in photos],
        widths=np.array([width for width, _ in sizes], dtype=np.int32),
        heights=np.array([height for _, height in sizes], dtype=np.int32),
        box_offsets=np.zeros(count + 1, dtype=np.int64),
        boxes=np.zeros((0, 4)),
        box_category_ids=np.zeros(0, dtype=np.int64),
        box_is_crowd=np.zeros(0, dtype=np.bool_),
        box_areas=np.zeros(0),
        box_ids=np.zeros(0, dtype=np.int64),
    )
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    return DetectionDataset(
        annotations, Path("/"), classes, image_size=image_size, train=True, decoder=decoder
    )
