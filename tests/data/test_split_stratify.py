"""Iterative stratification of images by the classes that they show."""

from random import Random

import pytest

from data.convert import stratified_rows


def photos(*, images: int, classes: int, seed: int) -> list[frozenset[int]]:
    """Images with some common and many rare classes; some show nothing."""
    random = Random(seed)
    weights = [1 / (1 + one) for one in range(classes)]
    return [
        frozenset(random.choices(range(classes), weights, k=random.randint(0, 4)))
        for _ in range(images)
    ]


def images_of(classes: list[frozenset[int]], rows: set[int], one: int) -> tuple[int, int]:
    """How many images show a class: in all, and of these rows."""
    showing = {row for row, shown in enumerate(classes) if one in shown}
    return len(showing), len(showing & rows)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_each_class_has_its_share_on_both_sides(seed: int, share: float) -> None:
    classes = photos(images=1000, classes=40, seed=seed)
    count = round(share * 1000)
    rows = stratified_rows(classes, count=count, seed=seed)
    assert len(rows) == count
    for one in range(40):
        images, held_out = images_of(classes, rows, one)
        if images > 1:
            assert 1 <= held_out < images
        assert abs(held_out - images * share) <= max(1, 0.1 * images)


def test_two_images_of_a_class_go_to_both_sides() -> None:
    classes = [frozenset({row // 2}) for row in range(40)] + [frozenset[int]()] * 60
    rows = stratified_rows(classes, count=20, seed=0)
    assert all(len(rows & {row, row + 1}) == 1 for row in range(0, 40, 2))


def test_the_seed_alone_decides() -> None:
    classes = photos(images=200, classes=30, seed=0)
    draws = [stratified_rows(classes, count=40, seed=seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_sizes_are_exact_without_any_class(count: int) -> None:
    assert len(stratified_rows([frozenset[int]()] * 8, count=count, seed=0)) == count
