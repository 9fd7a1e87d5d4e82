"""Ranks as threads of one process: memory is shared between them as between processes."""

import math
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retinanet.engine.gradient_sync import SharedGradients, share_gradients

SIZES = (100_000, 1, 70_001)
"""Values of the parts of an exchange, none a multiple of anything."""


class Together:
    """What ranks as threads hear of each other."""

    def __init__(self, ranks: int) -> None:
        self.said: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)

    def gather_of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(value: Any) -> list[Any]:
            self.said[rank] = value
            self.barrier.wait()
            heard = list(self.said)
            self.barrier.wait()
            return heard

        return gather


def on_ranks(ranks: int, act: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(act, range(ranks)))


def shared_by(
    ranks: int, *, compress: bool, timeout_s: float = 20, values: int = sum(SIZES)
) -> list[SharedGradients]:
    together = Together(ranks)
    made = on_ranks(
        ranks,
        lambda rank: share_gradients(
            together.gather_of(rank),
            rank=rank,
            values=values,
            compress=compress,
            timeout_s=timeout_s,
        ),
    )
    assert None not in made
    return made


def gradients_of(rank: int, exchange: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * exchange + rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


def averaged(shared: SharedGradients, parts: list[Tensor], *, weight: float = 0.5) -> list[Tensor]:
    futures = [
        shared.average(part, weight=weight, index=index, is_last=index == len(parts) - 1)
        for index, part in enumerate(parts)
    ]
    return [future.wait() for future in futures]


def average_copies(
    shared: list[SharedGradients], inputs: list[list[Tensor]], weights: list[float], rank: int
) -> list[Tensor]:
    copies = [part.clone() for part in inputs[rank]]
    return averaged(shared[rank], copies, weight=weights[rank])


@pytest.mark.parametrize("weights", [[1 / 2] * 2, [1 / 3] * 3, [3 / 4, 1 / 4]])
def test_all_ranks_get_the_weighted_mean_exchange_after_exchange(weights: list[float]) -> None:
    ranks = len(weights)
    shared = shared_by(ranks, compress=False)
    for exchange in range(5):  # two halves of the memory take turns
        inputs = [gradients_of(rank, exchange) for rank in range(ranks)]
        found = on_ranks(ranks, partial(average_copies, shared, inputs, weights))
        for part in range(len(SIZES)):
            mean = sum(
                (weight * own[part] for weight, own in zip(weights, inputs, strict=True)),
                torch.zeros(()),
            )
            for rank in range(ranks):
                torch.testing.assert_close(found[rank][part], mean)
                assert torch.equal(found[rank][part], found[0][part])


def test_compressed_gradients_are_rounded_and_their_sum_is_not() -> None:
    shared = shared_by(2, compress=True)
    found = on_ranks(2, lambda rank: averaged(shared[rank], gradients_of(rank, 0)))
    for part in range(len(SIZES)):
        halves = [(gradients_of(rank, 0)[part] / 2).bfloat16().float() for rank in range(2)]
        for rank in range(2):
            assert torch.equal(found[rank][part], halves[0] + halves[1])


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_not_a_number_stays_so(compress: bool) -> None:
    shared = shared_by(2, compress=compress)
    special = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 0.0])
    # A NaN whose upper half is that of infinity: rounding must not make it one.
    special[0] = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)[0]
    found = on_ranks(2, lambda rank: averaged(shared[rank], [special.clone()])[0].tolist())
    for values in found:
        assert math.isnan(values[0])
        assert values[1:3] == [math.inf, -math.inf]
        assert values[3] == pytest.approx(3e38, rel=2**-8)
        assert values[4] == 0.0


def test_a_rank_that_does_not_write_is_waited_for_no_longer_than_told() -> None:
    first, _ = shared_by(2, compress=False, timeout_s=0.2)
    with pytest.raises(TimeoutError, match=r"no gradients from another rank for 0\.2 s"):
        averaged(first, gradients_of(0, 0))


def test_parts_that_all_have_written_are_there_before_the_last() -> None:
    shared = shared_by(2, compress=False)
    parts = [gradients_of(rank, 0) for rank in range(2)]
    early = shared[0].average(parts[0][0], weight=0.5, index=0, is_last=False)
    assert not early.done()
    other = shared[1].average(parts[1][0], weight=0.5, index=0, is_last=False)
    assert other.done()
    shared[0].average(parts[0][1], weight=0.5, index=1, is_last=False)
    assert early.done()


@pytest.mark.parametrize("path", [None, "/proc/self/fd/9999", "/proc/1/fd/9999"])
def test_without_the_others_memory_there_is_no_sharing(path: str | None) -> None:
    of_the_other = iter([path and (path, bytes(16)), False])

    def gather(value: Any) -> list[Any]:
        return [value, next(of_the_other)]

    made = share_gradients(gather, rank=0, values=10, compress=False, timeout_s=1)
    assert made is None


def test_a_process_that_only_has_the_number_of_the_other_is_not_taken_for_it() -> None:
    # As in two containers in which both ranks are process 7: each would find its own memory.
    def gather(value: Any) -> list[Any]:
        if isinstance(value, bool):
            return [value, True]
        path, _ = value
        return [value, (path, b"name of another!")]

    made = share_gradients(gather, rank=0, values=10, compress=False, timeout_s=1)
    assert made is None


def test_memory_that_is_not_granted_means_no_sharing() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        made = share_gradients(
            lambda value: [value], rank=0, values=10, compress=False, timeout_s=1
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert made is None


def test_nothing_is_left_on_the_file_system() -> None:
    before = set(Path("/dev/shm").iterdir())
    shared_by(2, compress=False)
    assert set(Path("/dev/shm").iterdir()) == before
