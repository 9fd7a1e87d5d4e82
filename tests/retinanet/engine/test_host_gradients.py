"""Averages in two levels: ranks as threads of one process, and ranks under the real mpirun."""

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from profiling.bench.job import MARK
from retinanet.engine import host_gradients
from retinanet.engine.gradient_sync import share_memory
from retinanet.engine.host_gradients import HostGradients, Operation
from tests.launch.ranks import run_ranks
from tests.retinanet.engine.test_gradient_sync import ThreadRanks, on_ranks

SIZES = (50_001, 1, 3, 20_000)
"""Values of the buckets of an exchange, some fewer than there are slices or hosts."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the largest bucket into eight parts."""
    monkeypatch.setattr(host_gradients, "PART", 7_000)


class Network:
    """Carries the data of the `ThreadTransport` of each host, and notes what it carried."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._sent: dict[tuple[str, int, int], Tensor] = {}

    def send(self, operation: str, number: int, host: int, values: Tensor) -> None:
        self._sent[operation, number, host] = values.clone()

    def receive(self, operation: str, number: int) -> list[Tensor] | None:
        """Return what all hosts have sent; None while one is missing."""
        keys = [(operation, number, host) for host in range(self.hosts)]
        values = [self._sent[key] for key in keys if key in self._sent]
        return values if len(values) == self.hosts else None


class ThreadTransport:
    """The operations of one host. As MPI's, they pair by their order, and need to be continued."""

    name = "threads"

    def __init__(self, network: Network, host: int) -> None:
        self._network, self._host, self.hosts = network, host, network.hosts
        self._orders = itertools.count(), itertools.count()

    def all_reduce(self, values: Tensor) -> Operation:
        def finish(received: list[Tensor]) -> None:
            values.copy_(torch.stack(received).sum(dim=0))

        return self._start("first", next(self._orders[0]), values, finish)

    def all_to_all(self, sent: Tensor, received: Tensor) -> Operation:
        def finish(parts: list[Tensor]) -> None:
            received.copy_(torch.cat([part.chunk(self.hosts)[self._host] for part in parts]))

        return self._start("first", next(self._orders[0]), sent, finish)

    def all_gather(self, sent: Tensor, received: Tensor) -> Operation:
        def finish(parts: list[Tensor]) -> None:
            received.copy_(torch.cat(parts))

        return self._start("second", next(self._orders[1]), sent, finish)

    def _start(self, operation: str, number: int, sent: Tensor, finish: Any) -> Operation:
        self._network.send(operation, number, self._host, sent)

        def is_over() -> bool:
            received = self._network.receive(operation, number)
            if received is None or not all(part.shape == sent.shape for part in received):
                return False
            finish(received)
            return True

        return is_over


@contextmanager
def averaging_ranks(
    ranks_of_hosts: Sequence[int], *, compress: bool, timeout_s: float = 20
) -> Iterator[list[HostGradients]]:
    """Make the ranks of hosts with these numbers of ranks, in order."""
    places = [
        (host, number) for host, ranks in enumerate(ranks_of_hosts) for number in range(ranks)
    ]
    group, slices = ThreadRanks(len(places)), min(ranks_of_hosts)
    networks = [Network(len(ranks_of_hosts)) for _ in range(slices)]

    def make(rank: int) -> HostGradients:
        host, number = places[rank]
        memory = None
        if max(ranks_of_hosts) > 1:
            memory = share_memory(
                partial(group.all_gather, rank=rank),
                rank=rank,
                values=sum(SIZES),
                compress=False,
                neighbours=[other for other, (its, _) in enumerate(places) if its == host],
            )
            assert memory is not None
        return HostGradients(
            memory,
            ThreadTransport(networks[number], host) if number < slices else None,
            hosts=len(ranks_of_hosts),
            slices=slices,
            compress=compress,
            timeout_s=timeout_s,
        )

    ranks = on_ranks(len(places), make)
    yield ranks
    for rank in ranks:
        rank.close()


def make_gradients(rank: int, exchange: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * exchange + rank)
    return [torch.randn(size, generator=generator) for size in SIZES]


def average(ranks: list[HostGradients], exchange: int, rank: int) -> list[Tensor]:
    parts = make_gradients(rank, exchange)
    futures = []
    for index, part in enumerate(parts):
        time.sleep(0.001 * ((rank + index) % 3))  # ranks are ready at different times
        is_last = index == len(parts) - 1
        weight = 1 / len(ranks)
        futures.append(ranks[rank].average(part, weight=weight, index=index, is_last=is_last))
    return [future.wait() for future in futures]


HOSTS = [(1, 1), (2, 2), (1, 1, 1), (2, 2, 2, 2), (3, 2), (1, 2, 3)]


