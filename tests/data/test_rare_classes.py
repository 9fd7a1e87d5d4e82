"""Repeat factors and weights of rare classes, and the order of an epoch that repeats images."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data.annotations import ClassMap, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset
from data.loader import TrainingBatches
from data.rare_classes import (
    ClassWeights,
    Objects,
    class_weights,
    epoch_order,
    places_per_epoch,
    repeat_factors,
)
from tests.data.samples import random_content, write_json
from tests.support.commands import error_message

FACTORS = np.array([1.0] * 20 + [2.5] * 4 + [1.25, 7.125, 3.0])


def by_lvis(classes_of_images: list[set[int]], threshold: float) -> list[float]:
    """Return the factors as Gupta et al. define them, image by image."""
    count = Counter(label for classes in classes_of_images for label in classes)
    of_class = {
        label: max(1.0, math.sqrt(threshold / (number / len(classes_of_images))))
        for label, number in count.items()
    }
    return [
        max((of_class[label] for label in classes), default=1.0) for classes in classes_of_images
    ]


@pytest.mark.parametrize("threshold", [0.1, 0.3, 1.0])
def test_repeat_factors_are_those_of_lvis(threshold: float) -> None:
    random = np.random.default_rng(1)
    chances = [0.6, 0.3, 0.1, 0.02]
    of_images = [
        [
            label
            for label, chance in enumerate(chances)
            for _ in range(3)
            if random.random() < chance
        ]
        for _ in range(200)
    ]
    objects = Objects(
        np.repeat(np.arange(200), [len(labels) for labels in of_images]),
        np.array([*itertools.chain(*of_images)]),
    )
    factors = repeat_factors(objects, num_images=200, threshold=threshold)
    expected = by_lvis([set(labels) for labels in of_images], threshold)
    np.testing.assert_allclose(factors, expected, atol=2**-17)


def test_classes_above_the_threshold_repeat_no_image() -> None:
    objects = Objects(np.arange(10), np.arange(10) % 2)
    assert repeat_factors(objects, num_images=10, threshold=0.5) == 10


def counts_of_epochs(epochs: int) -> NDArray[np.int64]:
    """Return how often each epoch has each image: [epochs, images]."""
    orders = [epoch_order(FACTORS, seed=3, epoch=epoch) for epoch in range(epochs)]
    return np.array([np.bincount(order, minlength=len(FACTORS)) for order in orders])


def test_an_epoch_has_each_image_as_often_as_its_factor_rounded_at_random() -> None:
    counts = counts_of_epochs(4000)
    places = places_per_epoch(FACTORS)
    assert places == math.ceil(FACTORS.sum()) and (counts.sum(axis=1) == places).all()
    assert (counts >= np.floor(FACTORS)).all()
    beyond = np.maximum(counts - np.ceil(FACTORS), 0)
    assert (beyond.sum(axis=1) <= 1).all()  # the place to which the sum is rounded up
    np.testing.assert_allclose(counts.mean(axis=0), FACTORS, atol=0.06)


def test_repeated_images_are_spread_over_the_epoch() -> None:
    orders = np.array([epoch_order(FACTORS, seed=3, epoch=epoch) for epoch in range(2000)])
    shares = (orders == len(FACTORS) - 2).mean(axis=0)  # of the image with the factor 7.125
    np.testing.assert_allclose(shares, FACTORS[-2] / orders.shape[1], atol=0.04)


def batches(*, rank: int = 0, ranks: int = 1, **options: object) -> TrainingBatches:
    shared = {"batch_size": 6 // ranks, "seed": 9, "rank": rank, "ranks": ranks}
    return TrainingBatches(FACTORS, **shared, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [0, 18])
@pytest.mark.parametrize("split", [(), (3, 1, 2)])
def test_a_resumed_epoch_of_several_ranks_has_the_samples_of_one(
    first: int, split: tuple[int, ...]
) -> None:
    alone = batches()
    alone.set_position(epoch=2)
    whole = list(alone)
    assert len(whole) == len(alone) == places_per_epoch(FACTORS) // 6
    assert len({key for batch in whole for key in batch}) == 6 * len(whole)  # other augmentations
    parts = [batches(rank=rank, ranks=3, split=split) for rank in range(3)]
    for part in parts:
        part.set_position(2, first)
    steps = zip(*parts, strict=True)
    assert [[*itertools.chain(*step)] for step in steps] == whole[first // 6 :]


NAMES = ("bus", "tram", "N/A", "kite")
TEN = Objects(np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3]), np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 3]))


def test_balanced_weights_are_the_inverse_of_the_boxes_with_a_mean_of_one() -> None:
    weights = class_weights("balanced", TEN, 4, NAMES)
    # 10 boxes of 3 classes: 10 / (3 n), as scikit-learn computes them.
    np.testing.assert_allclose(weights, [10 / 18, 10 / 9, 1, 10 / 3])
    assert weights[TEN.label].mean() == pytest.approx(1)


def test_balanced_weights_count_repeated_boxes_as_often_as_an_epoch_has_them() -> None:
    repeats = np.array([1.0, 1.0, 1.0, 4.0])
    weights = class_weights("balanced", TEN, repeats, NAMES)
    np.testing.assert_allclose(weights, [16 / 18, 16 / 18, 1, 16 / 12])


def test_weights_by_name_leave_the_other_classes_at_one() -> None:
    assert class_weights({"kite": 3, "bus": 0.5}, TEN, 4, NAMES).tolist() == [0.5, 1, 1, 3]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"bus": 2, "Tran": 3}, "training.class_weights: no class 'Tran'; did you mean 'tram'?"),
        ({"xyz": 3}, "training.class_weights: no class 'xyz'; the classes are bus, tram, kite"),
        ({"N/A": 3}, "training.class_weights: no class 'N/A'; the classes are bus, tram, kite"),
    ],
)
def test_unknown_class_is_refused_with_the_nearest(setting: ClassWeights, message: str) -> None:
    assert error_message(class_weights, setting, TEN, 4, NAMES) == message


def test_only_trained_boxes_of_the_training_split_count(tmp_path: Path) -> None:
    """Boxes of crowds, and of images that are skipped, are neither repeated nor weighed."""
    content = random_content(images=40, boxes=60)
    annotations = read_annotations(write_json(tmp_path / "labels.json", content))
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    rules = TrainingRules(
        image_size=64, skip_images_without_boxes=True, repeat_rare=1.0, bad_image_limit=0
    )
    train, validation = (
        DetectionDataset(annotations, tmp_path, classes, rules, train=is_train)
        for is_train in (True, False)
    )
    single = [box for box in content["annotations"] if not box["iscrowd"]]
    place = {image["id"]: row for row, image in enumerate(content["images"])}
    rows = sorted({place[box["image_id"]] for box in single})
    expected: list[set[int]] = [set() for _ in rows]
    for box in single:
        expected[rows.index(place[box["image_id"]])].add(box["category_id"])
    np.testing.assert_allclose(train.images, by_lvis(expected, 1.0), atol=2**-17)
    assert validation.images == len(validation)
    weights = train.class_weights("balanced")
    assert weights is not None
    boxes = Counter(box["category_id"] for box in single)
    repeats = np.array([by_lvis(expected, 1.0)[rows.index(place[b["image_id"]])] for b in single])
    labels = np.array([classes.category_ids.index(box["category_id"]) for box in single])
    sums = np.bincount(labels, weights=repeats)
    np.testing.assert_allclose(weights, sums.sum() / (len(boxes) * sums), rtol=1e-4)
