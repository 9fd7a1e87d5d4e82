"""Curves and thresholds: small cases by hand, and the tables of pycocotools."""

import numpy as np
import pytest

from retinanet.evaluation.matching import PARAMETERS
from retinanet.evaluation.metric import coco_metric, split_tables
from retinanet.report.curves import (
    class_curves,
    class_thresholds,
    joint_curve,
    make_curve,
    round_between,
)
from tests.retinanet.report.samples import CAT, DOG, counts_at, predictions, random_split, split

LEFT, RIGHT = (0, 0, 50, 50), (100, 0, 150, 50)


def test_counts_at_each_score_and_the_best_threshold() -> None:
    truth = split([(CAT, LEFT), (CAT, RIGHT)], [(CAT, LEFT)])
    found = predictions(
        [(CAT, LEFT, 0.9), (CAT, (20, 60, 40, 90), 0.6), (CAT, RIGHT, 0.5)],
        [(CAT, (100, 50, 120, 90), 0.3)],
    )
    curve = class_curves(truth, found)[0]
    assert curve.true_boxes == 3
    assert curve.scores == pytest.approx([0.9, 0.6, 0.5, 0.3])
    assert curve.true_positives.tolist() == [1, 1, 2, 2]
    assert curve.false_positives.tolist() == [0, 1, 1, 2]
    assert curve.precision.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert curve.recall.tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert curve.f1.tolist() == pytest.approx([1 / 2, 2 / 5, 2 / 3, 4 / 7])
    assert curve.best is not None
    assert curve.best.threshold == 0.4  # In the middle between 0.5 and 0.3
    assert (curve.best.precision, curve.best.recall) == pytest.approx((2 / 3, 2 / 3))
    assert (curve.best.true_positives, curve.best.false_positives) == counts_at(curve, 0.4)


def test_equal_scores_are_kept_or_dropped_together() -> None:
    right = np.array([False, True, True])
    curve = make_curve(np.array([0.5, 0.5, 0.2]), right, ~right, true_boxes=2)
    assert (curve.scores.tolist(), curve.true_positives.tolist()) == ([0.5, 0.2], [1, 2])
    assert curve.false_positives.tolist() == [1, 1]


def test_crowd_and_what_is_on_it_do_not_count() -> None:
    truth = split([(DOG, LEFT), (DOG, (100, 0, 200, 100), True)])
    found = predictions([(DOG, LEFT, 0.9), (DOG, RIGHT, 0.8), (DOG, (0, 60, 20, 90), 0.7)])
    curve = class_curves(truth, found)[1]
    assert (curve.true_boxes, curve.scores.tolist()) == (1, pytest.approx([0.9, 0.7]))
    assert curve.false_positives.tolist() == [0, 1]


def test_class_without_right_boxes_has_no_best_threshold() -> None:
    truth = split([(CAT, LEFT)])
    curves = class_curves(truth, predictions([(CAT, RIGHT, 0.9), (DOG, RIGHT, 0.9)]))
    assert [curve.best for curve in curves] == [None] * 3
    assert class_thresholds(curves, default=0.3).tolist() == [0.3] * 3
    assert joint_curve(curves).best is None


@pytest.mark.parametrize(
    ("below", "score", "number"),
    [
        (0.31, 0.52, 0.42),
        (0.4, 0.6, 0.5),
        (0.421, 0.424, 0.422),
        (0.05, 0.9, 0.48),
        (0.5, np.nextafter(0.5, 1), np.nextafter(0.5, 1)),  # Nothing lies between
    ],
)
def test_threshold_has_few_digits_and_separates(below: float, score: float, number: float) -> None:
    assert round_between(below, score) == pytest.approx(number, abs=1e-15)
    assert below < round_between(below, score) <= score


@pytest.mark.parametrize("seed", range(4))
def test_precision_recall_and_ap_are_those_of_pycocotools(seed: int) -> None:
    """With distinct scores: of equal ones COCO's metric takes one by one, the curve all at once."""
    truth, found = random_split(seed=seed, images=60)
    found.scores[:] = np.random.default_rng(0).permutation(len(found)) / len(found)
    tables = split_tables(truth, found)
    results = coco_metric(truth, found, library="pycocotools").classes
    columns = np.argsort(np.argsort(truth.category_ids))
    for curve, column, result in zip(class_curves(truth, found), columns, results, strict=True):
        assert curve.recall[-1] == pytest.approx(tables.recall[0, column, 0, 2], abs=1e-12)
        highest = np.maximum.accumulate(curve.precision[::-1])[::-1]
        places = np.searchsorted(curve.recall, PARAMETERS.recThrs)
        ours = np.append(highest, 0.0)[places]
        assert ours == pytest.approx(tables.precision[0, :, column, 0, 2], abs=1e-12)
        assert ours.mean() == pytest.approx(result.map_50, abs=1e-12)
        assert 0 < result.map_50 < 1


def test_joint_curve_counts_all_classes_at_each_score() -> None:
    truth, found = random_split(seed=3)
    curves = class_curves(truth, found)
    joint = joint_curve(curves)
    assert joint.true_boxes == int((~truth.box_is_crowd).sum())
    for score in (0.2, 0.5, 0.75):
        rows = [counts_at(curve, score) for curve in curves]
        assert counts_at(joint, score) == tuple(map(sum, zip(*rows, strict=True)))
    assert joint.best is not None
    assert joint.best.f1 == pytest.approx(joint.f1.max())
