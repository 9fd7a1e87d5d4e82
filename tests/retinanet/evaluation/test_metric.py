import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from data.annotations import Annotations
from data.coco_json import read_annotations
from profiling.bench.generated import generated_detections, generated_truth
from retinanet.config_types import MetricLibrary
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import METRICS, TABLES, coco_metric

COCO128 = Path(__file__).resolve().parents[4] / "shared/data/coco128/annotations"
LABELS = COCO128 / "instances_train2017.json"

libraries = pytest.mark.parametrize("library", TABLES)
needs_photos = pytest.mark.skipif(not LABELS.is_file(), reason=f"{LABELS} is missing")


def truth_with_crowds(folder: Path) -> Path:
    """COCO128's labels, with ids from 1, every ninth box a crowd, and a category without boxes."""
    content = json.loads(LABELS.read_text())
    for index, box in enumerate(content["annotations"]):
        box["id"] = index + 1
        box["iscrowd"] = int(index % 9 == 0)
        box.setdefault("area", box["bbox"][2] * box["bbox"][3])
    content["categories"].append({"id": 1000, "name": "nothing of this kind"})
    (folder / "truth.json").write_text(json.dumps(content))
    return folder / "truth.json"


def shaken(annotations: Annotations, *, seed: int) -> SplitDetections:
    """The true boxes, some left out, moved, doubled or of another class, with random scores, of
    which some are equal.
    """
    random = np.random.default_rng(seed)
    detections = []
    for index, image_id in enumerate(annotations.image_ids.tolist()):
        if index % 20 == 7:
            continue  # nothing was found in this image
        rows = np.arange(len(annotations.boxes))[annotations.boxes_of(index)]
        rows = np.repeat(rows[random.random(len(rows)) < 0.85], 2)
        boxes = annotations.boxes[rows]
        sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        boxes = boxes + sides * random.normal(0, 0.08, boxes.shape)
        other = random.random(len(rows)) < 0.1
        anything = random.choice(annotations.category_ids, len(rows))
        ids = np.where(other, anything, annotations.box_category_ids[rows])
        scores = np.sort(random.random(len(rows)).round(2))[::-1]
        detections.append(ImageDetections(image_id, boxes, scores.copy(), ids))
    return SplitDetections.of(detections)


def as_results(detections: SplitDetections) -> list[dict[str, Any]]:
    """COCO's result format."""
    rows = zip(*(column.tolist() for column in detections.columns()), strict=True)
    return [
        {
            "image_id": image_id,
            "category_id": category_id,
            "bbox": [left, top, right - left, bottom - top],
            "score": score,
        }
        for image_id, (left, top, right, bottom), score, category_id in rows
    ]


def from_files(truth: Path, results: Path, *, category: int | None = None) -> list[float]:
    """The twelve numbers by pycocotools' usual way, files and `summarize`."""
    with contextlib.redirect_stdout(io.StringIO()):
        annotations = COCO(str(truth))
        evaluation = COCOeval(annotations, annotations.loadRes(str(results)), iouType="bbox")
        if category is not None:
            evaluation.params.catIds = [category]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(value) for value in evaluation.stats]


@pytest.fixture
def scored(tmp_path: Path) -> tuple[Annotations, SplitDetections, Path, Path]:
    truth = truth_with_crowds(tmp_path)
    annotations = read_annotations(truth)
    detections = shaken(annotations, seed=0)
    (tmp_path / "results.json").write_text(json.dumps(as_results(detections)))
    return annotations, detections, truth, tmp_path / "results.json"


@needs_photos
@libraries
def test_equals_pycocotools_run_on_files(
    library: MetricLibrary, scored: tuple[Annotations, SplitDetections, Path, Path]
) -> None:
    annotations, detections, truth, results = scored
    evaluation = coco_metric(annotations, detections, library=library)
    expected = from_files(truth, results)
    assert list(evaluation.summary) == list(METRICS)
    assert list(evaluation.summary.values()) == pytest.approx(expected, abs=1e-12, rel=0)
    assert 0.1 < evaluation.map < 0.9  # neither trivial end
    assert evaluation.map == evaluation.summary["map"]


