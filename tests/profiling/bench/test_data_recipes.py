"""That both pipelines make the same batch: else their speeds would not compare."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.dataset import SampleKey
from data.transforms import IMAGENET_STD
from profiling.bench.recipes import images
from profiling.bench.recipes.images import Stopwatch


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Four photos of different sizes and kinds, none of them like its mirror image."""
    paths = []
    for number, (height, width) in enumerate([(60, 90), (90, 60), (64, 64), (30, 120)]):
        rows, columns = np.mgrid[:height, :width]
        ramp = np.dstack([columns * 2, rows + columns, 255 - columns]).clip(0, 255)
        image = Image.fromarray(ramp.astype(np.uint8))
        path = tmp_path / f"{number}.jpg"
        (image.convert("L") if number == 2 else image).save(path)
        paths.append(path)
    return paths


@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "pillow"])
def test_both_make_the_same_batch_but_for_rounding_to_levels(
    photos: list[Path], decoder: str
) -> None:
    seeds = range(4)
    mirrored = [np.random.default_rng(seed).random() < 0.5 for seed in seeds]
    assert set(mirrored) == {True, False}
    dataset = images.photo_dataset(photos, image_size=96, decoder=decoder)
    keys = [SampleKey(index, seed=index) for index in seeds]
    ours = images.make_batch(dataset, keys, stopwatch=Stopwatch())
    theirs = images.make_mlperf_batch(photos, first_seed=0, image_size=96, stopwatch=Stopwatch())
    assert ours.shape == theirs.shape == (4, 3, 96, 96)
    assert ours.dtype == theirs.dtype == torch.float32
    level = 1 / (255 * min(IMAGENET_STD))
    assert (ours - theirs).abs().max() <= 1.5 * level


def test_the_stages_of_both_are_timed(photos: list[Path]) -> None:
    ours, theirs = Stopwatch(), Stopwatch()
    dataset = images.photo_dataset(photos, image_size=64, decoder="pillow")
    images.make_batch(dataset, [SampleKey(0, 0), SampleKey(1, 1)], stopwatch=ours)
    images.make_mlperf_batch(photos, first_seed=0, image_size=64, stopwatch=theirs)
    assert list(ours.seconds) == ["decode, resize, mirror", "collate", "normalize"]
    assert list(theirs.seconds) == [
        "decode",
        "to float",
        "mirror",
        "normalize",
        "resize",
        "collate",
    ]
    assert min(*ours.seconds.values(), *theirs.seconds.values()) > 0