@pytest.mark.parametrize("compress", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("ranks_of_hosts", HOSTS, ids=lambda hosts: "+".join(map(str, hosts)))
def test_all_ranks_get_equal_means_in_every_exchange(
    ranks_of_hosts: tuple[int, ...], compress: bool
) -> None:
    count = sum(ranks_of_hosts)
    with averaging_ranks(ranks_of_hosts, compress=compress) as ranks:
        for exchange in range(4):  # two halves of the memory take turns
            results = on_ranks(count, partial(average, ranks, exchange))
            inputs = [make_gradients(rank, exchange) for rank in range(count)]
            for part in range(len(SIZES)):
                mean = torch.stack([parts[part] for parts in inputs]).mean(dim=0)
                # BF16 has 8 bits: the sum of each host is rounded, and then that of all.
                rtol, atol = (2**-8, 2**-7) if compress else (1.3e-6, 1e-5)
                torch.testing.assert_close(results[0][part], mean, rtol=rtol, atol=atol)
                for result in results[1:]:
                    assert torch.equal(result[part], results[0][part])


@pytest.mark.parametrize("hosts", [2, 4])
def test_sums_of_rounded_gradients_are_rounded_once_between_more_than_two_hosts(hosts: int) -> None:
    with averaging_ranks((1,) * hosts, compress=True) as ranks:
        results = on_ranks(hosts, partial(average, ranks, 0))
    rounded = [
        [(part / hosts).bfloat16().float() for part in make_gradients(rank, 0)]
        for rank in range(hosts)
    ]
    for part, result in enumerate(results[0]):
        total = torch.zeros_like(result)
        for parts in rounded:
            total += parts[part]
        assert torch.equal(result, total if hosts == 2 else total.bfloat16().float())


@pytest.mark.parametrize("compress", [False, True])
def test_infinity_and_nan_reach_all_ranks(compress: bool) -> None:
    def act(ranks: list[HostGradients], rank: int) -> list[float]:
        values = torch.tensor([float("inf"), float("nan"), 1.0] if rank == 3 else [1.0, 1.0, 1.0])
        return ranks[rank].average(values, weight=0.25, index=0, is_last=True).wait().tolist()

    with averaging_ranks((2, 2), compress=compress) as ranks:
        for first, second, third in on_ranks(4, partial(act, ranks)):
            assert math.isinf(first) and math.isnan(second) and third == 1.0


@pytest.mark.parametrize("missing", [1, 2], ids=["of this host", "of the other host"])
def test_a_rank_that_does_not_come_is_a_timeout(missing: int) -> None:
    with averaging_ranks((2, 2), compress=False, timeout_s=0.3) as ranks:
        futures = [
            rank.average(torch.ones(100), weight=0.25, index=0, is_last=True)
            for number, rank in enumerate(ranks)
            if number != missing
        ]
        with pytest.raises(TimeoutError, match=r"no gradients from another rank for 0\.3 s"):
            futures[0].wait()
        # All later parts fail at once: the exchange cannot continue.
        again = ranks[0].average(torch.ones(100), weight=0.25, index=1, is_last=True)
        with pytest.raises(TimeoutError, match="no gradients"):
            again.wait()


def test_an_error_of_the_transport_is_raised_where_the_average_is_needed() -> None:
    class Broken(ThreadTransport):
        def all_reduce(self, values: Tensor) -> Operation:
            raise OSError("connection reset")

    averaging = HostGradients(
        None, Broken(Network(2), 0), hosts=2, slices=1, compress=False, timeout_s=20
    )
    with pytest.raises(OSError, match="connection reset"):
        averaging.average(torch.ones(3), weight=0.5, index=0, is_last=True).wait()
    averaging.close()


def test_thread_ends_with_close() -> None:
    with averaging_ranks((1, 1), compress=False):
        assert any(thread.name == "gradients" for thread in threading.enumerate())
    assert not any(thread.name == "gradients" for thread in threading.enumerate())


@pytest.mark.whole_machine
@pytest.mark.parametrize("ranks", [2, 3])
def test_exchange_by_mpi_under_the_real_mpirun(ranks: int) -> None:
    rank = ["-m", "tests.support.exchange_rank", "--gradients", "300001", "--rounds", "2"]
    job = run_ranks(ranks, *rank, "--backend", "mpi")
    assert job.code == 0, job.errors
    [line] = [line for line in job.output.splitlines() if line.startswith(MARK)]
    result = json.loads(line.removeprefix(MARK))
    assert result["way"] == "mpi"
    assert result["are_equal"]["levels float32"] and result["are_equal"]["levels bf16"]
    assert result["errors"]["levels float32"] < 1e-6
    assert 1e-4 < result["errors"]["levels bf16"] < 2**-8