@needs_photos
def test_the_metric_of_a_class_equals_a_run_on_that_class_alone(
    scored: tuple[Annotations, SplitDetections, Path, Path],
) -> None:
    annotations, detections, truth, results = scored
    per_class = coco_metric(annotations, detections).per_class
    ids = dict(zip(annotations.category_names, annotations.category_ids.tolist(), strict=True))
    single = annotations.box_category_ids[~annotations.box_is_crowd]
    assert {ids[name] for name in per_class} == set(single.tolist())
    for name in [*list(per_class)[::6], "person"]:
        alone = from_files(truth, results, category=ids[name])[0]
        assert per_class[name] == pytest.approx(alone, abs=1e-12), name


@needs_photos
def test_both_libraries_have_the_same_tables(
    scored: tuple[Annotations, SplitDetections, Path, Path],
) -> None:
    annotations, detections, *_ = scored
    by_class, whole = (TABLES[name](annotations, detections) for name in TABLES)
    np.testing.assert_array_equal(by_class.precision, whole.precision)
    np.testing.assert_array_equal(by_class.recall, whole.recall)


def test_more_than_100_boxes_of_a_class_in_an_image_count_as_pycocotools_counts_them() -> None:
    random = np.random.default_rng(3)
    truth = generated_truth(images=40, random=random)
    truth = replace(truth, box_category_ids=truth.box_category_ids % 2 + 1)
    detections = generated_detections(truth, per_image=300, random=random)
    of_two = detections.category_ids % 3 + 1  # one of the three has no true box
    detections = replace(detections, category_ids=of_two)
    by_class, whole = (TABLES[name](truth, detections) for name in TABLES)
    assert by_class.recall[0, 0, 0].tolist() == sorted(set(by_class.recall[0, 0, 0].tolist()))
    np.testing.assert_array_equal(by_class.precision, whole.precision)
    np.testing.assert_array_equal(by_class.recall, whole.recall)


@needs_photos
def test_264_classes_in_128_photos_have_the_numbers_of_pycocotools(tmp_path: Path) -> None:
    photos = read_annotations(truth_with_crowds(tmp_path))
    random = np.random.default_rng(1)
    annotations = replace(
        photos,
        category_ids=random.permutation(np.arange(1, 265)),
        category_names=tuple(f"class {number}" for number in range(264)),
        box_category_ids=random.integers(1, 265, len(photos.boxes)),
    )
    detections = shaken(annotations, seed=1)
    ours, arbiter = (coco_metric(annotations, detections, library=name) for name in TABLES)
    assert len(ours.per_class) > 200 and 0.1 < ours.map < 0.9
    assert ours.summary == pytest.approx(arbiter.summary, rel=0, abs=1e-9)
    assert ours.per_class == pytest.approx(arbiter.per_class, rel=0, abs=1e-9)


@needs_photos
def test_perfect_detections_have_map_1(tmp_path: Path) -> None:
    annotations = read_annotations(truth_with_crowds(tmp_path))
    detections = []
    for index, image_id in enumerate(annotations.image_ids.tolist()):
        rows = annotations.boxes_of(index)
        single = ~annotations.box_is_crowd[rows]
        boxes = annotations.boxes[rows][single]
        ids = annotations.box_category_ids[rows][single]
        detections.append(ImageDetections(image_id, boxes, np.ones(len(boxes)), ids))
    evaluation = coco_metric(annotations, SplitDetections.of(detections))
    assert evaluation.map == pytest.approx(1) and evaluation.summary["map_small"] == 1
    assert list(evaluation.per_class.values()) == pytest.approx([1.0] * len(evaluation.per_class))


