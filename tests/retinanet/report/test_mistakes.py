"""Confusion matrix and mistakes: small cases by hand, and COCO's counts."""

from collections import Counter

import numpy as np
import pytest

from retinanet.report.curves import class_curves, class_thresholds
from retinanet.report.mistakes import (
    ConfusedPair,
    ImageResult,
    Kind,
    Mistakes,
    confused_pairs,
    find_mistakes,
)
from tests.retinanet.report.samples import (
    BUS,
    CAT,
    DOG,
    Predicted,
    True_,
    predictions,
    random_split,
    reordered,
    split,
    without_ties,
)

LEFT, RIGHT = (0, 0, 50, 50), (100, 0, 150, 50)
ALL = np.zeros(3)
"""Thresholds that drop no box."""


def one_image(truth: list[True_], found: list[Predicted]) -> Mistakes:
    return find_mistakes(split(truth), predictions(found), ALL, images=5)


def only_result(mistakes: Mistakes) -> ImageResult:
    (result,) = mistakes.worst
    return result


def test_right_box_is_on_the_diagonal() -> None:
    mistakes = one_image([(DOG, LEFT)], [(DOG, (0, 0, 50, 40), 0.9)])
    assert mistakes.matrix.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (mistakes.right, mistakes.worst, mistakes.images_with_mistakes) == (1, (), 0)


def test_false_positive_is_in_the_last_row() -> None:
    mistakes = one_image([], [(BUS, LEFT, 0.9)])
    assert mistakes.matrix.tolist() == [[0] * 4, [0] * 4, [0] * 4, [0, 0, 1, 0]]
    assert (mistakes.false_positives, mistakes.kinds[Kind.BACKGROUND]) == (1, 1)


def test_missed_box_is_in_the_last_column() -> None:
    mistakes = one_image([(CAT, LEFT)], [])
    assert mistakes.matrix.tolist() == [[0, 0, 0, 1], [0] * 4, [0] * 4, [0] * 4]
    assert (mistakes.missed, only_result(mistakes).is_missed.tolist()) == (1, [True])


def test_swap_is_at_true_row_and_predicted_column() -> None:
    mistakes = one_image([(CAT, LEFT)], [(DOG, LEFT, 0.9)])
    assert mistakes.matrix.tolist() == [[0, 1, 0, 0], [0] * 4, [0] * 4, [0] * 4]
    assert (mistakes.swaps, mistakes.missed, mistakes.false_positives) == (1, 0, 0)


def test_own_class_comes_before_a_surer_box_of_another() -> None:
    mistakes = one_image([(CAT, LEFT)], [(DOG, LEFT, 0.9), (CAT, LEFT, 0.2)])
    assert mistakes.matrix.tolist() == [[1, 0, 0, 0], [0] * 4, [0] * 4, [0, 1, 0, 0]]
    assert only_result(mistakes).kinds == (Kind.DUPLICATE, Kind.RIGHT)


def test_second_box_of_an_object_is_a_false_positive() -> None:
    mistakes = one_image([(CAT, LEFT)], [(CAT, (0, 0, 50, 45), 0.5), (CAT, (0, 0, 50, 48), 0.9)])
    assert mistakes.matrix.tolist() == [[1, 0, 0, 0], [0] * 4, [0] * 4, [1, 0, 0, 0]]
    result = only_result(mistakes)
    assert result.detections.scores.tolist() == pytest.approx([0.9, 0.5])
    assert result.kinds == (Kind.RIGHT, Kind.DUPLICATE)


def test_box_too_far_off_is_both_missed_and_false() -> None:
    mistakes = one_image([(CAT, LEFT)], [(CAT, (25, 0, 75, 50), 0.9)])  # IoU 1/3
    assert (mistakes.matrix[0, 3], mistakes.matrix[3, 0]) == (1, 1)
    assert only_result(mistakes).kinds == (Kind.MISPLACED,)
    assert only_result(mistakes).mistakes == 2


def test_box_near_an_object_of_another_class_has_nothing_there() -> None:
    mistakes = one_image([(CAT, LEFT)], [(DOG, (25, 0, 75, 50), 0.9)])
    assert only_result(mistakes).kinds == (Kind.BACKGROUND,)


def test_crowd_is_neither_missed_nor_found() -> None:
    crowd: True_ = (CAT, (100, 0, 200, 100), True)
    found: list[Predicted] = [(CAT, RIGHT, 0.9), (CAT, (150, 50, 190, 90), 0.8)]
    mistakes = one_image([crowd], found)
    assert (mistakes.matrix.sum(), mistakes.kinds[Kind.IGNORED], mistakes.worst) == (0, 2, ())
    other = one_image([crowd], [(DOG, RIGHT, 0.9)])  # As in COCO's metric
    assert other.matrix[3].tolist() == [0, 1, 0, 0]


def test_single_object_comes_before_the_crowd_around_it() -> None:
    truth: list[True_] = [(CAT, (90, 0, 200, 100), True), (CAT, RIGHT)]
    mistakes = one_image(truth, [(CAT, RIGHT, 0.9)])
    assert (mistakes.right, mistakes.kinds[Kind.IGNORED], mistakes.missed) == (1, 0, 0)


