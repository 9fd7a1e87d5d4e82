import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from data.annotations import Annotations
from data.coco_json import read_annotations
from profiling.bench.generated import generated_detections, generated_truth
from retinanet.config_types import MetricLibrary
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import METRICS, TABLES, Tables, coco_metric
from retinanet.evaluation.output import detections_as_json
from retinanet.report.curves import class_curves
from tests.retinanet.report.samples import (
    CAT,
    IDS,
    Box,
    True_,
    predictions,
    random_split,
    reordered,
    split,
    without_ties,
)

COCO128 = Path(__file__).resolve().parents[4] / "shared/data/coco128/annotations"
LABELS = COCO128 / "instances_train2017.json"

libraries = pytest.mark.parametrize("library", TABLES)
needs_photos = pytest.mark.skipif(not LABELS.is_file(), reason=f"{LABELS} is missing")


def write_truth(folder: Path) -> Path:
    """COCO128's labels with ids from 1, every ninth box a crowd, and a category without boxes."""
    content = json.loads(LABELS.read_text())
    for index, box in enumerate(content["annotations"]):
        box["id"] = index + 1
        box["iscrowd"] = int(index % 9 == 0)
        box.setdefault("area", box["bbox"][2] * box["bbox"][3])
    content["categories"].append({"id": 1000, "name": "category without boxes"})
    (folder / "truth.json").write_text(json.dumps(content))
    return folder / "truth.json"


def perturb(annotations: Annotations, *, seed: int) -> SplitDetections:
    """The true boxes, some missing, moved, duplicated or of another class, with random scores, some
    of which are equal.
    """
    random = np.random.default_rng(seed)
    detections = []
    for index, image_id in enumerate(annotations.image_ids.tolist()):
        if index % 20 == 7:
            continue  # no detections in this image
        rows = np.arange(len(annotations.boxes))[annotations.box_slice(index)]
        rows = np.repeat(rows[random.random(len(rows)) < 0.85], 2)
        boxes = annotations.boxes[rows]
        sides = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        boxes = boxes + sides * random.normal(0, 0.08, boxes.shape)
        is_other_class = random.random(len(rows)) < 0.1
        classes = random.choice(annotations.category_ids, len(rows))
        ids = np.where(is_other_class, classes, annotations.box_category_ids[rows])
        scores = np.sort(random.random(len(rows)).round(2))[::-1]
        detections.append(ImageDetections(image_id, boxes, scores.copy(), ids))
    return SplitDetections.from_images(detections)


def pycocotools_stats(truth: Path, results: Path, *, category: int | None = None) -> list[float]:
    """The twelve numbers that pycocotools computes from files."""
    with contextlib.redirect_stdout(io.StringIO()):
        annotations = COCO(str(truth))
        evaluation = COCOeval(annotations, annotations.loadRes(str(results)), iouType="bbox")
        if category is not None:
            evaluation.params.catIds = [category]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(value) for value in evaluation.stats]


class Scored(NamedTuple):
    annotations: Annotations
    detections: SplitDetections
    truth: Path
    results: Path


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    folder = tmp_path_factory.mktemp("scored")
    truth, results = write_truth(folder), folder / "results.json"
    annotations = read_annotations(truth)
    detections = perturb(annotations, seed=0)
    results.write_bytes(b"".join(detections_as_json(detections)))
    return Scored(annotations, detections, truth, results)


@needs_photos
@pytest.mark.slow
def test_metric_equals_pycocotools_on_files(scored: Scored) -> None:
    expected = pycocotools_stats(scored.truth, scored.results)
    for library in TABLES:
        evaluation = coco_metric(scored.annotations, scored.detections, library=library)
        assert list(evaluation.summary) == list(METRICS)
        assert list(evaluation.summary.values()) == pytest.approx(expected, abs=1e-12, rel=0)
        assert 0.1 < evaluation.map < 0.9  # neither trivial end
        assert evaluation.map == evaluation.summary["map"]