def one_image(*boxes: tuple[int, tuple[float, ...], bool]) -> Annotations:
    """One image with the given (category, xyxy, crowd); categories 9 and 4, in this order."""
    corners = np.array([box for _, box, _ in boxes], dtype=np.float64).reshape(-1, 4)
    return Annotations(
        category_ids=np.array([9, 4]),
        category_names=("nine", "four"),
        image_ids=np.array([5]),
        file_names=("a.png",),
        widths=np.array([200], np.int32),
        heights=np.array([200], np.int32),
        box_offsets=np.array([0, len(boxes)]),
        boxes=corners,
        box_category_ids=np.array([category for category, _, _ in boxes], np.int64),
        box_is_crowd=np.array([crowd for _, _, crowd in boxes], np.bool_),
        box_areas=(corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1]),
        box_ids=np.arange(len(boxes)),
    )


def detected(*boxes: tuple[int, tuple[float, ...], float]) -> SplitDetections:
    images = [
        ImageDetections(
            image_id=5,
            boxes=np.array([box for _, box, _ in boxes], dtype=np.float64).reshape(-1, 4),
            scores=np.array([score for _, _, score in boxes], dtype=np.float64),
            category_ids=np.array([category for category, _, _ in boxes], np.int64),
        )
    ]
    return SplitDetections.of(images)


BOX = (10.0, 10.0, 50.0, 50.0)
FAR = (100.0, 100.0, 150.0, 150.0)


@pytest.mark.parametrize("detections", [SplitDetections.of([]), detected()])
@libraries
def test_finding_nothing_is_0(detections: SplitDetections, library: MetricLibrary) -> None:
    evaluation = coco_metric(one_image((4, BOX, False)), detections, library=library)
    assert evaluation.map == 0
    assert evaluation.per_class == {"four": 0}


@pytest.mark.parametrize("detections", [SplitDetections.of([]), detected((4, BOX, 0.9))])
@libraries
def test_a_split_without_boxes_has_no_numbers_and_map_0(
    detections: SplitDetections, library: MetricLibrary
) -> None:
    evaluation = coco_metric(one_image(), detections, library=library)
    assert evaluation.map == 0
    assert all(math.isnan(value) for value in evaluation.summary.values())
    assert evaluation.per_class == {}


@libraries
def test_a_split_of_crowds_alone_has_no_numbers(library: MetricLibrary) -> None:
    evaluation = coco_metric(one_image((4, BOX, True)), detected((4, BOX, 0.9)), library=library)
    assert math.isnan(evaluation.summary["map"]) and evaluation.map == 0


@libraries
def test_classes_keep_their_names_where_ids_are_not_in_order(library: MetricLibrary) -> None:
    truth = one_image((9, BOX, False), (4, FAR, False))
    evaluation = coco_metric(truth, detected((9, BOX, 0.9)), library=library)
    assert evaluation.per_class == {"nine": pytest.approx(1), "four": 0}
    assert list(evaluation.per_class) == ["nine", "four"]
    assert evaluation.map == pytest.approx(0.5)


@libraries
def test_detections_within_a_crowd_cost_nothing_and_elsewhere_they_do(
    library: MetricLibrary,
) -> None:
    truth = one_image((4, BOX, False), (4, FAR, True))
    inside = (110.0, 110.0, 130.0, 130.0)
    elsewhere = (10.0, 120.0, 40.0, 150.0)
    harmless = coco_metric(truth, detected((4, inside, 0.99), (4, BOX, 0.5)), library=library)
    assert harmless.map == pytest.approx(1)
    wrong = coco_metric(truth, detected((4, elsewhere, 0.99), (4, BOX, 0.5)), library=library)
    assert wrong.map == pytest.approx(0.5)


@libraries
def test_a_box_at_iou_065_counts_at_four_of_ten_thresholds(library: MetricLibrary) -> None:
    # 40×26.2 of 40×40: IoU 0.655, above 0.50, 0.55, 0.60 and 0.65
    found = detected((4, (10.0, 10.0, 50.0, 36.2), 0.9))
    evaluation = coco_metric(one_image((4, BOX, False)), found, library=library)
    assert evaluation.map == pytest.approx(0.4)
    assert evaluation.summary["map_50"] == pytest.approx(1)
    assert evaluation.summary["map_75"] == 0