def test_boxes_below_the_threshold_of_their_class_are_dropped() -> None:
    truth = split([(CAT, LEFT), (DOG, RIGHT)])
    found = predictions([(CAT, LEFT, 0.5), (DOG, RIGHT, 0.5)])
    mistakes = find_mistakes(truth, found, np.array([0.4, 0.6, 0]), images=5)
    assert (mistakes.right, mistakes.matrix[1, 3]) == (1, 1)


def test_best_overlap_wins_not_the_first_box() -> None:
    truth: list[True_] = [(CAT, (0, 0, 50, 30)), (CAT, LEFT)]
    result = only_result(one_image(truth, [(CAT, LEFT, 0.9)]))
    assert (result.partners.tolist(), result.is_missed.tolist()) == ([1], [True, False])


def test_only_a_hundred_boxes_of_a_class_count_in_an_image() -> None:
    found: list[Predicted] = [(CAT, LEFT, 0.9 - number / 1000) for number in range(110)]
    mistakes = one_image([], [*found, (DOG, LEFT, 0.1)])
    assert mistakes.matrix[3].tolist() == [100, 1, 0, 0]


def test_worst_images_come_first() -> None:
    truth = split([(CAT, LEFT)], [], [(CAT, LEFT)], [(CAT, LEFT), (DOG, RIGHT)])
    found = predictions([(CAT, LEFT, 0.9)], [(CAT, LEFT, 0.2)], [(DOG, LEFT, 0.8)], [])
    mistakes = find_mistakes(truth, found, ALL, images=2)
    assert [result.index for result in mistakes.worst] == [3, 2]
    assert mistakes.images_with_mistakes == 3


def test_confused_pairs_are_sorted_by_boxes() -> None:
    matrix = np.array([[8, 2, 0, 0], [5, 5, 0, 0], [0, 2, 0, 0], [9, 9, 9, 0]])
    assert confused_pairs(matrix) == [
        ConfusedPair(true_class=1, predicted_class=0, boxes=5, share=0.5),
        ConfusedPair(true_class=2, predicted_class=1, boxes=2, share=1.0),
        ConfusedPair(true_class=0, predicted_class=1, boxes=2, share=0.2),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_cocos_matching(seed: int) -> None:
    truth, found = random_split(seed=seed)
    curves = class_curves(truth, found)
    for thresholds in (np.zeros(4), class_thresholds(curves, default=0.5), np.full(4, 0.6)):
        mistakes = find_mistakes(truth, found, thresholds, images=3)
        points = [item.curve.at(t) for item, t in zip(curves, thresholds, strict=True)]
        assert np.diag(mistakes.matrix)[:-1].tolist() == [p.true_positives for p in points]
        # All boxes of a column that are not right are false positives of COCO's metric.
        wrong = mistakes.matrix.sum(axis=0)[:-1] - np.diag(mistakes.matrix)[:-1]
        assert wrong.tolist() == [p.false_positives for p in points]
        assert mistakes.matrix[:-1].sum(axis=1).tolist() == [c.curve.true_boxes for c in curves]
        assert (
            mistakes.matrix.sum()
            == sum(mistakes.kinds.values()) + mistakes.missed - (mistakes.kinds[Kind.IGNORED])
        )
        assert mistakes.swaps == mistakes.matrix[:-1, :-1].sum() - mistakes.right
    assert mistakes.swaps and mistakes.missed and mistakes.kinds[Kind.IGNORED]


@pytest.mark.parametrize("seed", range(6))
def test_order_of_images_categories_and_boxes_changes_nothing(seed: int) -> None:
    """COCO's own files do not list images by id."""
    truth, found = without_ties(*random_split(seed=seed), seed=seed)
    other_truth, other_found = reordered(truth, found, seed=seed)
    by_id = np.argsort(truth.category_ids), np.argsort(other_truth.category_ids)
    first, second = (
        find_mistakes(t, f, np.full(4, 0.2), images=30)
        for t, f in ((truth, found), (other_truth, other_found))
    )
    assert first.kinds == second.kinds and first.images_with_mistakes
    for mistakes, order in zip((first, second), by_id, strict=True):
        with_rest = np.append(order, len(order))
        mistakes.matrix[:] = mistakes.matrix[np.ix_(with_rest, with_rest)]
    assert first.matrix.tolist() == second.matrix.tolist()
    counts = [
        {r.detections.image_id: (Counter(r.kinds), r.missed) for r in mistakes.worst}
        for mistakes in (first, second)
    ]
    assert counts[0] == counts[1]


def test_a_hundred_boxes_count_in_each_image_whatever_their_order() -> None:
    box = (10.0, 10.0, 30.0, 30.0)
    truth = split([(CAT, box)], [(CAT, box)], [(CAT, box)])
    found = predictions(*([(CAT, box, 0.5 - 0.001 * rank) for rank in range(60)] for _ in range(3)))
    for seed in range(3):
        mistakes = find_mistakes(*reordered(truth, found, seed=seed), np.zeros(3), images=3)
        assert mistakes.right == 3 and mistakes.kinds[Kind.DUPLICATE] == 3 * 59
