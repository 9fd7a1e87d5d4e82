import itertools
from collections.abc import Iterator

import pytest

from data.dataset import SampleKey
from data.loader import EvaluationBatches, TrainingBatches, training_keys


def indices(batches: list[list[SampleKey]]) -> list[int]:
    return [key.index for batch in batches for key in batch]


def epoch_of(
    epoch: int, *, num_images: int = 23, seed: int = 5, first: int = 0
) -> list[list[SampleKey]]:
    keys = training_keys(num_images, seed=seed, epoch=epoch, batch_size=4, first=first)
    return list(keys)


def test_an_epoch_has_whole_batches_of_different_images() -> None:
    batches = epoch_of(0)
    assert [len(batch) for batch in batches] == [4] * 5
    assert len(set(indices(batches))) == 20 and set(indices(batches)) <= set(range(23))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    assert epoch_of(3) == epoch_of(3)
    orders = [indices(epoch_of(e, seed=s)) for e, s in itertools.product(range(3), range(3))]
    assert len({tuple(order) for order in orders}) == 9


def test_every_key_has_its_own_seed_even_for_the_same_image() -> None:
    seeds = [key.seed for epoch in range(4) for batch in epoch_of(epoch) for key in batch]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("step", [0, 1, 4, 5])
def test_resuming_gives_exactly_the_remaining_batches(step: int) -> None:
    assert epoch_of(2, first=4 * step) == epoch_of(2)[step:]
    batches = TrainingBatches(23, batch_size=4, seed=5)
    batches.set_position(2, 4 * step)
    assert list(batches) == epoch_of(2)[step:]
    assert len(batches) == 5


def test_a_position_set_after_iteration_began_counts_from_the_next() -> None:
    batches = TrainingBatches(23, batch_size=4, seed=5)
    iterator = iter(batches)
    batches.set_position(7, 12)
    assert list(iterator) == epoch_of(0)
    assert list(batches) == epoch_of(7)[3:]


def test_fewer_images_than_a_batch_are_repeated() -> None:
    batches = TrainingBatches(3, batch_size=8, seed=0)
    (batch,) = list(batches)
    assert len(batches) == 1 and len(batch) == 8
    counts = [indices([batch]).count(index) for index in range(3)]
    assert sorted(counts) == [2, 3, 3]
    assert len({key.seed for key in batch}) == 8


@pytest.mark.parametrize(("num_images", "ranks"), [(23, 2), (23, 3), (5, 4), (64, 4)])
def test_ranks_take_equal_steps_of_one_common_order(num_images: int, ranks: int) -> None:
    parts = [
        list(TrainingBatches(num_images, batch_size=4, seed=9, rank=rank, ranks=ranks))
        for rank in range(ranks)
    ]
    whole = list(TrainingBatches(num_images, batch_size=4 * ranks, seed=9))
    assert {len(part) for part in parts} == {len(whole)}
    for step, batch in enumerate(whole):
        assert list(itertools.chain(*(part[step] for part in parts))) == batch


@pytest.mark.parametrize("first", [0, 8, 24, 60])
def test_another_number_of_ranks_goes_on_with_the_same_samples(first: int) -> None:
    """Images and their augmentation: what is left of the order, in the same order."""
    alone = TrainingBatches(64, batch_size=4, seed=9)
    three = [TrainingBatches(64, batch_size=4, seed=9, rank=rank, ranks=3) for rank in range(3)]
    for batches in (alone, *three):
        batches.set_position(1, first)
    left = list(itertools.chain(*alone))
    steps = list(zip(*three, strict=True))
    assert len(steps) == (64 - first) // 12
    read = list(itertools.chain(*itertools.chain(*steps)))
    assert read == left[: len(read)]


@pytest.mark.parametrize(("num_images", "sizes"), [(10, [4, 4, 2]), (8, [4, 4]), (1, [1])])
def test_evaluation_sees_each_image_exactly_once(num_images: int, sizes: list[int]) -> None:
    batches = EvaluationBatches(num_images, batch_size=4)
    read = list(batches)
    assert [len(batch) for batch in read] == sizes and len(batches) == len(sizes)
    assert indices(read) == list(range(num_images))


