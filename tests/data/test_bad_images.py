"""What becomes of an image that cannot be read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.errors import InputError
from data.annotations import ClassMap
from data.coco_json import read_annotations
from data.dataset import REPLACEMENTS_TRIED, DetectionDataset, SampleKey
from data.loader import DetectionLoader, TrainingBatches, evaluation_loader
from tests.data.coco_files import write_json

NUM_IMAGES = 12


def make(folder: Path, *, bad: set[int], train: bool, replace: bool = True) -> DetectionDataset:
    random = np.random.default_rng(0)
    for index in range(NUM_IMAGES):
        pixels = random.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        path = folder / f"{index}.png"
        Image.fromarray(pixels).save(path)
        if index in bad:
            path.write_bytes(path.read_bytes()[:200])
    content = {
        "images": [
            {"id": 100 + index, "file_name": f"{index}.png", "width": 32, "height": 24}
            for index in range(NUM_IMAGES)
        ],
        "annotations": [
            {"id": index, "image_id": 100 + index, "category_id": 1, "bbox": [2, 3, 8, 9]}
            for index in range(NUM_IMAGES)
        ],
        "categories": [{"id": 1, "name": "one"}],
    }
    annotations = read_annotations(write_json(folder / "labels.json", content))
    return DetectionDataset(
        annotations,
        folder,
        ClassMap.contiguous(annotations.category_ids, annotations.category_names),
        image_size=32,
        train=train,
        replace_bad_images=replace,
    )


def test_another_image_stands_in_and_the_bad_one_is_named(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad={5}, train=True)
    sample = dataset[SampleKey(5, 77)]
    assert sample.image_id != 105
    (problem,) = sample.bad_images
    assert problem.startswith(f"{tmp_path / '5.png'}: damaged image") and "\n" not in problem
    good = dataset[SampleKey(sample.image_id - 100, 77)]
    assert torch.equal(sample.image, good.image) and good.bad_images == ()


def test_the_replacement_depends_on_the_key_alone(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad={5}, train=True)
    chosen = {seed: dataset[SampleKey(5, seed)].image_id for seed in range(20)}
    again = {seed: dataset[SampleKey(5, seed)].image_id for seed in range(20)}
    assert chosen == again and len(set(chosen.values())) > 3


def test_without_leave_a_bad_image_is_an_error(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad={5}, train=True, replace=False)
    with pytest.raises(InputError, match=r"5\.png: damaged image"):
        dataset[SampleKey(5, 77)]


def test_a_folder_of_bad_images_is_an_error_that_says_so(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad=set(range(NUM_IMAGES)), train=True)
    with pytest.raises(InputError, match=f"so were {REPLACEMENTS_TRIED} before it: check the fol"):
        dataset[SampleKey(5, 77)]


def test_in_evaluation_the_image_keeps_its_place_and_its_boxes(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad={5}, train=False)
    sample = dataset[SampleKey(5, 0)]
    assert sample.image_id == 105 and len(sample.target["boxes"]) == 1
    assert not sample.image.any() and sample.image.shape == (3, 32, 32)
    assert len(sample.bad_images) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_carry_what_was_wrong_out_of_loading_processes(
    tmp_path: Path, workers: int
) -> None:
    loader = evaluation_loader(
        make(tmp_path, bad={1, 7}, train=False), batch_size=5, workers=workers
    )
    found = [[problem.split(":")[0] for problem in batch.bad_images] for batch in loader]
    assert found == [[str(tmp_path / "1.png")], [str(tmp_path / "7.png")], []]


def test_samples_do_not_depend_on_where_they_are_loaded(tmp_path: Path) -> None:
    dataset = make(tmp_path, bad={1, 7}, train=True)
    epochs = []
    for workers in (0, 2):
        batches = TrainingBatches(NUM_IMAGES, batch_size=4, seed=3)
        epochs.append(list(DetectionLoader(dataset, batches, workers=workers)))
    for one, other in zip(*epochs, strict=True):
        assert one.image_ids == other.image_ids and one.bad_images == other.bad_images
        assert torch.equal(one.images, other.images)
