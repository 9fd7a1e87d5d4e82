"""A queue of batches in a real store; the ranks are threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from retinanet.training.async_groups.epoch import BatchQueue, queued_batches


def connect(port: int = 0) -> dist.TCPStore:
    """Start a store, or connect to the one at a port, as each rank does."""
    timeout = timedelta(seconds=20)
    return dist.TCPStore(
        "127.0.0.1", port, is_master=not port, wait_for_workers=False, timeout=timeout
    )


@pytest.fixture(scope="module")
def server() -> dist.TCPStore:
    """One store for all tests: a new one may wait five seconds for itself."""
    return connect()


class Store(NamedTuple):
    """The keys of one test in the store."""

    port: int
    name: str

    def connected(self) -> dist.Store:
        """Connect, as each rank does."""
        return dist.PrefixStore(self.name, connect(self.port))


@pytest.fixture
def store(server: dist.TCPStore, request: pytest.FixtureRequest) -> Store:
    return Store(server.port, request.node.name)


def make_queues(
    store: Store, *, groups: int, group_size: int = 1, steps: int = 10**6
) -> list[list[BatchQueue]]:
    """Return the queues of all ranks by group, each with a connection of its own."""

    def queue(group: int) -> BatchQueue:
        connection = store.connected()
        return BatchQueue(connection, stretch=1, steps=steps, group=group, group_size=group_size)

    return [[queue(group) for _ in range(group_size)] for group in range(groups)]


def on_all(queues: list[list[BatchQueue]], act: Callable[[BatchQueue], Any]) -> list[list[Any]]:
    """Run an action on all ranks at the same time; return their results."""
    together = threading.Barrier(sum(map(len, queues)), timeout=20)

    def begin(queue: BatchQueue) -> Any:
        together.wait()
        return act(queue)

    with ThreadPoolExecutor(together.parties) as pool:
        futures = [[pool.submit(begin, queue) for queue in group] for group in queues]
        return [[future.result(timeout=60) for future in group] for group in futures]


def take_all(queue: BatchQueue) -> list[int]:
    numbers: list[int] = []
    while (number := queue.take(len(numbers))) is not None:
        numbers.append(number)
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "group_size"), [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_every_step_goes_to_one_group_and_all_its_ranks_in_order(
    store: Store, groups: int, group_size: int
) -> None:
    queues = make_queues(store, groups=groups, group_size=group_size, steps=60)
    taken = on_all(queues, take_all)
    for ranks, views in zip(taken, queues, strict=True):
        assert all(numbers == ranks[0] for numbers in ranks)
        assert all(view.taken == ranks[0] and view.is_over for view in views)
        assert ranks[0] == sorted(ranks[0])
    assert sorted(number for ranks in taken for number in ranks[0]) == list(range(60))


def test_queue_is_empty_after_its_end(store: Store) -> None:
    [[queue], [other]] = make_queues(store, groups=2, steps=2)
    assert take_all(queue) == [0, 1]
    assert [queue.take(2), queue.take(2), other.take(0), other.take(0)] == [None] * 4
    assert [queue.take(0), queue.take(1)] == [0, 1]  # earlier steps remain
    assert queue.is_over and other.is_over and other.taken == []


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [1, 2])
def test_closed_queue_gives_no_more_steps_and_omits_none(store: Store, group_size: int) -> None:
    queues = make_queues(store, groups=2, group_size=group_size)

    def take_until_closed(queue: BatchQueue) -> list[int]:
        numbers: list[int] = []
        while (number := queue.take(len(numbers))) is not None:
            numbers.append(number)
            if number >= 30:  # several ranks do
                queue.close()
        return numbers

    results = on_all(queues, take_until_closed)
    assert all(numbers == ranks[0] for ranks in results for numbers in ranks)
    taken = sorted(number for ranks in results for number in ranks[0])
    assert taken == list(range(len(taken))) and 31 <= len(taken) < 60


def test_next_stretch_starts_at_zero(store: Store) -> None:
    connection = store.connected()
    first, second = (
        BatchQueue(connection, stretch=stretch, steps=stretch + 1, group=0, group_size=1)
        for stretch in (1, 2)
    )
    assert take_all(first) == [0, 1]
    first.close()
    assert take_all(second) == [0, 1, 2]


@pytest.mark.exhaustive
def test_store_does_not_grow_with_steps(store: Store, server: dist.TCPStore) -> None:
    [ranks] = make_queues(store, groups=1, group_size=2, steps=20)
    before = server.num_keys()
    on_all([ranks], take_all)
    assert server.num_keys() <= before + 1  # the count alone


def test_batches_of_a_step_are_consecutive(store: Store) -> None:
    [[queue], [other]] = make_queues(store, groups=2, steps=4)
    stream = queued_batches(queue, first=0, batches_a_step=3)
    assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]  # it has taken step 1, too
    assert list(queued_batches(other, first=0, batches_a_step=3)) == [6, 7, 8, 9, 10, 11]
    assert list(stream) == [4, 5]


def test_untrained_steps_are_repeated(store: Store) -> None:
    [[queue]] = make_queues(store, groups=1, steps=5)
    ahead = queued_batches(queue, first=0, batches_a_step=2)
    for _ in range(7):
        next(ahead)
    assert list(queued_batches(queue, first=1, batches_a_step=2)) == [2, 3, 4, 5, 6, 7, 8, 9]