@needs_photos
@pytest.mark.slow
def test_metric_of_a_class_equals_pycocotools_on_that_class(scored: Scored) -> None:
    annotations = scored.annotations
    per_class = coco_metric(annotations, scored.detections).per_class
    ids = dict(zip(annotations.category_names, annotations.category_ids.tolist(), strict=True))
    measured = annotations.box_category_ids[~annotations.box_is_crowd]
    assert {ids[name] for name in per_class} == set(measured.tolist())
    for name in [*list(per_class)[::12], "person"]:
        alone = pycocotools_stats(scored.truth, scored.results, category=ids[name])[0]
        assert per_class[name] == pytest.approx(alone, abs=1e-12), name


def assert_equal_tables(annotations: Annotations, detections: SplitDetections) -> Tables:
    by_class, at_once = (TABLES[name](annotations, detections) for name in TABLES)
    np.testing.assert_array_equal(by_class.precision, at_once.precision)
    np.testing.assert_array_equal(by_class.recall, at_once.recall)
    return by_class


@needs_photos
@pytest.mark.slow
def test_both_libraries_have_equal_tables(scored: Scored) -> None:
    assert_equal_tables(scored.annotations, scored.detections)


def test_boxes_on_a_limit_of_areas_belong_to_both_sides() -> None:
    sides = [31, 32, 33, 95, 96, 97]
    boxes = [(100.0 * place, 0.0, 100.0 * place + side, side) for place, side in enumerate(sides)]
    annotations = split([(CAT, box) for box in boxes], [])
    for side in sides:  # found in the second image, where there is nothing
        wrong = boxes[sides.index(side)]
        found = predictions([(CAT, box, 0.5) for box in boxes], [(CAT, wrong, 1.0)])
        tables = assert_equal_tables(annotations, found)
        column = sorted(IDS).index(CAT)
        below, between, above = (tables.precision[0, 0, column, area, -1] < 1 for area in (1, 2, 3))
        assert (below, between, above) == (side <= 32, 32 <= side <= 96, side >= 96)


def test_more_than_100_boxes_of_a_class_per_image() -> None:
    random = np.random.default_rng(3)
    truth = generated_truth(images=40, random=random)
    truth = replace(truth, box_category_ids=truth.box_category_ids % 2 + 1)
    detections = generated_detections(truth, per_image=300, random=random)
    three_classes = detections.category_ids % 3 + 1  # one of them has no true box
    recall = assert_equal_tables(truth, replace(detections, category_ids=three_classes)).recall
    assert recall[0, 0, 0].tolist() == sorted(set(recall[0, 0, 0].tolist()))


@needs_photos
@pytest.mark.slow
def test_264_classes_in_any_order_equal_pycocotools(scored: Scored) -> None:
    random = np.random.default_rng(1)
    annotations = replace(
        scored.annotations,
        category_ids=random.permutation(np.arange(1, 265)),
        category_names=tuple(f"class {number}" for number in range(264)),
        box_category_ids=random.integers(1, 265, len(scored.annotations.boxes)),
    )
    detections = perturb(annotations, seed=1)
    ours, reference = (coco_metric(annotations, detections, library=name) for name in TABLES)
    assert len(ours.per_class) > 200 and 0.1 < ours.map < 0.9
    assert ours.summary == pytest.approx(reference.summary, rel=0, abs=1e-9)
    assert ours.per_class == pytest.approx(reference.per_class, rel=0, abs=1e-9)


FIRST_DATE = 20230405123456781
"""An image id as tools make it from a date and a time: above 2⁵³, where doubles skip integers."""


@libraries
def test_neighbouring_image_ids_beyond_double_precision(library: MetricLibrary) -> None:
    truth, found = random_split(seed=1)
    # Ids ascend with the old ones, since equal scores count in the order of ids.
    long_ids = replace(truth, image_ids=truth.image_ids - 10 + FIRST_DATE)
    moved = replace(found, image_ids=found.image_ids - 10 + FIRST_DATE)
    expected, result = (
        coco_metric(t, f, library=library) for t, f in ((truth, found), (long_ids, moved))
    )
    assert result.summary == expected.summary and 0 < result.map < 1


