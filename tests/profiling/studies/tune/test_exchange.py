"""The planner's exchange of gradients: its bytes against the trainer's own code, its times by hand.

The trainer's ranks are threads of this process. The bytes of its kernels and of its transport are
counted.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from profiling.bench.job import ExchangeTime
from profiling.bench.measured_rank import BUCKET, FIRST_BUCKET, bucket_sizes
from profiling.studies.rounds import Shape
from profiling.studies.tune import model as planner
from profiling.studies.tune.cluster import Cluster, Part, Program, forecast_step
from profiling.studies.tune.cluster import gradient_exchange as exchange_of_cluster
from profiling.studies.tune.forecast import Allocation
from profiling.studies.tune.measurements import Added, HostPeaks
from profiling.studies.tune.model import Exchange, Network, fit_network, predicted_seconds
from retinanet.engine import host_gradients
from retinanet.engine.gradient_sync import SHARED, SharedGradients, share_memory
from retinanet.engine.host_gradients import HostGradients, Operation
from tests.profiling.studies.tune.samples import host
from tests.retinanet.engine.test_gradient_sync import ThreadRanks, on_ranks
from tests.retinanet.engine.test_host_gradients import Network as ThreadNetwork
from tests.retinanet.engine.test_host_gradients import ThreadTransport

VALUES = 240_000  # Divided evenly by all numbers of ranks and hosts here
SLOW = Exchange(
    values=36_000_000,
    compress=False,
    hosts=2,
    ranks=2,
    network=Network(latency=10e-6, bandwidth=1e9, source=""),
    rank_bandwidth=40e9,
    core_bandwidth=10e9,
)


class Counted:
    """The bytes that computing threads and averaging threads read and write, and cards send."""

    def __init__(self) -> None:
        self._sizes: dict[str, list[int]] = {"computing": [], "thread": [], "card": []}

    def add(self, kind: str, size: int) -> None:
        self._sizes[kind].append(size)  # which, unlike a sum, needs no lock

    def of_rank(self, kind: str, *, ranks: int) -> float:
        return sum(self._sizes[kind]) / ranks


BYTES: dict[str, Callable[..., int]] = {
    "write_rounded": lambda values, out, size, *_: size * (4 + 2),
    "write_floats": lambda values, out, size, *_: size * (4 + 4),
    "sum_rounded": lambda parts, count, out, size, *_: size * (2 * count + 4),
    "sum_floats": lambda parts, count, out, size, *_: size * (4 * count + 4),
}
"""What each of the trainer's kernels reads and writes, by its arguments."""


class CountingLibrary:
    """The trainer's kernels, whose bytes are counted by the thread that calls them."""

    def __init__(self, library: Any, counted: Counted) -> None:
        self._library, self._counted = library, counted

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            if name in BYTES:
                is_averaging = threading.current_thread().name == "gradients"
                kind = "thread" if is_averaging else "computing"
                self._counted.add(kind, BYTES[name](*arguments))
            return function(*arguments)

        return call


