"""Averages of gradients: ranks as threads of one process, and two ranks under the real mpirun."""

import functools
import gc
import json
import math
import resource
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from launch.messages import decode, encode
from retinanet.engine.gradient_sync import SharedGradients, share_gradients
from tests.launch.ranks import run_ranks

SIZES = (100_000, 1, 70_001)
"""Values of the parts of an exchange, none a multiple of anything."""
PROGRAM = Path(__file__).with_name("averaging_ranks.py")


class ThreadRanks:
    """Gathers values of ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self._values: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=20)

    def all_gather(self, value: Any, kind: Any, *, rank: int) -> list[Any]:
        self._values[rank] = decode(encode(value), kind, sender=f"rank {rank}")
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


def on_ranks(ranks: int, act: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(act, range(ranks)))


def share_among(ranks: int, *, compress: bool, timeout_s: float = 20) -> list[SharedGradients]:
    group = ThreadRanks(ranks)
    shared = on_ranks(
        ranks,
        lambda rank: share_gradients(
            partial(group.all_gather, rank=rank),
            rank=rank,
            values=sum(SIZES),
            compress=compress,
            timeout_s=timeout_s,
        ),
    )
    assert None not in shared
    return shared


def make_gradients(rank: int, exchange: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * exchange + rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


def average(shared: SharedGradients, parts: list[Tensor], *, weight: float = 0.5) -> list[Tensor]:
    futures = [
        shared.average(part, weight=weight, index=index, is_last=index == len(parts) - 1)
        for index, part in enumerate(parts)
    ]
    return [future.wait() for future in futures]


def average_copies(
    shared: list[SharedGradients], inputs: list[list[Tensor]], weights: list[float], rank: int
) -> list[Tensor]:
    copies = [part.clone() for part in inputs[rank]]
    return average(shared[rank], copies, weight=weights[rank])


@pytest.mark.parametrize("weights", [[1 / 2] * 2, [1 / 3] * 3, [3 / 4, 1 / 4]])
def test_all_ranks_get_the_weighted_mean_in_every_exchange(weights: list[float]) -> None:
    ranks = len(weights)
    shared = share_among(ranks, compress=False)
    for exchange in range(5):  # two halves of the memory take turns
        inputs = [make_gradients(rank, exchange) for rank in range(ranks)]
        results = on_ranks(ranks, partial(average_copies, shared, inputs, weights))
        for part in range(len(SIZES)):
            mean = sum(
                (weight * parts[part] for weight, parts in zip(weights, inputs, strict=True)),
                torch.zeros(()),
            )
            for rank in range(ranks):
                torch.testing.assert_close(results[rank][part], mean)
                assert torch.equal(results[rank][part], results[0][part])


def test_compressed_gradients_are_rounded_and_their_sum_is_not() -> None:
    shared = share_among(2, compress=True)
    results = on_ranks(2, lambda rank: average(shared[rank], make_gradients(rank, 0)))
    for part in range(len(SIZES)):
        halves = [(make_gradients(rank, 0)[part] / 2).bfloat16().float() for rank in range(2)]
        for rank in range(2):
            assert torch.equal(results[rank][part], halves[0] + halves[1])


@pytest.mark.parametrize("compress", [False, True])
def test_nan_and_infinity_stay(compress: bool) -> None:
    shared = share_among(2, compress=compress)
    special = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 0.0])
    # A NaN whose upper half is that of infinity: rounding must not make it one.
    special[0] = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)[0]
    results = on_ranks(2, lambda rank: average(shared[rank], [special.clone()])[0].tolist())
    for values in results:
        assert math.isnan(values[0])
        assert values[1:3] == [math.inf, -math.inf]
        assert values[3] == pytest.approx(3e38, rel=2**-8)
        assert values[4] == 0.0


def test_a_rank_that_does_not_write_is_a_timeout() -> None:
    first, _ = share_among(2, compress=False, timeout_s=0.2)
    with pytest.raises(TimeoutError, match=r"no gradients from another rank for 0\.2 s"):
        average(first, make_gradients(0, 0))


def test_parts_are_averaged_as_soon_as_all_ranks_have_written_them() -> None:
    shared = share_among(2, compress=False)
    parts = [make_gradients(rank, 0) for rank in range(2)]
    first = shared[0].average(parts[0][0], weight=0.5, index=0, is_last=False)
    assert not first.done()
    second = shared[1].average(parts[1][0], weight=0.5, index=0, is_last=False)
    assert second.done()
    shared[0].average(parts[0][1], weight=0.5, index=1, is_last=False)
    assert first.done()


@pytest.mark.parametrize("path", [None, "/proc/self/fd/9999", "/proc/1/fd/9999"])
def test_memory_of_another_rank_that_cannot_be_opened_prevents_sharing(path: str | None) -> None:
    answers = iter([path and (path, bytes(16).hex()), False])

    def gather(value: Any, kind: Any) -> list[Any]:
        return [value, next(answers)]

    shared = share_gradients(gather, rank=0, values=10, compress=False, timeout_s=1)
    assert shared is None


def test_memory_of_another_process_with_the_rank_s_number_prevents_sharing() -> None:
    # As in two containers in which both ranks are process 7: each would find its own memory.
    def gather(value: Any, kind: Any) -> list[Any]:
        if isinstance(value, bool):
            return [value, True]
        path, _ = value
        return [value, (path, b"name of another!".hex())]

    shared = share_gradients(gather, rank=0, values=10, compress=False, timeout_s=1)
    assert shared is None


def test_too_little_memory_prevents_sharing() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        shared = share_gradients(
            lambda value, kind: [value], rank=0, values=10, compress=False, timeout_s=1
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert shared is None


def memory_files() -> list[str]:
    """Return the open files of this process that are shared memory of ranks."""
    files = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return [file for file in files if "memfd:ranks" in file]


def test_memory_is_released_with_the_gradients() -> None:
    gc.collect()
    before = memory_files()
    shared = share_among(2, compress=False)
    assert len(memory_files()) > len(before)
    del shared
    gc.collect()
    assert memory_files() == before


Comparison = dict[str, dict[str, list[Any]]]
"""For each case the `differences` of three steps, and each rank's norm after a broken batch."""
EXACT, ROUNDED = (0.0, 1e-5), (1e-4, 3 * 2**-9)
# BF16 has 8 bits: each of two halves is off by 2^-9 at the most, and gloo rounds their sum.
CASES = {
    "accumulated": EXACT,
    "compressed": ROUNDED,
    "shared, compressed": ROUNDED,
    "uneven, shared, accumulated": EXACT,
}
MORE_CASES = {
    "plain": EXACT,
    "shared": EXACT,
    "shared, accumulated": EXACT,
    "uneven": EXACT,
    "bf16": (0.0, 0.01),
}


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Iterable[str]], Comparison]:
    @functools.cache
    def run(cases: tuple[str, ...]) -> Comparison:
        file = tmp_path_factory.mktemp("gradients") / "comparison.json"
        job = run_ranks(2, str(PROGRAM), str(file), *cases)
        assert job.code == 0, job.errors
        assert "UserWarning" not in job.errors  # such as of gradients laid out unlike buckets
        content: Comparison = json.loads(file.read_text())
        return content

    return lambda cases: run(tuple(cases))


@pytest.mark.whole_machine
@pytest.mark.parametrize(
    ("cases", "case"),
    [
        *((CASES, case) for case in CASES),
        *(pytest.param(MORE_CASES, case, marks=pytest.mark.exhaustive) for case in MORE_CASES),
    ],
)
def test_two_ranks_have_the_gradients_of_one_process_with_all_images(
    compare: Callable[[Iterable[str]], Comparison],
    cases: dict[str, tuple[float, float]],
    case: str,
) -> None:
    differences = compare(cases)[case]["differences"]
    least, most = cases[case]
    assert len(differences) == 3
    assert least <= max(differences) < most
    # One rank's infinite loss is visible to all, whatever way gradients take.
    assert compare(cases)[case]["norms"] == ["nan", "nan"]


@pytest.mark.whole_machine
def test_sums_in_shared_memory_are_not_rounded(
    compare: Callable[[Iterable[str]], Comparison],
) -> None:
    results = compare(CASES)
    shared, gloo = (
        max(results[case]["differences"]) for case in ("shared, compressed", "compressed")
    )
    assert shared < gloo
