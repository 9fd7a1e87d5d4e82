"""Recipes of `retinanet data bench`: decoders, the whole pipeline, loaders, and MLPerf's recipe.

`decode` turns files into uint8 arrays, `resize` also makes squares of them. `pipeline` is all of
ours: training samples, joined into a uint8 batch, normalized as one. `loader` has batches from
worker processes, as training gets them: on all cores, not yet normalized. `mlperf` is what MLPerf's
reference does: Pillow decodes, torchvision makes floats of it, half of the pictures are mirrored,
each is normalized at its own size as `(image - mean) / std` and resized as float, and they are
joined (torchvision's detection presets and GeneralizedRCNNTransform, which the reference uses).

In all of them, `photos` is the file that lists the photos.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import hflip, to_tensor

from common.walk import real_path
from data.annotations import Annotations, ClassMap, TrainingRules
from data.dataset import DetectionDataset, SampleKey, collate
from data.decoding import decode_image, open_image
from data.loader import evaluation_loader
from data.packed import open_image_file
from data.transforms import IMAGENET_MEAN, IMAGENET_STD, normalize, resize_image
from profiling.bench.data_bench import read_list
from profiling.bench.variant import Prepared, Workload

BOXES_PER_PHOTO = 7  # The mean of COCO


def on_one_core(photos: str) -> list[Path]:
    """Return the photos of a list, to be read by a single thread on the last of the allowed cores.

    The last, because a machine's first core answers most of its interrupts.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    return read_list(photos)


def prepare_decode(workload: Workload, *, photos: str, decoder: str) -> Prepared:
    """Prepare the decoding of JPEG files to uint8 arrays."""
    paths = on_one_core(photos)

    def run() -> None:
        for path in paths:
            decode_image(path, decoder=decoder)

    return Prepared(run)


def prepare_resize(workload: Workload, *, photos: str, decoder: str) -> Prepared:
    """Prepare decoding followed by a resize to squares."""
    paths, size = on_one_core(photos), (workload.image_size, workload.image_size)

    def run() -> None:
        for path in paths:
            resize_image(decode_image(path, decoder=decoder), size)

    return Prepared(run)


class Stopwatch:
    """Seconds by stage, summed over all laps since it was made."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap, or since the start, to a stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def prepare_pipeline(
    workload: Workload, *, photos: str, decoder: str, batch_size: str, augmentation: str = "flip"
) -> Prepared:
    """Prepare training samples, joined and normalized. The details are seconds of each stage."""
    dataset = photo_dataset(
        on_one_core(photos),
        image_size=workload.image_size,
        decoder=decoder,
        augmentation=augmentation,
    )
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
    """Return a batch as the model takes it, float32 `[N, 3, S, S]`."""
    samples = [dataset[key] for key in keys]
    stopwatch.lap("decode, resize, augment")
    batch = collate(samples)
    stopwatch.lap("collate")
    images = normalize(batch.images)
    stopwatch.lap("normalize")
    return images


def photo_dataset(
    photos: Sequence[Path], *, image_size: int, decoder: str, augmentation: str = "flip"
) -> DetectionDataset:
    """Return photos as a training split with boxes at random places, as many as COCO's have."""
    sizes = []
    for photo in photos:
        with open_image_file(photo) as file, open_image(file) as image:
            sizes.append(image.size)
    count = len(photos)
    widths, heights = np.array(sizes, dtype=np.int32).T
    boxes = BOXES_PER_PHOTO * count
    corners = np.sort(np.random.default_rng(0).random((boxes, 2, 2)), axis=1)
    corners *= np.repeat(np.array(sizes), BOXES_PER_PHOTO, axis=0)[:, None]
    annotations = Annotations(
        category_ids=np.array([1]),
        category_names=["thing"],
        image_ids=np.arange(count),
        # The data set joins its folder and these names: with the folder `/`, photos may
        # lie anywhere.
        file_names=[str(real_path(photo).relative_to("/")) for photo in photos],
        widths=widths,
        heights=heights,
        is_displayed=np.zeros(count, dtype=np.bool_),
        box_offsets=np.arange(0, boxes + 1, BOXES_PER_PHOTO, dtype=np.int64),
        boxes=corners.reshape(boxes, 4),
        box_category_ids=np.ones(boxes, dtype=np.int64),
        box_is_crowd=np.zeros(boxes, dtype=np.bool_),
        box_areas=(corners[:, 1] - corners[:, 0]).prod(axis=1),
        box_ids=np.arange(boxes),
    )
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    return DetectionDataset(
        annotations,
        Path("/"),
        classes,
        TrainingRules(
            image_size=image_size,
            augmentation=(augmentation,),
            skip_images_without_boxes=True,
            decoder=decoder,
        ),
        train=True,
    )


def prepare_loader(
    workload: Workload, *, photos: str, decoder: str, batch_size: str, workers: str
) -> Prepared:
    """Prepare a loader with a number of worker processes."""
    dataset = photo_dataset(read_list(photos), image_size=workload.image_size, decoder=decoder)
    loader = evaluation_loader(dataset, batch_size=int(batch_size), workers=int(workers))
    # Starting processes is not part of a run's time.
    loader.start_workers()
    return Prepared(lambda: {"images": sum(len(batch.images) for batch in loader)})


def prepare_mlperf(workload: Workload, *, photos: str, batch_size: str) -> Prepared:
    """Prepare MLPerf's recipe. The details are seconds of each stage."""
    paths = on_one_core(photos)
    side, size = workload.image_size, int(batch_size)

    def run() -> dict[str, float]:
        stopwatch = Stopwatch()
        for start in range(0, len(paths), size):
            batch = paths[start : start + size]
            make_mlperf_batch(batch, first_seed=start, image_size=side, stopwatch=stopwatch)
        return stopwatch.seconds

    return Prepared(run)


def make_mlperf_batch(
    paths: Sequence[Path], *, first_seed: int, image_size: int, stopwatch: Stopwatch
) -> Tensor:
    """Return a batch as the model takes it, float32 `[N, 3, S, S]`.

    Consecutive seeds mirror the same pictures as those of `data.dataset.SampleKey` do.
    """
    mean = torch.tensor(IMAGENET_MEAN)[:, None, None]
    std = torch.tensor(IMAGENET_STD)[:, None, None]
    images = []
    for seed, path in enumerate(paths, start=first_seed):
        with open_image_file(path) as file, Image.open(file) as image_file:
            picture = image_file.convert("RGB")
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
