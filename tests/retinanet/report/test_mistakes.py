"""Confusion matrix and mistakes: small cases by hand, and COCO's counts."""

from collections import Counter

import numpy as np
import pytest

from retinanet.report.curves import class_curves, class_thresholds
from retinanet.report.mistakes import (
    ConfusedPair,
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
    counts_at,
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


NONE_ = 3  # row of false positives, column of missed boxes
CASES: dict[str, tuple[list[True_], list[Predicted], dict[tuple[int, int], int], list[Kind]]] = {
    "right": ([(DOG, LEFT)], [(DOG, (0, 0, 50, 40), 0.9)], {(1, 1): 1}, []),
    "false positive": ([], [(BUS, LEFT, 0.9)], {(NONE_, 2): 1}, [Kind.BACKGROUND]),
    "missed": ([(CAT, LEFT)], [], {(0, NONE_): 1}, []),
    "swap": ([(CAT, LEFT)], [(DOG, LEFT, 0.9)], {(0, 1): 1}, [Kind.SWAP]),
    "own class before a surer box of another": (
        [(CAT, LEFT)],
        [(DOG, LEFT, 0.9), (CAT, LEFT, 0.2)],
        {(0, 0): 1, (NONE_, 1): 1},
        [Kind.DUPLICATE, Kind.RIGHT],
    ),
    "second box of an object": (
        [(CAT, LEFT)],
        [(CAT, (0, 0, 50, 45), 0.5), (CAT, (0, 0, 50, 48), 0.9)],
        {(0, 0): 1, (NONE_, 0): 1},
        [Kind.RIGHT, Kind.DUPLICATE],
    ),
    "too far off, IoU 1/3": (
        [(CAT, LEFT)],
        [(CAT, (25, 0, 75, 50), 0.9)],
        {(0, NONE_): 1, (NONE_, 0): 1},
        [Kind.MISPLACED],
    ),
    "near an object of another class": (
        [(CAT, LEFT)],
        [(DOG, (25, 0, 75, 50), 0.9)],
        {(0, NONE_): 1, (NONE_, 1): 1},
        [Kind.BACKGROUND],
    ),
    "on a crowd": (
        [(CAT, (100, 0, 200, 100), True)],
        [(CAT, RIGHT, 0.9), (CAT, (150, 50, 190, 90), 0.8)],
        {},
        [],
    ),
    "on a crowd of another class, as in COCO's metric": (
        [(CAT, (100, 0, 200, 100), True)],
        [(DOG, RIGHT, 0.9)],
        {(NONE_, 1): 1},
        [Kind.BACKGROUND],
    ),
    "object before the crowd around it": (
        [(CAT, (90, 0, 200, 100), True), (CAT, RIGHT)],
        [(CAT, RIGHT, 0.9)],
        {(0, 0): 1},
        [],
    ),
    "a hundred boxes of a class": (
        [],
        [*((CAT, LEFT, 0.9 - number / 1000) for number in range(110)), (DOG, LEFT, 0.1)],
        {(NONE_, 0): 100, (NONE_, 1): 1},
        [Kind.BACKGROUND] * 101,
    ),
}
"""True boxes, found boxes, the matrix without zeros, and the kinds if there is a mistake."""


@pytest.mark.parametrize("case", CASES)
def test_boxes_of_one_image(case: str) -> None:
    truth, found, matrix, kinds = CASES[case]
    mistakes = one_image(truth, found)
    cells = {(int(row), int(column)): int(mistakes.matrix[row, column])
             for row, column in np.argwhere(mistakes.matrix)}  # fmt: skip
    assert cells == matrix
    assert [kind for result in mistakes.worst for kind in result.kinds] == kinds
    assert mistakes.right == sum(cells.get((place, place), 0) for place in range(3))
    assert mistakes.missed == sum(cells.get((place, NONE_), 0) for place in range(3))
    wrong = sum(cells.get((NONE_, place), 0) for place in range(3))
    assert mistakes.false_positives == wrong
    assert mistakes.kinds[Kind.IGNORED] == (2 if case == "on a crowd" else 0)
    for result in mistakes.worst:
        assert result.mistakes == mistakes.missed + wrong + mistakes.swaps
        assert (np.diff(result.detections.scores) <= 0).all()


def test_boxes_below_the_threshold_of_their_class_are_dropped() -> None:
    truth = split([(CAT, LEFT), (DOG, RIGHT)])
    found = predictions([(CAT, LEFT, 0.5), (DOG, RIGHT, 0.5)])
    mistakes = find_mistakes(truth, found, np.array([0.4, 0.6, 0]), images=5)
    assert (mistakes.right, mistakes.matrix[1, 3]) == (1, 1)


def test_best_overlap_wins_not_the_first_box() -> None:
    (result,) = one_image([(CAT, (0, 0, 50, 30)), (CAT, LEFT)], [(CAT, LEFT, 0.9)]).worst
    assert (result.partners.tolist(), result.is_missed.tolist()) == ([1], [True, False])


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
        points = [counts_at(curve, t) for curve, t in zip(curves, thresholds, strict=True)]
        assert np.diag(mistakes.matrix)[:-1].tolist() == [right for right, _ in points]
        # All boxes of a column that are not right are false positives of COCO's metric.
        wrong = mistakes.matrix.sum(axis=0)[:-1] - np.diag(mistakes.matrix)[:-1]
        assert wrong.tolist() == [wrong for _, wrong in points]
        assert mistakes.matrix[:-1].sum(axis=1).tolist() == [c.true_boxes for c in curves]
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
