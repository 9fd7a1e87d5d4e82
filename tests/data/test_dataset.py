import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import InputError
from data.annotations import ClassMap
from data.coco_json import read_annotations
from data.dataset import DetectionDataset, SampleKey, collate

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
) -> DetectionDataset:
    random = np.random.default_rng(0)
    for image in images:
        shape = (image["height"], image["width"], 3)
        pixels = random.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / image["file_name"])
    categories = [{"id": 9, "name": "nine"}, {"id": 4, "name": "four"}]
    content = {"images": images, "annotations": BOXES, "categories": categories}
    (folder / "labels.json").write_text(json.dumps(content))
    annotations = read_annotations(folder / "labels.json")
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    return DetectionDataset(annotations, folder, classes, image_size=size, train=train)


def key_seeds(dataset: DetectionDataset) -> tuple[int, int]:
    """A seed that leaves the first image as it is, and one that mirrors it."""
    plain = make_plain(dataset)
    found: dict[bool, int] = {}
    for seed in range(100):
        mirrored = not torch.equal(dataset[SampleKey(0, seed)].image, plain)
        found.setdefault(mirrored, seed)
    return found[False], found[True]


def make_plain(dataset: DetectionDataset) -> torch.Tensor:
    evaluation = DetectionDataset(
        dataset.annotations,
        dataset.image_folder,
        dataset.class_map,
        image_size=dataset.image_size,
        train=False,
    )
    return evaluation[SampleKey(0, 0)].image


def test_a_sample_has_scaled_clipped_boxes_and_labels(tmp_path: Path) -> None:
    sample = make(tmp_path, train=False)[SampleKey(0, 0)]
    assert sample.image.shape == (3, 64, 64) and sample.image.dtype == torch.uint8
    assert sample.image_id == 11 and sample.original_size == (40, 80)
    boxes, labels = sample.target["boxes"], sample.target["labels"]
    assert boxes.dtype == torch.float32 and labels.dtype == torch.int64
    # 64/80 across, 64/40 down; the crowd, the empty box and the one outside are left out
    expected = torch.tensor([[8, 16, 24, 48], [56, 48, 64, 64]]).float()
    torch.testing.assert_close(boxes, expected)
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize("train", [True, False])
def test_crowd_boxes_are_no_targets(tmp_path: Path, train: bool) -> None:
    dataset = make(tmp_path, train=train)
    areas = [
        (box[2] - box[0]) * (box[3] - box[1])
        for box in dataset[SampleKey(0, 1)].target["boxes"].tolist()
    ]
    assert len(areas) == 2 and max(areas) < 64 * 64