@pytest.mark.parametrize(("num_images", "ranks"), [(10, 3), (24781, 8), (2, 4), (16, 4)])
def test_ranks_evaluate_each_image_once_and_none_is_padded(num_images: int, ranks: int) -> None:
    parts = [
        EvaluationBatches(num_images, batch_size=4, rank=rank, ranks=ranks) for rank in range(ranks)
    ]
    read = [indices(list(part)) for part in parts]
    assert list(itertools.chain(*read)) == list(range(num_images))
    assert max(map(len, read)) - min(map(len, read)) <= 1
    assert [len(part) for part in parts] == [len(list(part)) for part in parts]


SPLITS = [(3, 1, 2), (1, 1, 4), (2, 2, 2)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("num_images", [23, 64, 4])
def test_however_a_batch_is_split_its_images_and_their_seeds_are_the_same(
    num_images: int, split: tuple[int, ...]
) -> None:
    shared = {"batch_size": 2, "seed": 9, "ranks": 3}
    even, parts = (
        [list(TrainingBatches(num_images, rank=rank, split=given, **shared)) for rank in range(3)]
        for given in ((), split)
    )
    assert [{len(batch) for batch in part} for part in parts] == [{count} for count in split]
    for batches, uneven in zip(zip(*even, strict=True), zip(*parts, strict=True), strict=True):
        assert list(itertools.chain(*uneven)) == list(itertools.chain(*batches))
    if split == (2, 2, 2):
        assert parts == even


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_that_is_set_later_counts_from_the_next_iteration(split: tuple[int, ...]) -> None:
    batches = TrainingBatches(24, batch_size=2, seed=9, rank=2, ranks=3)
    begun = iter(batches)
    batches.split = split
    batches.set_position(1, 12)
    expected = TrainingBatches(24, batch_size=2, seed=9, rank=2, ranks=3, split=split)
    expected.set_position(1, 12)
    assert list(batches) == list(expected) and len(batches) == 4
    assert {len(batch) for batch in begun} == {2}


@pytest.mark.parametrize("first", [0, 16])
@pytest.mark.parametrize("rank", [0, 1])
def test_chosen_batches_are_those_at_their_places_of_the_epoch(rank: int, first: int) -> None:
    batches = TrainingBatches(67, batch_size=4, seed=9, rank=rank, ranks=2)
    batches.set_position(3, first)
    keys = training_keys(67, seed=9, epoch=3, batch_size=4, first=first, rank=rank, ranks=2)
    expected = list(keys)
    batches.chosen = iter([4, 0, 5])
    assert list(batches) == [expected[number] for number in (4, 0, 5)]
    batches.chosen = range(len(expected))
    assert list(batches) == expected
    batches.chosen = None
    assert list(batches) == expected


def test_of_fewer_images_than_a_batch_the_only_one_is_chosen_as_it_is_read() -> None:
    batches = TrainingBatches(3, batch_size=4, seed=0, rank=1, ranks=2)
    expected = list(batches)
    batches.chosen = (0,)
    assert list(batches) == expected and len(expected) == 1


def test_a_batch_is_chosen_when_it_is_read_and_not_before() -> None:
    batches = TrainingBatches(67, batch_size=4, seed=9)
    asked = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            asked.append(number)
            yield number

    batches.chosen = numbers()
    stream = iter(batches)
    assert asked == []
    next(stream)
    assert asked == [0]


@pytest.mark.parametrize(("num_images", "ranks"), [(10, 3), (4, 1)])
def test_evaluation_is_shared_anew_among_those_that_are_left(num_images: int, ranks: int) -> None:
    parts = [EvaluationBatches(num_images, batch_size=4, rank=rank, ranks=4) for rank in (0, 2, 3)]
    left = parts[:ranks]
    for rank, part in enumerate(left):
        part.share(rank=rank, ranks=ranks)
    assert indices([batch for part in left for batch in part]) == list(range(num_images))
    assert [len(part) for part in left] == [len(list(part)) for part in left]
