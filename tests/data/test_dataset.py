"""Samples of a data set, replacement of unreadable images, and the opening of both splits."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import InputError
from data.annotations import ClassMap, Resize, Split, TrainingRules
from data.coco_json import read_annotations
from data.dataset import (
    REPLACEMENTS_TRIED,
    DetectionData,
    DetectionDataset,
    SampleKey,
    collate,
    open_data,
)
from data.loader import evaluation_loader
from tests.data.samples import one_box_dataset, write_json

IMAGES: list[dict[str, Any]] = [
    {"id": 11, "file_name": "wide.png", "width": 80, "height": 40},
    {"id": 12, "file_name": "empty.png", "width": 32, "height": 32},
]
BOXES: list[dict[str, Any]] = [
    {"id": 1, "image_id": 11, "category_id": 9, "bbox": [10, 10, 20, 20]},
    {"id": 2, "image_id": 11, "category_id": 4, "bbox": [0, 0, 80, 40], "iscrowd": 1},
    {"id": 3, "image_id": 11, "category_id": 4, "bbox": [70, 30, 40, 40]},
    {"id": 4, "image_id": 11, "category_id": 4, "bbox": [5, 5, 0, 10]},
    {"id": 5, "image_id": 11, "category_id": 4, "bbox": [90, 5, 10, 10]},
]


def make(
    folder: Path,
    *,
    train: bool,
    size: int = 64,
    images: list[dict[str, Any]] = IMAGES,
    boxes: list[dict[str, Any]] = BOXES,
) -> DetectionDataset:
    random = np.random.default_rng(0)
    for image in images:
        shape = (image["height"], image["width"], 3)
        pixels = random.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / image["file_name"])
    categories = [{"id": 9, "name": "nine"}, {"id": 4, "name": "four"}]
    content = {"images": images, "annotations": boxes, "categories": categories}
    annotations = read_annotations(write_json(folder / "labels.json", content))
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    rules = TrainingRules(image_size=size)
    return DetectionDataset(annotations, folder, classes, rules, train=train)


def other(dataset: DetectionDataset, **changes: Any) -> DetectionDataset:
    """Return the same data set with other arguments or rules."""
    names = ("annotations", "image_folder", "class_map")
    arguments = {name: getattr(dataset, name) for name in names} | {"train": True}
    arguments |= {name: changes.pop(name) for name in {*arguments, "source"} & changes.keys()}
    return DetectionDataset(rules=replace(dataset.rules, **changes), **arguments)


def test_sample_has_scaled_clipped_boxes_and_labels_without_crowds(tmp_path: Path) -> None:
    sample = make(tmp_path, train=False)[SampleKey(0, 0)]
    assert sample.image.shape == (3, 64, 64) and sample.image.dtype == torch.uint8
    assert sample.image_id == 11 and sample.original_size == (40, 80)
    boxes, labels = sample.target["boxes"], sample.target["labels"]
    assert boxes.dtype == torch.float32 and labels.dtype == torch.int64
    # 64/80 across, 64/40 down; the crowd, the empty box and the one outside are left out
    expected = torch.tensor([[8, 16, 24, 48], [56, 48, 64, 64]]).float()
    torch.testing.assert_close(boxes, expected)
    assert labels.tolist() == [0, 1]


def test_image_without_boxes_is_kept(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    assert len(dataset) == 2
    sample = dataset[SampleKey(1, 3)]
    assert sample.image_id == 12
    assert sample.target["boxes"].shape == (0, 4) and sample.target["labels"].shape == (0,)
    assert sample.target["boxes"].dtype == torch.float32


def test_collate_keeps_order_and_is_channels_last(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    samples = [dataset[SampleKey(1, 0)], dataset[SampleKey(0, 0)]]
    batch = collate(samples)
    assert batch.images.shape == (2, 3, 64, 64) and batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.images[1], samples[1].image)
    assert batch.image_ids == [12, 11] and batch.original_sizes == [(32, 32), (40, 80)]
    assert [len(target["labels"]) for target in batch.targets] == [0, 2]


@pytest.mark.parametrize("resize", ["square", "letterbox"])
def test_batch_keeps_images_of_both_orientations_apart(tmp_path: Path, resize: Resize) -> None:
    images = [*IMAGES, {"id": 13, "file_name": "upright.png", "width": 40, "height": 80}]
    boxes = [*BOXES, {"id": 6, "image_id": 13, "category_id": 9, "bbox": [10, 20, 20, 40]}]
    full = make(tmp_path, train=False, images=images, boxes=boxes)
    dataset = other(full, image_size=(64, 96), resize=resize, train=False)
    batch = collate([dataset[SampleKey(index, 0)] for index in (2, 0, 1)])
    upright, lying = batch.parts()
    assert batch.total == 3 and upright.turned is None is lying.turned
    assert (upright.image_ids, lying.image_ids) == ([13], [11, 12])
    assert upright.images.shape == (1, 3, 96, 64) and lying.images.shape == (2, 3, 64, 96)
    for part in (upright, lying):
        assert part.images.is_contiguous(memory_format=torch.channels_last)
    # 80×40 pixels become 96×64, or 96×48 with padding below; the upright image likewise.
    scale = 1.6 if resize == "square" else 1.2  # along the shorter side
    expected = [[12, 10 * scale, 36, 30 * scale], [84, 30 * scale, 96, 40 * scale]]
    torch.testing.assert_close(lying.targets[0]["boxes"], torch.tensor(expected))
    expected = [[10 * scale, 24, 30 * scale, 72]]
    torch.testing.assert_close(upright.targets[0]["boxes"], torch.tensor(expected))


def test_folder_or_classes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    with pytest.raises(InputError, match=r"nowhere/wide\.png: no such image file"):
        other(dataset, image_folder=tmp_path / "nowhere")
    with pytest.raises(InputError, match="category id 4 "):
        other(dataset, class_map=ClassMap((9,), ("nine",)))


def test_rotated_image_is_refused_and_resized_copy_accepted(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    before = dataset[SampleKey(0, 0)]
    with Image.open(tmp_path / "wide.png") as image:
        half, turned = image.resize((40, 20)), image.transpose(Image.Transpose.ROTATE_90)
    half.save(tmp_path / "wide.png")
    after = dataset[SampleKey(0, 0)]
    assert torch.equal(after.target["boxes"], before.target["boxes"])
    assert after.original_size == (40, 80)
    turned.save(tmp_path / "wide.png")
    with pytest.raises(InputError, match=r"wide\.png: the image is 40×80 pixels.*80×40"):
        dataset[SampleKey(0, 0)]


def test_images_without_boxes_are_skipped_on_request(tmp_path: Path) -> None:
    images = list(reversed(IMAGES))  # the image without boxes comes first
    full = make(tmp_path, train=True, images=images)

    def skipping(*, crowds: bool) -> DetectionDataset:
        changed = replace(full.annotations, box_is_crowd=np.full(len(BOXES), crowds))
        return other(full, annotations=changed, skip_images_without_boxes=True)

    dataset = skipping(crowds=False)
    assert (len(full), len(dataset)) == (2, 1)
    sample = dataset[SampleKey(0, 0)]
    assert sample.image_id == 11 and len(sample.target["boxes"]) > 0
    with pytest.raises(InputError, match="no image has a box"):
        skipping(crowds=True)


NUM_IMAGES = 12


def test_images_of_another_split_are_counted_if_both_use_them(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    with_boxes = other(dataset, skip_images_without_boxes=True)
    assert dataset.count_images_in(dataset) == 2
    assert dataset.count_images_in(with_boxes) == with_boxes.count_images_in(dataset) == 1
    (tmp_path / "copy").mkdir()
    assert dataset.count_images_in(make(tmp_path / "copy", train=True)) == 0


def spoiled(
    folder: Path, *, bad: Iterable[int], train: bool, replace_bad: bool = True
) -> DetectionDataset:
    """Return a data set in which the images of these indices are truncated."""
    options: dict[str, Any] = {"train": train, "bad_image_limit": 9 if replace_bad else None}
    dataset = one_box_dataset(folder, images=NUM_IMAGES, **options)
    for index in bad:
        path = folder / f"{index}.png"
        path.write_bytes(path.read_bytes()[:200])
    return dataset


def test_bad_image_is_replaced_and_reported(tmp_path: Path) -> None:
    dataset = spoiled(tmp_path, bad={5}, train=True)
    sample = dataset[SampleKey(5, 77)]
    assert sample.image_id != 105
    (problem,) = sample.bad_images
    assert problem.startswith(f"{tmp_path / '5.png'}: damaged image") and "\n" not in problem
    good = dataset[SampleKey(sample.image_id - 100, 77)]
    assert torch.equal(sample.image, good.image) and good.bad_images == ()
    # The replacement depends on the key alone.
    first, second = ([dataset[SampleKey(5, seed)].image_id for seed in range(20)] for _ in "ab")
    assert first == second and len(set(first)) > 3


@pytest.mark.parametrize(
    ("bad", "replace_bad", "match"),
    [
        ({5}, False, r"5\.png: damaged image"),
        (range(NUM_IMAGES), True, f"{REPLACEMENTS_TRIED} images before it"),
    ],
)
def test_bad_image_that_cannot_be_replaced_is_an_error(
    tmp_path: Path, bad: Iterable[int], replace_bad: bool, match: str
) -> None:
    dataset = spoiled(tmp_path, bad=bad, train=True, replace_bad=replace_bad)
    with pytest.raises(InputError, match=match):
        dataset[SampleKey(5, 77)]


def test_bad_image_in_evaluation_is_black_and_keeps_its_boxes(tmp_path: Path) -> None:
    sample = spoiled(tmp_path, bad={5}, train=False)[SampleKey(5, 0)]
    assert sample.image_id == 105 and len(sample.target["boxes"]) == 1
    assert not sample.image.any() and sample.image.shape == (3, 32, 32)
    assert len(sample.bad_images) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_report_bad_images(tmp_path: Path, workers: int) -> None:
    dataset = spoiled(tmp_path, bad={1, 7}, train=False)
    loader = evaluation_loader(dataset, batch_size=5, workers=workers)
    reported = [[problem.split(":")[0] for problem in batch.bad_images] for batch in loader]
    assert reported == [[str(tmp_path / "1.png")], [str(tmp_path / "7.png")], []]


CATEGORIES = [{"id": 7, "name": "seven"}, {"id": 2, "name": "two"}]
IMAGE = {"id": 5, "file_name": "0.png", "width": 80, "height": 40}


def split(folder: Path, categories: list[dict[str, Any]] = CATEGORIES, **changes: Any) -> Split:
    """Write a split of one image with one box; the changes replace lists of its JSON."""
    folder.mkdir()
    Image.fromarray(np.zeros((40, 80, 3), np.uint8)).save(folder / "0.png")
    box = {"id": 1, "image_id": 5, "category_id": categories[0]["id"], "bbox": [1, 2, 30, 20]}
    content = {"images": [IMAGE], "annotations": [box], "categories": categories} | changes
    return Split(write_json(folder / "labels.json", content), folder)


def opened(train: Split, validation: Split, **options: Any) -> DetectionData:
    return open_data(train, validation, TrainingRules(image_size=64, **options))


def test_both_splits_share_the_training_splits_classes(tmp_path: Path) -> None:
    train, validation = split(tmp_path / "train"), split(tmp_path / "other", CATEGORIES[::-1])
    data = opened(train, validation)
    assert data.classes.category_ids == (7, 2) and data.classes.names == ("seven", "two")
    assert data.train.class_map == data.validation.class_map == data.classes
    assert data.train.train and not data.validation.train
    assert data.train.rules.image_size == data.validation.rules.image_size == 64
    for num_classes, outputs in ((None, 8), (8, 8), (91, 91)):
        by_id = opened(train, validation, class_indices="category_id", num_classes=num_classes)
        assert by_id.classes.num_classes == outputs
        assert by_id.classes.names[7] == "seven" and by_id.classes.names[3] == "N/A"


SURROGATE = [{"id": 1, "name": "cat"}, {"id": 2, "name": "half a \ud83d"}]
LONG_NAME = {"images": [IMAGE | {"file_name": "ü" * 128 + ".png"}]}


@pytest.mark.parametrize(
    ("train", "validation", "options", "file", "match"),
    [
        ({}, {}, {"class_indices": "category_id", "num_classes": 7}, "train", r"0\]\.id: 7 \(sev"),
        ({}, {}, {"num_classes": 1}, "train", "2 categories, model.num_classes is 1"),
        ({}, {}, {"num_classes": 3}, "train", "2 categories, model.num_classes is 3"),
        ({}, {"categories": [{"id": 7, "name": "other"}]}, {}, "validation", "same categories"),
        (
            {"categories": SURROGATE},
            {"categories": SURROGATE},
            {},
            "train",
            r"categories\[1\]\.name",
        ),
        ({"annotations": []}, {}, {"skip_images_without_boxes": True}, "train", "images_without_b"),
        (LONG_NAME, {}, {}, "train", r"File name too long; .*file_name"),
    ],
)
def test_splits_that_cannot_be_opened_are_refused(
    tmp_path: Path,
    *,
    train: dict[str, Any],
    validation: dict[str, Any],
    options: dict[str, Any],
    file: str,
    match: str,
) -> None:
    splits = split(tmp_path / "train", **train), split(tmp_path / "validation", **validation)
    with pytest.raises(InputError, match=match) as caught:
        opened(*splits, **options)
    assert str(caught.value).startswith(f"{tmp_path / file}/")
