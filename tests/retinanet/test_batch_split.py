from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InputError
from retinanet.config import config_to_tree
from retinanet.config_file import config_from_tree, load_config
from retinanet.config_types import (
    BatchSplit,
    describe_split,
    largest_batch,
    planned_split,
    split_at_start,
    split_by_speed,
)


def slowest(split: tuple[int, ...], speeds: list[float]) -> float:
    return max(images / speed for images, speed in zip(split, speeds, strict=True))


@given(
    speeds=st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=4),
    more=st.integers(min_value=0, max_value=6),
    limits=st.lists(st.integers(min_value=1, max_value=10), min_size=4, max_size=4),
)
def test_no_other_split_has_a_slowest_rank_that_is_done_earlier(
    speeds: list[float], more: int, limits: list[int]
) -> None:
    ranks = len(speeds)
    images, most = ranks + more, limits[:ranks]
    if sum(most) < images:
        most = []
    found = split_by_speed(speeds, images=images, most=most)
    counts = [range(1, one + 1) for one in most or [images] * ranks]
    assert sum(found) == images and all(map(range.__contains__, counts, found))
    every = (split for split in product(*counts) if sum(split) == images)
    assert slowest(found, speeds) == min(slowest(split, speeds) for split in every)


@pytest.mark.parametrize(
    ("speeds", "images", "split"),
    [
        ([2.0, 1.0], 16, (11, 5)),
        ([1.0, 1.0, 1.0], 6, (2, 2, 2)),
        ([2.0, 2.05], 16, (8, 8)),
        ([100.0, 1.0], 4, (3, 1)),
        ([3.0, 1.0, 2.0], 12, (6, 2, 4)),
    ],
)
def test_images_follow_speed_and_nobody_is_left_without(
    speeds: list[float], images: int, split: tuple[int, ...]
) -> None:
    assert split_by_speed(speeds, images=images) == split


def test_what_a_rank_has_no_memory_for_goes_to_the_others() -> None:
    assert split_by_speed([3.0, 1.0], images=8, most=[5, 8]) == (5, 3)


@pytest.mark.parametrize("split", ["even", "speed"])
def test_without_a_list_batches_begin_even(split: BatchSplit) -> None:
    assert split_at_start(split, batch_size=3, ranks=4) == (3, 3, 3, 3)
    assert largest_batch(split, batch_size=3) == 3


def test_a_list_that_fits_is_the_split() -> None:
    assert split_at_start((3, 1), batch_size=2, ranks=2) == (3, 1)
    assert largest_batch((1, 3), batch_size=2) == 3


@pytest.mark.parametrize(
    ("split", "ranks", "expected"),
    [
        ((3, 2), 2, "expected 2 numbers with the sum 4 (ranks × training.batch_size=2)"),
        ((3, 1), 3, "expected 3 numbers with the sum 6 (ranks × training.batch_size=2)"),
        ((3, 1), 1, "expected 1 number with the sum 2 (ranks × training.batch_size=2)"),
    ],
)
def test_a_list_of_other_ranks_or_another_batch_is_refused_with_what_fits(
    split: tuple[int, ...], ranks: int, expected: str
) -> None:
    with pytest.raises(InputError) as error:
        split_at_start(split, batch_size=2, ranks=ranks)
    message = f"distributed.batch_split: {expected}, even or speed, found {list(split)}"
    assert str(error.value) == message


@pytest.mark.parametrize("value", ["[0, 2]", "[-1, 3]", "[1.5, 1]", "[true, 1]", "[]", "3", "fast"])
def test_what_is_no_split_is_told_what_may_be(value: str) -> None:
    with pytest.raises(InputError) as error:
        load_config("demo.yaml", [f"distributed.batch_split={value}"])
    expected = "input should be even, speed, or the images of each rank, such as [3, 1]"
    assert f"command line: distributed.batch_split: {expected}, found " in str(error.value)


@pytest.mark.parametrize("value", ["even", "speed", "[3, 1]"])
def test_a_split_is_the_same_after_it_was_kept_with_the_configuration(value: str) -> None:
    config = load_config("demo.yaml", [f"distributed.batch_split={value}"])
    assert config_from_tree(config_to_tree(config), source="kept") == config
    expected = (3, 1) if value == "[3, 1]" else value
    assert config.distributed.batch_split == expected


@pytest.mark.parametrize(
    ("images", "speeds", "words"),
    [
        ((3, 1), (), "3 images on rank 0, 1 on rank 1"),
        ((1, 3), (), "1 image on rank 0, 3 on rank 1"),
        ((2, 2, 2), (), "2 images on ranks 0-2"),
        ((3, 1), (2.1, 0.7), "3 images on rank 0, 1 on rank 1, by measured speed 2.10 and 0.70 "),
        (
            (1, 3, 1, 3),
            (0.68, 2.1, 0.711, 2.1),
            "1 image on ranks 0,2, 3 on ranks 1,3, by measured speed 0.68–0.71 and 2.10 ",
        ),
    ],
)
def test_ranks_with_as_many_images_are_told_together(
    images: tuple[int, ...], speeds: tuple[float, ...], words: str
) -> None:
    assert describe_split(images, speeds) == words + ("images/s" if speeds else "")


def test_a_plan_tells_only_what_is_not_even() -> None:
    def planned(split: BatchSplit, *, batch_size: int = 2, ranks: int = 2) -> str:
        return planned_split(split, batch_size=batch_size, ranks=ranks)

    assert planned("even") == planned((2, 2)) == planned("speed", ranks=1) == ""
    assert planned("speed", batch_size=1) == ""
    assert planned((3, 1)) == "3 images on rank 0, 1 on rank 1"
    assert planned("speed").startswith("4 images, split by the speed of each rank")
