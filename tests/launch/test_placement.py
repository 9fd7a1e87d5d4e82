import os
from collections.abc import Sequence

import pytest

from launch.placement import place_ranks, placement_notes
from launch.shares import CoreRequest, Share, spare_cpus
from launch.topology import Cpu, Topology, format_cpu_list, read_topology
from tests.launch.topologies import (
    EIGHT_SOCKETS,
    FOUR_NODES_A_SOCKET,
    LAPTOP,
    MANY_NODES,
    TWO_SOCKETS,
    TWO_SOCKETS_PAIRED,
    cores_in_a_row,
    host,
)
from tests.support.commands import error_message

ALL_CORES = CoreRequest()


def refusal(
    topology: Topology, *, ranks: int, request: CoreRequest = ALL_CORES, quota: float | None = None
) -> str:
    return error_message(place_ranks, topology, ranks=ranks, request=request, quota=quota)


def describe(share: Share) -> str:
    """Describe a share as `0/0-1: 0-7 comm 8 load 9,17`: socket, nodes and CPUs."""
    text = f"{share.socket}/{format_cpu_list(share.nodes)}: "
    text += format_cpu_list(share.cpus)
    text += f" comm {format_cpu_list(share.comm_cpus)}" if share.comm_cpus else ""
    return text + (f" load {format_cpu_list(share.loader_cpus)}" if share.loader_cpus else "")


def every_second(first: int, last: int) -> str:
    return ",".join(map(str, range(first, last + 1, 2)))


ONE_SOCKET = "8 sockets share memory nodes, and count as 1"
HYBRID = Topology(tuple(Cpu(cpu, cpu, 0, 0, kind=int(cpu >= 4)) for cpu in range(20)))
SLOWER = (
    "CPUs 4-19 are of slower cores and idle: a rank that mixed them with faster ones would wait "
    "for them; launch.pin=false uses all, unbound"
)
UNEQUAL = TWO_SOCKETS.restricted(range(4, 56))  # 24 and 28 cores
EVERY_SECOND = (f"0/0: {every_second(0, 54)}", f"1/1: {every_second(56, 110)}")