@libraries
@pytest.mark.parametrize("seed", range(3))
def test_order_of_images_categories_and_boxes_changes_no_number(
    library: MetricLibrary, seed: int
) -> None:
    first = without_ties(*random_split(seed=seed), seed=seed)
    second = reordered(*first, seed=seed)
    ours, others = (coco_metric(*split, library=library) for split in (first, second))
    assert others.summary == pytest.approx(ours.summary, rel=0, abs=1e-12, nan_ok=True)
    classes = [
        sorted(zip(evaluated.classes, class_curves(*split), strict=True),
               key=lambda pair: pair[0].category_id)
        for evaluated, split in ((ours, first), (others, second))
    ]  # fmt: skip
    for (one, curve), (other, other_curve) in zip(*classes, strict=True):
        assert one.name == other.name and one.found_boxes == other.found_boxes
        assert other.map == pytest.approx(one.map, rel=0, abs=1e-12, nan_ok=True)
        assert curve.scores.tolist() == other_curve.scores.tolist()
        assert curve.true_positives.tolist() == other_curve.true_positives.tolist()
    for image_id in first[0].image_ids.tolist():
        scores = [split[1].in_image(image_id).scores.tolist() for split in (first, second)]
        assert scores[0] == scores[1] == sorted(scores[0], reverse=True)


def one_image(*boxes: True_) -> Annotations:
    """One image; categories 9 and 4, in this order."""
    return split(boxes, names=("nine", "four"), ids=(9, 4))


BOX = (10.0, 10.0, 50.0, 50.0)
FAR = (100.0, 100.0, 150.0, 150.0)


NONE = SplitDetections.from_images([])


@pytest.mark.parametrize("detections", [NONE, predictions([])])
@libraries
def test_no_detections_have_map_0(detections: SplitDetections, library: MetricLibrary) -> None:
    evaluation = coco_metric(one_image((4, BOX, False)), detections, library=library)
    assert evaluation.map == 0 and evaluation.per_class == {"four": 0}


@pytest.mark.parametrize("detections", [NONE, predictions([(4, BOX, 0.9)])])
@pytest.mark.parametrize("truth", [one_image(), one_image((4, BOX, True))])
@libraries
def test_no_true_boxes_or_only_crowds_have_no_numbers(
    truth: Annotations, detections: SplitDetections, library: MetricLibrary
) -> None:
    evaluation = coco_metric(truth, detections, library=library)
    assert evaluation.map == 0 and evaluation.per_class == {}
    assert all(math.isnan(value) for value in evaluation.summary.values())


@libraries
def test_classes_keep_their_names_if_ids_do_not_ascend(library: MetricLibrary) -> None:
    truth = one_image((9, BOX, False), (4, FAR, False))
    evaluation = coco_metric(truth, predictions([(9, BOX, 0.9)]), library=library)
    assert evaluation.per_class == {"nine": pytest.approx(1), "four": 0}
    assert list(evaluation.per_class) == ["nine", "four"]
    assert evaluation.map == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("box", "map_value"),
    [((110.0, 110.0, 130.0, 130.0), 1), ((10.0, 120.0, 40.0, 150.0), 0.5)],
    ids=["in the crowd", "elsewhere"],
)
@libraries
def test_false_positives_in_a_crowd_do_not_count(
    box: Box, map_value: float, library: MetricLibrary
) -> None:
    truth = one_image((4, BOX, False), (4, FAR, True))
    detections = predictions([(4, box, 0.99), (4, BOX, 0.5)])
    assert coco_metric(truth, detections, library=library).map == pytest.approx(map_value)


@libraries
def test_box_with_iou_065_counts_at_four_of_ten_thresholds(library: MetricLibrary) -> None:
    # 40×26.2 of 40×40: IoU 0.655, above 0.50, 0.55, 0.60 and 0.65
    detections = predictions([(4, (10.0, 10.0, 50.0, 36.2), 0.9)])
    evaluation = coco_metric(one_image((4, BOX, False)), detections, library=library)
    assert evaluation.map == pytest.approx(0.4)
    assert evaluation.summary["map_50"] == pytest.approx(1)
    assert evaluation.summary["map_75"] == 0