class CountingTransport(ThreadTransport):
    """Counts what each operation must send to other hosts, and receive from them."""

    def __init__(self, network: ThreadNetwork, host: int, counted: Counted) -> None:
        super().__init__(network, host)
        self._counted = counted

    def all_reduce(self, values: Tensor) -> Operation:
        # Each value travels to where it is added, and back.
        self._count(2 * values.nbytes * (self.hosts - 1) // self.hosts)
        return super().all_reduce(values)

    def all_to_all(self, sent: Tensor, received: Tensor) -> Operation:
        self._count(sent.nbytes * (self.hosts - 1) // self.hosts)
        return super().all_to_all(sent, received)

    def all_gather(self, sent: Tensor, received: Tensor) -> Operation:
        self._count(sent.nbytes * (self.hosts - 1))
        return super().all_gather(sent, received)

    def _count(self, sent: int) -> None:
        self._counted.add("card", 2 * sent)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted, library = Counted(), SHARED.library()
    monkeypatch.setattr(type(SHARED), "library", lambda _: CountingLibrary(library, counted))
    return counted


def average_once(hosts: int, ranks: int, *, compress: bool, counted: Counted) -> None:
    """Average `VALUES` gradients by the trainer's own code, all ranks as threads."""
    places = [(host, number) for host in range(hosts) for number in range(ranks)]
    group = ThreadRanks(len(places))
    networks = [ThreadNetwork(hosts) for _ in range(ranks)]

    def average(rank: int) -> None:
        its_host, number = places[rank]
        memory = share_memory(
            partial(group.all_gather, rank=rank),
            rank=rank,
            values=VALUES,
            compress=compress and hosts == 1,
            neighbours=[other for other, (host, _) in enumerate(places) if host == its_host],
        )
        assert memory is not None
        if hosts == 1:
            one_host = SharedGradients(memory, timeout_s=20)
            one_host.average(torch.ones(VALUES), weight=1.0, index=0, is_last=True).wait()
            return
        averaging = HostGradients(
            memory if ranks > 1 else None,
            CountingTransport(networks[number], its_host, counted),
            hosts=hosts,
            slices=ranks,
            compress=compress,
            timeout_s=20,
        )
        averaging.average(torch.ones(VALUES), weight=1.0, index=0, is_last=True).wait()
        averaging.close()

    on_ranks(len(places), average)


@pytest.mark.parametrize("compress", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("hosts", "ranks"), [(1, 2), (1, 4), (2, 1), (3, 1), (2, 2), (3, 2), (2, 4)]
)
def test_bytes_are_those_of_the_trainer(
    hosts: int, ranks: int, compress: bool, counted: Counted
) -> None:
    average_once(hosts, ranks, compress=compress, counted=counted)
    model = replace(SLOW, values=VALUES, hosts=hosts, ranks=ranks, compress=compress)
    of_rank = partial(counted.of_rank, ranks=hosts * ranks)
    # No kernels of ours: alone on its host, a rank multiplies by its weight with torch, and in
    # float32 MPI or gloo adds what it has received.
    by_torch = 2 * 4 * VALUES if hosts > 1 and ranks == 1 and not compress else 0
    received = VALUES / ranks * (hosts - 1) / hosts
    by_transport = 0 if compress or hosts == 1 else 3 * 4 * received
    assert of_rank("computing") == pytest.approx(model.computing_bytes(VALUES) - by_torch)
    assert of_rank("thread") == pytest.approx(model.thread_bytes(VALUES) - by_transport)
    assert of_rank("card") == pytest.approx(model.card_bytes(VALUES))
    assert of_rank("computing") + of_rank("thread") + of_rank("card") > 0


def test_parts_and_buckets_are_those_of_the_trainer() -> None:
    assert (planner.PART, planner.PARTS_ON_THEIR_WAY) == (
        host_gradients.PART,
        host_gradients.PARTS_ON_THEIR_WAY,
    )
    parameters = [torch.empty(2**14, device="meta") for _ in range(1000)]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    numbers, _ = dist._compute_bucket_assignment_by_size(parameters, limits)
    assert bucket_sizes(1000 * 2**14) == [2**14 * len(bucket) for bucket in numbers]
    assert bucket_sizes(7) == [7]
    assert "25 MiB" in (DistributedDataParallel.__doc__ or "")


def test_one_bucket_over_two_hosts_by_hand() -> None:
    one = replace(SLOW, values=FIRST_BUCKET, ranks=1, compress=True)
    rounding = 6 * FIRST_BUCKET / 40e9
    # All values of both hosts are added (2 · 2 + 4).
    thread = (2 * 2 + 4) * FIRST_BUCKET / 10e9
    network = 2 * 10e-6 + 2 * FIRST_BUCKET / 1e9
    assert one.added_seconds(0.0) == pytest.approx(rounding + thread + network)
    assert one.added_seconds(10.0) == pytest.approx(rounding + thread + network)


def test_parts_of_a_bucket_overlap() -> None:
    # 25 MiB are 7 parts, 4 of which wait for messages at the same time.
    network = 2 * 2 * 10e-6 + 4 * BUCKET / 1e9
    # In float32 with two ranks: this rank's slice is added (2 · 4 + 4) / 2 and its average written
    # (8 / 2), the other one read (8 / 2), and half of the slice is added by MPI.
    thread = (6 + 4 + 4 + 3) * BUCKET / 10e9
    assert SLOW.average_seconds(BUCKET) == pytest.approx(network + thread / 7)
    fast = replace(SLOW, network=Network(latency=0.0, bandwidth=1e12, source=""))
    assert fast.average_seconds(BUCKET) == pytest.approx(thread + 4e-12 * BUCKET / 7)


def test_backward_pass_hides_all_but_the_last_bucket_and_the_computing_threads() -> None:
    two = replace(SLOW, values=FIRST_BUCKET + BUCKET)
    writing = 8 * two.values / 40e9
    first, last = (two.average_seconds(size) for size in (FIRST_BUCKET, BUCKET))
    assert two.added_seconds(10.0) == pytest.approx(writing + last)
    first_written = 8 * FIRST_BUCKET / 40e9
    assert two.added_seconds(0.0) == pytest.approx(
        first_written + max(first, 8 * BUCKET / 40e9) + last
    )
    # A thread among those that compute makes the rest of the backward pass longer.
    shared = replace(two, has_own_core=False)
    thread = two.thread_bytes(FIRST_BUCKET) / 10e9
    assert shared.added_seconds(10.0) == pytest.approx(writing + thread + last)


def test_network_that_is_slower_than_the_backward_pass_is_waited_for() -> None:
    """Simulated: the link takes one bucket after another, each when it is ready."""
    slow = replace(
        SLOW,
        compress=True,
        network=Network(latency=0.0, bandwidth=1e8, source=""),
        rank_bandwidth=math.inf,
        core_bandwidth=math.inf,
    )
    backward, free = 0.5, 0.0
    sizes = bucket_sizes(slow.values)
    for number in range(len(sizes)):
        ready = backward * sum(sizes[: number + 1]) / slow.values
        free = max(free, ready) + 2 * sizes[number] / 1e8
    assert slow.added_seconds(backward) == pytest.approx(free - backward)
    assert slow.added_seconds(backward) > 0.2


def test_computing_threads_of_one_host_hide_nothing() -> None:
    one = replace(SLOW, hosts=1, ranks=4)
    # Written, and then four ranks' gradients are read and their average is written.
    assert one.added_seconds(10.0) == pytest.approx((8 + 4 * 4 + 4) * one.values / 40e9)
    assert one.bytes_beside == 0
    assert replace(one, ranks=1).added_seconds(10.0) == 0


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_host_sends_its_gradients_once_however_many_ranks_it_has(ranks: int) -> None:
    """74 MB over 25 Gbit/s with 20 µs."""
    network = Network(latency=20e-6, bandwidth=25e9 / 8, source="")
    seconds = replace(SLOW, values=18_500_000, ranks=ranks, network=network).network_seconds(
        18_500_000
    )
    # 18 parts, four at a time, of two messages.
    assert seconds == pytest.approx(74e6 / network.bandwidth + 5 * 2 * 20e-6)


def test_compute_groups_exchange_over_a_ring_of_all_ranks() -> None:
    group = replace(SLOW, in_levels=False, ranks=8)
    one_bucket = group.network_seconds(BUCKET)
    assert one_bucket == pytest.approx(30 * (10e-6 + BUCKET * 4 / 16 / 1e9))
    assert one_bucket > 1.8 * replace(group, in_levels=True).network_seconds(BUCKET)


def test_bytes_beside_the_backward_pass_are_those_of_all_but_the_last_bucket() -> None:
    two = replace(SLOW, values=FIRST_BUCKET + BUCKET)
    # The thread's bytes of float32 with two ranks, and a slice sent and received, read and written.
    assert two.bytes_beside == pytest.approx((6 + 4 + 4 + 3 + 2 * 2) * FIRST_BUCKET)


PROGRAM = Program(
    name="a program",
    source="by hand",
    images=2,
    threads=56,
    core_gflops=1000,
    memory_gb_per_s=224,
    parts=(Part(name="operators", seconds=2.0, scales="cores"),),
    gigabytes_per_image=0,
    gigabytes_per_step=0,
    gradient_megabytes=140,
    forward_share=0.4,
    metric_seconds=10,
    compress="none",
)


@pytest.mark.parametrize("compress", ["none", "bf16"])
@pytest.mark.parametrize("comm_cores", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("hosts", [2, 16])
def test_both_planners_give_the_same_exchange(
    hosts: int, ranks: int, comm_cores: int, compress: Any
) -> None:
    sample = host()
    of_threads = 56 // ranks - comm_cores
    cluster = Cluster(
        name="hosts like the measured one",
        hosts=hosts,
        sockets=sample.measured.sockets,
        cores=sample.measured.cores,
        memory_gb_per_s=224,
        network_gbit_per_s=8e-9 * sample.network.bandwidth,
        latency_us=1e6 * sample.network.latency,
        core_gflops=1000,
        ranks=ranks,
        threads=of_threads,
        batch_size=2,
    )
    program = replace(PROGRAM, compress=compress)
    step = forecast_step(program, cluster)
    measured = replace(
        sample.measured,
        peaks=HostPeaks(core_gflops=1000, memory_gb_per_s=224),
        comm_cores=comm_cores,
        compress=compress,
        backward_share=1 - program.forward_share,
        added=(),
    )
    model = replace(sample, measured=measured)
    shape = Shape(ranks=ranks, threads=of_threads, batch_size=2)
    allocation = Allocation(hosts=hosts, on_host=shape)
    assert step.exchange > 0
    seconds = model.exchange_seconds(allocation, step=step.computing)
    assert seconds == pytest.approx(step.exchange, rel=1e-9)
    beside = model.exchange(allocation).bytes_beside
    assert exchange_of_cluster(program, cluster).bytes_beside == pytest.approx(beside)
    assert step.beside == pytest.approx(beside / 1e9)


def test_waiting_for_the_slowest_rank_is_added_between_hosts_too() -> None:
    """Measured on one host: 10 % of a step of 1 s, of which the exchange itself is a part."""
    measured = replace(
        host().measured,
        added=(Added(ranks=2, batch_size=2, share=0.1),),
        peaks=HostPeaks(core_gflops=1000, memory_gb_per_s=224),
    )
    model = replace(host(), measured=measured)
    two = Allocation(hosts=2, on_host=Shape(ranks=2, threads=28, batch_size=2))
    exchange = model.exchange(two)
    alone = (8 + 2 * 4 + 4) * 35e6 / 112e9
    expected = exchange.added_seconds(0.6) + 0.1 - alone
    assert model.exchange_seconds(two, step=1.0) == pytest.approx(expected)
    assert model.exchange_seconds(replace(two, hosts=1), step=1.0) == pytest.approx(0.1)


SIZES = (4096, 2**20, 2**25)
ENDLESS = replace(SLOW, ranks=1, rank_bandwidth=math.inf, core_bandwidth=math.inf)


def times(*measured: tuple[int, float]) -> list[ExchangeTime]:
    return [ExchangeTime(ranks=2, size=size, seconds=seconds) for size, seconds in measured]


@pytest.mark.parametrize("compress", [False, True])
def test_fit_finds_latency_and_bandwidth(compress: bool) -> None:
    one_rank = replace(SLOW, ranks=1, compress=compress, core_bandwidth=5e9)
    known = Network(latency=50e-6, bandwidth=1e9, source="")
    measured = [
        ExchangeTime(ranks=hosts, size=size, seconds=0.0) for hosts in (2, 4) for size in SIZES
    ]
    measured = [
        replace(time, seconds=predicted_seconds(time, one_rank, known)) for time in measured
    ]
    fit = fit_network(measured, exchange=one_rank, source="measured")
    assert fit.latency == pytest.approx(known.latency, rel=1e-3)
    assert fit.bandwidth == pytest.approx(known.bandwidth, rel=1e-3)
    # With memory that is not counted, the network seems slower than it is.
    unknown = fit_network(measured, exchange=replace(ENDLESS, compress=compress), source="")
    assert unknown.bandwidth < 0.9 * known.bandwidth


def test_small_message_counts_as_much_as_a_large_one() -> None:
    measured = times((8, 1e-4), (10**8, 0.1), (10**8, 0.11))
    fit = fit_network(measured, exchange=ENDLESS, source="measured")
    assert predicted_seconds(measured[0], ENDLESS, fit) == pytest.approx(1e-4, rel=0.01)


def test_buffered_message_does_not_make_the_link_fast() -> None:
    """Measured over a link of 50 MB/s that lets 64 KiB pass at once."""
    small, large = ((2**12, 1.98e-3), (2**16, 0.42e-3)), ((2**23, 175e-3), (2**25, 703e-3))
    measured = times(*small, (2**20, 21.1e-3), *large)
    fit = fit_network(measured, exchange=ENDLESS, source="")
    assert fit.bandwidth == pytest.approx(50e6, rel=0.05)