@pytest.mark.parametrize(
    ("topology", "request_", "shares"),
    [
        (TWO_SOCKETS, {}, ["0/0: 0-27", "1/1: 28-55"]),
        (TWO_SOCKETS_PAIRED, {}, EVERY_SECOND),
        (
            TWO_SOCKETS,
            {"comm_cores": 2, "loader_cores": 3},  # loading uses hyperthreads too
            [
                "0/0: 0-8 comm 9-10 load 11-13,67-69",
                "0/0: 14-22 comm 23-24 load 25-27,81-83",
                "1/1: 28-36 comm 37-38 load 39-41,95-97",
                "1/1: 42-50 comm 51-52 load 53-55,109-111",
            ],
        ),
        (
            TWO_SOCKETS_PAIRED,
            {"threads": 2, "comm_cores": 1, "loader_cores": 1},
            ["0/0: 0,2 comm 4 load 6-7", "1/1: 56,58 comm 60 load 62-63"],
        ),
        (EIGHT_SOCKETS, {}, [f"{n}/{n}: {28 * n}-{28 * n + 27}" for n in range(8)]),
        # Fewer ranks than sockets use the first, largest ones.
        (EIGHT_SOCKETS, {}, [f"{n}/{n}: {28 * n}-{28 * n + 27}" for n in range(3)]),
        (cores_in_a_row((0, 2, 0, 0), (2, 4, 1, 1), (6, 4, 2, 2)), {}, ["1/1: 2-5", "2/2: 6-9"]),
        # Whole memory nodes, or shares of one.
        (FOUR_NODES_A_SOCKET, {}, ["0/0-3: 0-55", "1/4-7: 56-111"]),
        (FOUR_NODES_A_SOCKET, {}, ["0/0-1: 0-27", "0/2-3: 28-55", "1/4-5: 56-83", "1/6-7: 84-111"]),
        (FOUR_NODES_A_SOCKET, {}, [f"{n // 8}/{n // 2}: {7 * n}-{7 * n + 6}" for n in range(16)]),
        (MANY_NODES, {}, [f"{n // 8}/{n}: {8 * n}-{8 * n + 7}" for n in range(16)]),
        (
            cores_in_a_row((0, 4, 0, 0), (4, 4, 1, 0)),  # a node of two sockets
            {},
            ["0/0: 0-3", "0/0: 4-7"],
        ),
        # Each CPU a socket of its own, as of virtual machines.
        (cores_in_a_row(*((n, 1, n, 0) for n in range(8))), {}, ["0/0: 0-7"]),
        (cores_in_a_row(*((n, 1, n, n // 4) for n in range(8))), {}, ["0/0: 0-3", "4/1: 4-7"]),
        (
            host([(cpu, cpu, cpu % 2, 0) for cpu in range(8)]),  # real sockets, interleaved memory
            {},
            [f"0/0: {every_second(0, 6)}", f"0/0: {every_second(1, 7)}"],
        ),
        (
            # The second socket shares a node with the first and one with the third.
            host([(0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 1), (3, 3, 2, 1), (4, 4, 3, 2)]),
            {},
            ["0/0-1: 0-3"],
        ),
        (HYBRID, {}, ["0/0: 0-3"]),
        (HYBRID, {}, ["0/0: 0-1", "0/0: 2-3"]),
        (HYBRID.restricted(range(4, 20)), {}, ["0/0: 4-19"]),  # the user's choice
        (
            host([(cpu, cpu, cpu % 2, cpu % 2) for cpu in range(8)]),  # CPUs alternate
            {},
            ["0/0: 0,2", "0/0: 4,6", "1/1: 1,3", "1/1: 5,7"],
        ),
        # A cpuset with the second hyperthread of each core, or with every second core.
        (
            TWO_SOCKETS_PAIRED.restricted(range(1, 112, 2)),
            {"loader_cores": 1},
            [f"0/0: {every_second(1, 53)} load 55", f"1/1: {every_second(57, 109)} load 111"],
        ),
        (
            TWO_SOCKETS.restricted(range(1, 112, 2)),
            {"loader_cores": 1},
            [f"0/0: {every_second(1, 25)} load 27,83", f"1/1: {every_second(29, 53)} load 55,111"],
        ),
        # Sockets and nodes of different sizes.
        (UNEQUAL, {}, ["0/0: 4-27", "1/1: 28-51"]),
        (UNEQUAL, {"threads": 24}, ["0/0: 4-27", "1/1: 28-51"]),
        (
            cores_in_a_row((0, 4, 0, 0), (4, 12, 1, 1)),
            {},
            ["0/0: 0-3", *(f"1/1: {n}-{n + 3}" for n in (4, 8, 12))],
        ),
        (
            cores_in_a_row((0, 4, 0, 0), (4, 4, 0, 1), (8, 16, 0, 2)),
            {},
            ["0/0-1: 0-7", "0/2: 8-15", "0/2: 16-23"],
        ),
        (
            TWO_SOCKETS,
            {"threads": 7, "comm_cores": 1, "loader_cores": 1},
            [
                f"{n // 28}/{n // 28}: {n}-{n + 6} comm {n + 7} load {n + 8},{n + 64}"
                for n in (0, 9, 18, 28, 37, 46)
            ],
        ),
    ],
)
def test_cores_of_each_rank(
    topology: Topology, request_: dict[str, int], shares: Sequence[str]
) -> None:
    placed = place_ranks(topology, ranks=len(shares), request=CoreRequest(**request_))
    assert [describe(share) for share in placed] == list(shares)
    assert all(len(share.cpus) == share.threads and not share.floating for share in placed)


ONE_CPU = host([(0, 0, 0, 0)])


@pytest.mark.parametrize(
    ("topology", "ranks", "request_", "reason", "advice"),
    [
        (ONE_CPU, 2, {}, "2 ranks are more than the 1 core", "1 rank"),
        (ONE_CPU, 1, {"loader_cores": 1}, "data.reserve_cores=1", "data.reserve_cores=0"),
        (LAPTOP, 8, {}, "8 ranks are more than the 4 cores", "1, 2 or 4 ranks"),  # hyperthreads
        (TWO_SOCKETS, 3, {}, "2 sockets of 28 cores", "1, 2, 4, 8, 14, 28 or 56 ranks"),
        (EIGHT_SOCKETS, 30, {}, "30 ranks", "4, 5, 6, 7, 8, 16 or 32 ranks"),  # the nearest
        (FOUR_NODES_A_SOCKET, 6, {}, "4 NUMA nodes", "1, 2, 4, 8, 16, 56 or 112 ranks"),
        (TWO_SOCKETS, 32, {}, "32 ranks do not share 56 cores", "or launch.threads=1"),
        (
            TWO_SOCKETS,
            4,
            {"comm_cores": 8, "loader_cores": 6},
            "14 cores each, but launch.comm_cores=8 + data.reserve_cores=6",
            "1 or 2 ranks (mpirun -np, or --np), or launch.comm_cores + data.reserve_cores=13",
        ),
        (LAPTOP, 1, {"threads": 5}, "launch.threads=5 requests more", "launch.threads=4"),
        (
            LAPTOP,
            1,
            {"threads": 4, "comm_cores": 1},
            "launch.comm_cores=1",
            "launch.threads=3, or launch.comm_cores=0",
        ),
        (
            LAPTOP,
            1,
            {"threads": 9, "comm_cores": 9},
            "launch.threads=9",
            "launch.threads + launch.comm_cores=4",
        ),
        (TWO_SOCKETS.restricted(range(20, 56)), 19, {}, "19 ranks", "leaves the rest idle"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_advice(
    topology: Topology, ranks: int, request_: dict[str, int], reason: str, advice: str
) -> None:
    why, _, fix = refusal(topology, ranks=ranks, request=CoreRequest(**request_)).partition(
        ": use "
    )
    assert reason in why and advice in fix


@pytest.mark.parametrize(
    ("topology", "ranks", "request_", "quota", "threads"),
    [
        # Ranks that do not divide the cores leave few idle.
        (TWO_SOCKETS, 6, {"comm_cores": 1}, None, 8),
        # A quota is divided among ranks, sets no cores aside, and may leave little unused.
        (TWO_SOCKETS, 4, {"comm_cores": 1, "loader_cores": 1}, 8.9, 2),
        (TWO_SOCKETS, 2, {"threads": 1}, 3.5, 1),
        (TWO_SOCKETS, 2, {}, 5.5, 2),
    ],
)
def test_threads_of_each_rank(
    topology: Topology, ranks: int, request_: dict[str, int], quota: float | None, threads: int
) -> None:
    request = CoreRequest(**request_)
    shares = place_ranks(topology, ranks=ranks, request=request, quota=quota)
    assert [share.threads for share in shares] == [threads] * ranks
    assert [share.socket for share in shares] == [0] * (ranks // 2) + [1] * (ranks // 2)
    assert all(share.floating for share in shares) == (quota is not None)
    if quota:
        assert {(share.comm_cpus, share.loader_cpus) for share in shares} == {((), ())}
        assert shares[0].cpus == tuple(range(28)) and shares[-1].cpus == tuple(range(28, 56))


def test_no_allowed_cpu_is_refused() -> None:
    assert "none of the allowed CPUs is online" in refusal(LAPTOP.restricted({99}), ranks=1)


def test_quota_below_the_cores_makes_threads_float() -> None:
    for quota in (1.5, 0.3):
        [share] = place_ranks(LAPTOP, ranks=1, request=ALL_CORES, quota=quota)
        assert describe(share) == "0/0: 0-3"
        assert share.floating and share.threads == 1 and spare_cpus(share, LAPTOP) == ()
    assert "1 core that the CPU quota of 1.5 gives" in refusal(LAPTOP, ranks=2, quota=1.5)


def test_quota_that_ranks_do_not_divide_is_refused_with_advice() -> None:
    assert "launch.threads=1" in refusal(TWO_SOCKETS, ranks=2, quota=3.5)
    message = refusal(TWO_SOCKETS, ranks=2, request=CoreRequest(threads=3), quota=5.5)
    assert "launch.threads=3" in message and message.endswith("or launch.threads=2")


def test_quota_above_the_cores_changes_nothing() -> None:
    pinned = place_ranks(LAPTOP, ranks=2, request=ALL_CORES)
    assert place_ranks(LAPTOP, ranks=2, request=ALL_CORES, quota=4.0) == pinned
    share = place_ranks(TWO_SOCKETS, ranks=1, request=ALL_CORES, quota=30.0)[0]
    assert (share.cpus, share.floating) == (tuple(range(28)), False)  # of one socket


def test_rank_fits_on_this_machine() -> None:
    allowed = read_topology().restricted(os.sched_getaffinity(0))
    shares = place_ranks(allowed, ranks=1, request=ALL_CORES)
    assert set(shares[0].cpus) <= os.sched_getaffinity(0)
    assert shares[0].threads == len(shares[0].cpus) > 0


@pytest.mark.parametrize(
    ("topology", "ranks", "request_", "notes"),
    [
        (TWO_SOCKETS, 4, {"comm_cores": 1, "loader_cores": 2}, []),
        (TWO_SOCKETS, 1, {}, ["socket 1 is idle: 2 ranks"]),
        (EIGHT_SOCKETS, 6, {}, ["sockets 6 and 7 are idle: 8 ranks"]),
        (cores_in_a_row(*((n, 1, n, 0) for n in range(8))), 1, {}, [ONE_SOCKET]),
        (HYBRID, 2, {}, [SLOWER]),
        # No advice where more ranks do not fit, or would not use the socket either.
        (cores_in_a_row((0, 4, 0, 0), (4, 2, 1, 1)), 1, {}, ["socket 1 is idle"]),
        (cores_in_a_row((0, 28, 0, 0), (28, 4, 1, 1)), 2, {}, ["socket 1 is idle"]),
        (
            FOUR_NODES_A_SOCKET,
            4,
            {},
            ["ranks span several memory nodes: rank 0 spans nodes 0 and 1 of socket 0: 8 ranks"],
        ),
        (
            FOUR_NODES_A_SOCKET.restricted(range(56)),
            1,
            {},
            ["rank 0 spans nodes 0, 1, 2 and 3 of socket 0: 4 ranks"],
        ),
        (TWO_SOCKETS, 6, {"threads": 7, "comm_cores": 2}, ["2 of 56 cores are idle"]),
        (TWO_SOCKETS, 6, {}, ["2 of 56 cores are idle: 4 or 8 ranks"]),
        (cores_in_a_row((1, 31, 0, 0), (32, 32, 1, 1)), 4, {}, ["3 of 63 cores are idle"]),
    ],
)
def test_notes_on_idle_cores_and_memory_nodes(
    topology: Topology, ranks: int, request_: dict[str, int], notes: list[str]
) -> None:
    request = CoreRequest(**request_)
    shares = place_ranks(topology, ranks=ranks, request=request)
    lines = placement_notes(topology, shares, request=request, quota=None)
    assert len(lines) == len(notes)
    for line, start in zip(lines, notes, strict=True):
        advised = start.endswith(" ranks")
        assert line.startswith(start) if advised else line == start


def test_notes_under_a_quota_name_requests_without_effect() -> None:
    request = CoreRequest(threads=1, comm_cores=1, loader_cores=2)
    shares = place_ranks(LAPTOP, ranks=1, request=request, quota=2.5)
    quota, unused, fields = placement_notes(LAPTOP, shares, request=request, quota=2.5)
    assert "quota of 2.5 is worth 2 of 4 cores" in quota
    assert unused.startswith("1 of the quota's 2 CPUs")
    assert fields.startswith("launch.comm_cores=1 and data.reserve_cores=2: ")


@pytest.mark.parametrize(
    ("topology", "request_", "spare"),
    [
        (TWO_SOCKETS, {}, tuple(range(56, 84))),  # the other hyperthreads of its cores
        (TWO_SOCKETS, {"loader_cores": 2}, (26, 27, 82, 83)),  # reserved cores come first
        (TWO_SOCKETS, {"comm_cores": 1}, tuple(range(56, 83))),  # not of a communicating core
        (TWO_SOCKETS.restricted(range(56)), {}, ()),
    ],
)
def test_spare_cpus_of_a_rank(
    topology: Topology, request_: dict[str, int], spare: tuple[int, ...]
) -> None:
    share, _ = place_ranks(topology, ranks=2, request=CoreRequest(**request_))
    assert spare_cpus(share, topology) == spare