def test_an_image_without_boxes_stays(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    assert len(dataset) == 2
    sample = dataset[SampleKey(1, 3)]
    assert sample.image_id == 12
    assert sample.target["boxes"].shape == (0, 4) and sample.target["labels"].shape == (0,)
    assert sample.target["boxes"].dtype == torch.float32


def test_training_mirrors_image_and_boxes_together(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    plain_seed, mirrored_seed = key_seeds(dataset)
    plain, mirrored = dataset[SampleKey(0, plain_seed)], dataset[SampleKey(0, mirrored_seed)]
    assert torch.equal(mirrored.image, plain.image.flip(-1))
    back = mirrored.target["boxes"].clone()
    back[:, [0, 2]] = 64 - back[:, [2, 0]]
    torch.testing.assert_close(back, plain.target["boxes"])


def test_half_of_the_seeds_mirror(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True, size=16)
    plain = make_plain(dataset)
    mirrored = sum(not torch.equal(dataset[SampleKey(0, s)].image, plain) for s in range(300))
    assert 110 <= mirrored <= 190


def test_a_sample_is_a_function_of_its_key(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    torch.manual_seed(0)
    first = dataset[SampleKey(0, 77)]
    torch.manual_seed(1)
    dataset[SampleKey(1, 5)]
    second = dataset[SampleKey(0, 77)]
    assert torch.equal(first.image, second.image)
    assert torch.equal(first.target["boxes"], second.target["boxes"])


def test_evaluation_ignores_the_seed(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    images = [dataset[SampleKey(0, seed)].image for seed in range(12)]
    assert all(torch.equal(image, images[0]) for image in images)


def test_collate_keeps_order_and_is_channels_last(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    samples = [dataset[SampleKey(1, 0)], dataset[SampleKey(0, 0)]]
    batch = collate(samples)
    assert batch.images.shape == (2, 3, 64, 64) and batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.images[1], samples[1].image)
    assert batch.image_ids == [12, 11] and batch.original_sizes == [(32, 32), (40, 80)]
    assert [len(target["labels"]) for target in batch.targets] == [0, 2]


def test_a_wrong_folder_is_found_before_training(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    with pytest.raises(InputError, match=r"nowhere/wide\.png: no such image file"):
        DetectionDataset(
            dataset.annotations,
            tmp_path / "nowhere",
            dataset.class_map,
            image_size=64,
            train=True,
        )


def test_a_category_without_a_class_is_found_before_training(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=True)
    with pytest.raises(InputError, match="category id 4 is none"):
        DetectionDataset(
            dataset.annotations, tmp_path, ClassMap((9,), ("nine",)), image_size=64, train=True
        )


def test_a_turned_image_is_refused_and_a_resized_copy_is_not(tmp_path: Path) -> None:
    dataset = make(tmp_path, train=False)
    before = dataset[SampleKey(0, 0)]
    with Image.open(tmp_path / "wide.png") as image:
        half, turned = image.resize((40, 20)), image.transpose(Image.Transpose.ROTATE_90)
    half.save(tmp_path / "wide.png")
    after = dataset[SampleKey(0, 0)]
    assert torch.equal(after.target["boxes"], before.target["boxes"])
    assert after.original_size == (40, 80)
    turned.save(tmp_path / "wide.png")
    with pytest.raises(InputError, match=r"wide\.png: the image is 40×80 pixels.*width 80"):
        dataset[SampleKey(0, 0)]


@pytest.mark.parametrize("train", [True, False])
def test_a_photo_with_an_exif_orientation_is_read_as_its_annotations_see_it(
    tmp_path: Path, train: bool
) -> None:
    dataset = make(tmp_path, train=train)
    seeds = range(6)
    before = [dataset[SampleKey(0, seed)] for seed in seeds]
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(tmp_path / "wide.png") as image:
        stored = image.transpose(Image.Transpose.ROTATE_90)
    stored.save(tmp_path / "wide.png", exif=exif)
    for seed, expected in zip(seeds, before, strict=True):
        sample = dataset[SampleKey(0, seed)]
        assert torch.equal(sample.image, expected.image)
        assert torch.equal(sample.target["boxes"], expected.target["boxes"])
        assert sample.original_size == (40, 80)


def skipping(dataset: DetectionDataset, *, box_is_crowd: list[bool]) -> DetectionDataset:
    """The same images in training, with other boxes being groups; skips images without boxes."""
    return DetectionDataset(
        replace(dataset.annotations, box_is_crowd=np.array(box_is_crowd)),
        dataset.image_folder,
        dataset.class_map,
        image_size=64,
        train=True,
        skip_images_without_boxes=True,
    )


def test_images_without_boxes_are_skipped_on_request(tmp_path: Path) -> None:
    images = list(reversed(IMAGES))  # the image without boxes comes first
    full = make(tmp_path, train=True, images=images)
    dataset = skipping(full, box_is_crowd=[False] * len(BOXES))
    assert (len(full), len(dataset)) == (2, 1)
    sample = dataset[SampleKey(0, 0)]
    assert sample.image_id == 11 and len(sample.target["boxes"]) > 0


def test_images_with_groups_only_are_skipped_too(tmp_path: Path) -> None:
    full = make(tmp_path, train=True)
    with pytest.raises(InputError, match="no image has a box"):
        skipping(full, box_is_crowd=[True] * len(BOXES))
