"""A queue of batches in a real store, which groups of ranks as threads take from."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from retinanet.training.async_groups.epoch import BatchQueue, batches_of


class Stores:
    """A server, and connections to it as ranks have."""

    def __init__(self) -> None:
        self.first = self._open(port=0, is_master=True)

    def _open(self, *, port: int, is_master: bool) -> dist.TCPStore:
        return dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=20),
        )

    def another(self) -> dist.TCPStore:
        return self._open(port=self.first.port, is_master=False)


@pytest.fixture
def stores() -> Stores:
    return Stores()


def queues_of(
    stores: Stores, *, groups: int, group_size: int = 1, steps: int = 10**6, stretch: int = 1
) -> list[list[BatchQueue]]:
    """Of each group, one for each of its ranks, each with a connection of its own."""
    return [
        [
            BatchQueue(
                stores.another(), stretch=stretch, steps=steps, group=group, group_size=group_size
            )
            for _ in range(group_size)
        ]
        for group in range(groups)
    ]


def on_all(queues: list[list[BatchQueue]], act: Callable[[BatchQueue], Any]) -> list[list[Any]]:
    """What each rank finds, all at the same time."""
    together = threading.Barrier(sum(map(len, queues)), timeout=20)

    def begin(queue: BatchQueue) -> Any:
        together.wait()
        return act(queue)

    with ThreadPoolExecutor(together.parties) as pool:
        found = [[pool.submit(begin, queue) for queue in group] for group in queues]
        return [[one.result(timeout=60) for one in group] for group in found]


def take_all(queue: BatchQueue) -> list[int]:
    numbers: list[int] = []
    while (number := queue.take(len(numbers))) is not None:
        numbers.append(number)
    return numbers


@pytest.mark.parametrize(("groups", "group_size"), [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_every_step_is_given_to_one_group_and_to_all_its_ranks_in_one_order(
    stores: Stores, groups: int, group_size: int
) -> None:
    queues = queues_of(stores, groups=groups, group_size=group_size, steps=60)
    found = on_all(queues, take_all)
    for ranks, views in zip(found, queues, strict=True):
        assert all(numbers == ranks[0] for numbers in ranks)
        assert all(view.taken == ranks[0] and view.is_over for view in views)
        assert ranks[0] == sorted(ranks[0])
    assert sorted(number for ranks in found for number in ranks[0]) == list(range(60))


def test_after_the_end_there_is_nothing_however_often_one_asks(stores: Stores) -> None:
    [[queue], [other]] = queues_of(stores, groups=2, steps=2)
    assert take_all(queue) == [0, 1]
    assert [queue.take(2), queue.take(2), other.take(0), other.take(0)] == [None] * 4
    assert [queue.take(0), queue.take(1)] == [0, 1]  # what was given stays so
    assert queue.is_over and other.is_over and other.taken == []


@pytest.mark.parametrize("group_size", [1, 2])
def test_once_anybody_has_closed_it_nobody_is_given_more_and_none_was_left_out(
    stores: Stores, group_size: int
) -> None:
    queues = queues_of(stores, groups=2, group_size=group_size)

    def take_until_closed(queue: BatchQueue) -> list[int]:
        numbers: list[int] = []
        while (number := queue.take(len(numbers))) is not None:
            numbers.append(number)
            if number >= 30:  # several ranks do
                queue.close()
        return numbers

    found = on_all(queues, take_until_closed)
    assert all(numbers == ranks[0] for ranks in found for numbers in ranks)
    taken = sorted(number for ranks in found for number in ranks[0])
    assert taken == list(range(len(taken))) and 31 <= len(taken) < 60


def test_a_stretch_that_follows_begins_anew(stores: Stores) -> None:
    first, second = (
        BatchQueue(stores.first, stretch=stretch, steps=stretch + 1, group=0, group_size=1)
        for stretch in (1, 2)
    )
    assert take_all(first) == [0, 1]
    first.close()
    assert take_all(second) == [0, 1, 2]


def test_ranks_of_a_group_leave_nothing_of_a_step_in_the_store(stores: Stores) -> None:
    [ranks] = queues_of(stores, groups=1, group_size=2, steps=20)
    before = stores.first.num_keys()
    on_all([ranks], take_all)
    assert stores.first.num_keys() <= before + 1  # the count alone


def numbers_of(queue: BatchQueue, *, first: int = 0, batches_a_step: int) -> Iterator[int]:
    return batches_of(queue, first=first, batches_a_step=batches_a_step)


def test_a_step_of_several_batches_has_those_beside_each_other(stores: Stores) -> None:
    [[queue], [other]] = queues_of(stores, groups=2, steps=4)
    stream = numbers_of(queue, batches_a_step=3)
    assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]  # it has taken step 1, too
    assert list(numbers_of(other, batches_a_step=3)) == [6, 7, 8, 9, 10, 11]
    assert list(stream) == [4, 5]


def test_steps_that_were_read_ahead_and_not_trained_come_again(stores: Stores) -> None:
    [[queue]] = queues_of(stores, groups=1, steps=5)
    ahead = numbers_of(queue, batches_a_step=2)
    for _ in range(7):
        next(ahead)
    assert list(numbers_of(queue, first=1, batches_a_step=2)) == [2, 3, 4, 5, 6, 7, 8, 9]
