"""128 real photos of COCO 2017, compared with pycocotools and with the reference's arithmetic."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from data.annotations import Annotations, ClassMap, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset
from data.loader import evaluation_loader

ROOT = Path(__file__).parents[3] / "shared" / "data" / "coco128"
JSON, PHOTOS = ROOT / "annotations" / "instances_train2017.json", ROOT / "train2017"
PHOTO_FILES = sorted(PHOTOS.glob("*.jpg"))

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not JSON.is_file(), reason=f"{JSON} is missing")]


@pytest.fixture(scope="module")
def annotations() -> Annotations:
    return read_annotations(JSON)


@pytest.fixture(scope="module")
def coco() -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(JSON))


def test_columns_equal_pycocotools(annotations: Annotations, coco: COCO) -> None:
    named = dict(zip(annotations.category_ids.tolist(), annotations.category_names, strict=True))
    assert named == {category_id: entry["name"] for category_id, entry in coco.cats.items()}
    assert set(annotations.image_ids.tolist()) == set(coco.imgs)
    for index, image_id in enumerate(annotations.image_ids.tolist()):
        image, rows = coco.imgs[image_id], annotations.box_slice(index)
        assert annotations.file_names[index] == image["file_name"]
        assert annotations.heights[index] == image["height"]
        assert annotations.widths[index] == image["width"]
        entries = coco.imgToAnns[image_id]
        assert annotations.box_ids[rows].tolist() == [entry["id"] for entry in entries]
        xyxy = annotations.boxes[rows]
        xywh = np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)
        expected = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4)
        np.testing.assert_allclose(xywh, expected, rtol=0, atol=1e-9)
        for column, field in (
            (annotations.box_category_ids, "category_id"),
            (annotations.box_is_crowd, "iscrowd"),
            (annotations.box_areas, "area"),
        ):
            assert column[rows].tolist() == [entry[field] for entry in entries]


def test_samples_of_all_photos(annotations: Annotations) -> None:
    classes = ClassMap.by_category_id(annotations.category_ids, annotations.category_names, 91)
    rules = TrainingRules(image_size=64)
    dataset = DetectionDataset(annotations, PHOTOS, classes, rules, train=False)
    total = 0
    for batch in evaluation_loader(dataset, batch_size=16):
        for target, (height, width), image_id in zip(
            batch.targets, batch.original_sizes, batch.image_ids, strict=True
        ):
            row = annotations.image_ids.tolist().index(image_id)
            rows = annotations.box_slice(row)
            ids_back = classes.to_category_ids(target["labels"].numpy())
            assert ids_back.tolist() == annotations.box_category_ids[rows].tolist()
            ratios = np.array([width, height, width, height]) / 64
            original = target["boxes"].numpy() * ratios
            np.testing.assert_allclose(original, annotations.boxes[rows], rtol=0, atol=2e-2)
            total += len(target["labels"])
    assert total == 929
