"""All-reduces between hosts."""

from argparse import ArgumentTypeError

import pytest

from profiling.bench.job import AllReduceTime
from profiling.studies.tune.command import parse_network
from profiling.studies.tune.model import (
    Network,
    fit_network,
    rank_counts,
    rank_counts_of_host,
)

NETWORK = Network(latency=30e-6, bandwidth=1.2e9, source="here")


def test_each_link_carries_almost_twice_the_bytes() -> None:
    fast = Network(latency=0.0, bandwidth=1e9, source="")
    assert fast.all_reduce_seconds(10**9, ranks=2) == pytest.approx(1.0)
    assert fast.all_reduce_seconds(10**9, ranks=1000) == pytest.approx(1.998)


def test_latency_is_paid_for_each_message() -> None:
    slow = Network(latency=1e-3, bandwidth=1e30, source="")
    assert slow.all_reduce_seconds(4, ranks=5) == pytest.approx(8e-3)


@pytest.mark.parametrize(
    ("most", "counts"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (7, [2, 4, 7]), (8, [2, 4, 8])]
)
def test_all_reduces_are_timed_over_doubled_numbers_of_ranks_up_to_the_most(
    most: int, counts: list[int]
) -> None:
    assert rank_counts(most) == counts


@pytest.mark.parametrize(
    ("cores", "sockets", "counts"),
    [(2, 1, [2]), (6, 1, [2]), (36, 2, [2, 4]), (56, 2, [2, 4, 8]), (192, 8, [2, 8])],
)
def test_on_a_host_only_ranks_that_share_its_cores_evenly_are_timed(
    cores: int, sockets: int, counts: list[int]
) -> None:
    assert rank_counts_of_host(cores, sockets=sockets) == counts


def test_fit_finds_latency_and_bandwidth() -> None:
    times = [
        AllReduceTime(ranks=ranks, size=size, seconds=NETWORK.all_reduce_seconds(size, ranks=ranks))
        for ranks in (2, 4)
        for size in (4096, 10**6, 10**8)
    ]
    found = fit_network(times, source="measured")
    assert found.latency == pytest.approx(NETWORK.latency, rel=1e-6)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=1e-6)


def test_a_small_message_counts_as_much_as_a_large_one() -> None:
    times = [
        AllReduceTime(ranks=2, size=8, seconds=1e-4),
        AllReduceTime(ranks=2, size=10**8, seconds=0.1),
        AllReduceTime(ranks=2, size=10**8, seconds=0.11),
    ]
    found = fit_network(times, source="measured")
    assert found.all_reduce_seconds(8, ranks=2) == pytest.approx(1e-4, rel=0.01)


def test_a_message_that_a_buffer_takes_whole_does_not_make_the_link_fast() -> None:
    """Measured over a cable of 50 MB/s that lets 64 KiB pass at once."""
    measured = {2**12: 1.98e-3, 2**16: 0.42e-3, 2**20: 21.1e-3, 2**23: 175e-3, 2**25: 703e-3}
    times = [AllReduceTime(ranks=2, size=size, seconds=one) for size, one in measured.items()]
    assert fit_network(times, source="").bandwidth == pytest.approx(50e6, rel=0.05)


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("25Gbit/s,20us", 3.125e9, 20e-6),
        ("1.2GB/s, 0.05ms", 1.2e9, 50e-6),
        ("100Mbps,1ms", 12.5e6, 1e-3),
    ],
)
def test_network_is_read_as_users_write_it(text: str, bandwidth: float, latency: float) -> None:
    found = parse_network(text)
    assert found.bandwidth == pytest.approx(bandwidth)
    assert found.latency == pytest.approx(latency)


@pytest.mark.parametrize("text", ["", "25", "25Gbit/s", "0Gbit/s,20us", "25Gbit/s,20", "fast,20us"])
def test_other_words_are_told_how_to_write_it(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="such as 25Gbit/s,20us"):
        parse_network(text)
