import os
from typing import Any

import pytest

from common.errors import InputError
from launch.placement import place_ranks, placement_notes
from launch.shares import CoreRequest, Share, spare_cpus
from launch.topology import Topology, read_topology
from tests.launch.ranks import run_python
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

ALL_CORES = CoreRequest()


def cpus_of(shares: list[Share]) -> list[list[int]]:
    return [list(share.cpus) for share in shares]


def refusal(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest = ALL_CORES,
    quota: float | None = None,
) -> str:
    with pytest.raises(InputError) as caught:
        place_ranks(topology, ranks=ranks, request=request, quota=quota)
    return str(caught.value)


def share_on(socket: int, cpus: range, **changes: Any) -> Share:
    fields = {"comm_cpus": (), "loader_cpus": (), "threads": len(cpus), "floating": False}
    return Share(socket=socket, nodes=(socket,), cpus=tuple(cpus), **{**fields, **changes})


def test_rank_per_socket_has_one_cpu_of_each_core() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=2, request=ALL_CORES)
    assert shares == [share_on(0, range(28)), share_on(1, range(28, 56))]


def test_paired_hyperthreads_leave_every_second_cpu() -> None:
    shares = place_ranks(TWO_SOCKETS_PAIRED, ranks=2, request=ALL_CORES)
    assert cpus_of(shares) == [list(range(0, 56, 2)), list(range(56, 112, 2))]


def test_ranks_on_a_socket_follow_each_other() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=4, request=ALL_CORES)
    assert [share.socket for share in shares] == [0, 0, 1, 1]
    assert cpus_of(shares) == [
        list(range(14)),
        list(range(14, 28)),
        list(range(28, 42)),
        list(range(42, 56)),
    ]


def test_order_of_computing_communicating_and_loading_cores() -> None:
    request = CoreRequest(comm_cores=2, loader_cores=3)
    second = place_ranks(TWO_SOCKETS, ranks=4, request=request)[1]
    assert second.cpus == (14, 15, 16, 17, 18, 19, 20, 21, 22)
    assert second.comm_cpus == (23, 24)
    assert second.loader_cpus == (25, 26, 27, 81, 82, 83)
    assert second.threads == 9


def test_communication_uses_one_cpu_per_core() -> None:
    request = CoreRequest(threads=2, comm_cores=1, loader_cores=1)
    first = place_ranks(TWO_SOCKETS_PAIRED, ranks=2, request=request)[0]
    assert (first.cpus, first.comm_cpus, first.loader_cpus) == ((0, 2), (4,), (6, 7))


def test_eight_ranks_use_eight_sockets() -> None:
    shares = place_ranks(EIGHT_SOCKETS, ranks=8, request=ALL_CORES)
    assert [share.socket for share in shares] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [share.cpus[0] for share in shares] == [0, 28, 56, 84, 112, 140, 168, 196]
    assert {share.threads for share in shares} == {28}


def test_fewer_ranks_than_sockets_take_the_largest() -> None:
    shares = place_ranks(EIGHT_SOCKETS, ranks=3, request=ALL_CORES)
    assert [share.socket for share in shares] == [0, 1, 2]  # the first ones of the same size
    of_2_4_4_cores = cores_in_a_row((0, 2, 0, 0), (2, 4, 1, 1), (6, 4, 2, 2))
    shares = place_ranks(of_2_4_4_cores, ranks=2, request=ALL_CORES)
    assert cpus_of(shares) == [[2, 3, 4, 5], [6, 7, 8, 9]]


def test_ranks_get_whole_memory_nodes_of_one_socket() -> None:
    shares = place_ranks(FOUR_NODES_A_SOCKET, ranks=4, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert cpus_of(shares)[1] == list(range(28, 56))


def test_rank_per_socket_has_all_nodes() -> None:
    shares = place_ranks(FOUR_NODES_A_SOCKET, ranks=2, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert shares[1].cpus == tuple(range(56, 112))


def test_more_ranks_than_nodes_share_the_cores_of_each() -> None:
    shares = place_ranks(FOUR_NODES_A_SOCKET, ranks=16, request=ALL_CORES)
    assert [share.nodes for share in shares[:4]] == [(0,), (0,), (1,), (1,)]
    assert cpus_of(shares)[:3] == [
        [0, 1, 2, 3, 4, 5, 6],
        [7, 8, 9, 10, 11, 12, 13],
        [14, 15, 16, 17, 18, 19, 20],
    ]


def test_sixteen_ranks_use_sixteen_nodes() -> None:
    shares = place_ranks(MANY_NODES, ranks=16, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(node,) for node in range(16)]
    assert [share.socket for share in shares] == [0] * 8 + [1] * 8
    assert shares[9].cpus == (72, 73, 74, 75, 76, 77, 78, 79)


def test_a_cpuset_of_odd_cpus_leaves_the_second_hyperthread_of_each_core() -> None:
    odd = TWO_SOCKETS_PAIRED.restricted(range(1, 112, 2))
    shares = place_ranks(odd, ranks=2, request=CoreRequest(loader_cores=1))
    assert cpus_of(shares) == [list(range(1, 55, 2)), list(range(57, 111, 2))]
    assert shares[0].loader_cpus == (55,)


def test_a_cpuset_of_odd_cpus_leaves_every_second_core() -> None:
    odd = TWO_SOCKETS.restricted(range(1, 112, 2))
    shares = place_ranks(odd, ranks=2, request=CoreRequest(loader_cores=1))
    assert cpus_of(shares) == [list(range(1, 27, 2)), list(range(29, 55, 2))]
    assert shares[0].loader_cpus == (27, 83)


def test_smaller_socket_limits_the_threads_of_all_ranks() -> None:
    unequal = TWO_SOCKETS.restricted(range(4, 56))
    shares = place_ranks(unequal, ranks=2, request=ALL_CORES)
    assert cpus_of(shares) == [list(range(4, 28)), list(range(28, 52))]


@pytest.mark.parametrize(("ranks", "threads"), [(2, 31), (4, 15), (8, 7), (16, 3)])
def test_an_offline_core_leaves_few_cores_idle(ranks: int, threads: int) -> None:
    shares = place_ranks(cores_in_a_row((1, 31, 0, 0), (32, 32, 1, 1)), ranks=ranks,
                         request=ALL_CORES)  # fmt: skip
    assert [share.threads for share in shares] == [threads] * ranks
    assert [share.socket for share in shares] == [0] * (ranks // 2) + [1] * (ranks // 2)


def test_a_larger_socket_takes_more_ranks_where_each_then_has_more_cores() -> None:
    shares = place_ranks(cores_in_a_row((0, 4, 0, 0), (4, 12, 1, 1)), ranks=4, request=ALL_CORES)
    assert cpus_of(shares) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_small_nodes_are_joined_and_a_large_one_is_shared() -> None:
    of_4_4_16_cores = cores_in_a_row((0, 4, 0, 0), (4, 4, 0, 1), (8, 16, 0, 2))
    shares = place_ranks(of_4_4_16_cores, ranks=3, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(0, 1), (2,), (2,)]
    assert {share.threads for share in shares} == {8}


def test_requested_threads_leave_the_rest_of_unequal_sockets_idle() -> None:
    unequal = TWO_SOCKETS.restricted(range(4, 56))
    shares = place_ranks(unequal, ranks=2, request=CoreRequest(threads=24))
    assert cpus_of(shares) == [list(range(4, 28)), list(range(28, 52))]


def test_requested_threads_leave_the_rest_of_a_shared_node_idle() -> None:
    request = CoreRequest(threads=7, comm_cores=1, loader_cores=1)
    shares = place_ranks(TWO_SOCKETS, ranks=6, request=request)
    assert [share.cpus[0] for share in shares] == [0, 9, 18, 28, 37, 46]
    assert shares[2].cpus == (18, 19, 20, 21, 22, 23, 24)
    assert shares[2].comm_cpus == (25,)
    assert shares[2].loader_cpus == (26, 82)


def test_a_node_over_two_sockets_is_a_node_of_each() -> None:
    shares = place_ranks(cores_in_a_row((0, 4, 0, 0), (4, 4, 1, 0)), ranks=2, request=ALL_CORES)
    assert [(share.socket, share.nodes) for share in shares] == [(0, (0,)), (1, (0,))]
    assert cpus_of(shares) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_cpus_that_alternate_over_sockets_stay_on_theirs() -> None:
    alternating = host([(cpu, cpu, cpu % 2, cpu % 2) for cpu in range(8)])
    shares = place_ranks(alternating, ranks=4, request=ALL_CORES)
    assert cpus_of(shares) == [[0, 2], [4, 6], [1, 3], [5, 7]]


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


def test_ranks_that_do_not_divide_cores_leave_some_idle() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=6, request=CoreRequest(comm_cores=1))
    assert [share.threads for share in shares] == [8] * 6


def test_no_allowed_cpu_is_refused() -> None:
    assert "none of the allowed CPUs is online" in refusal(LAPTOP.restricted({99}), ranks=1)


def test_advised_numbers_of_ranks_fit() -> None:
    for ranks in (1, 2, 4, 8, 14, 28, 56):
        shares = place_ranks(TWO_SOCKETS, ranks=ranks, request=ALL_CORES)
        taken = [cpu for share in shares for cpu in share.cpus]
        assert len(shares) == ranks
        assert len(taken) == len(set(taken)) == (28 if ranks == 1 else 56)


def test_quota_below_the_cores_makes_threads_float() -> None:
    floating = share_on(0, range(4), threads=1, floating=True)
    assert place_ranks(LAPTOP, ranks=1, request=ALL_CORES, quota=1.5) == [floating]
    assert place_ranks(LAPTOP, ranks=1, request=ALL_CORES, quota=0.3) == [floating]
    assert "1 core that the CPU quota of 1.5 gives" in refusal(LAPTOP, ranks=2, quota=1.5)


def test_a_quota_is_divided_among_ranks_and_sets_no_cores_aside() -> None:
    request = CoreRequest(comm_cores=1, loader_cores=1)
    shares = place_ranks(TWO_SOCKETS, ranks=4, request=request, quota=8.9)
    assert [share.threads for share in shares] == [2, 2, 2, 2]
    assert [share.socket for share in shares] == [0, 0, 1, 1]
    assert shares[0].cpus == shares[1].cpus == tuple(range(28))
    assert shares[3].cpus == tuple(range(28, 56))
    assert {(share.comm_cpus, share.loader_cpus) for share in shares} == {((), ())}


def test_quota_that_does_not_divide_may_leave_little_unused() -> None:
    assert "launch.threads=1" in refusal(TWO_SOCKETS, ranks=2, quota=3.5)
    for threads, quota in ((1, 3.5), (None, 5.5)):
        request = CoreRequest(threads=threads)
        shares = place_ranks(TWO_SOCKETS, ranks=2, request=request, quota=quota)
        assert [share.threads for share in shares] == [threads or 2] * 2
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


def test_placement_loads_neither_torch_nor_numpy() -> None:
    program = "import sys, launch.limits, launch.plan; print({'torch', 'numpy'} & set(sys.modules))"
    assert run_python(program).output == "set()\n"


@pytest.mark.parametrize(
    ("topology", "ranks", "request_", "notes"),
    [
        (TWO_SOCKETS, 4, {"comm_cores": 1, "loader_cores": 2}, []),
        (TWO_SOCKETS, 1, {}, ["socket 1 is idle: 2 ranks"]),
        (EIGHT_SOCKETS, 6, {}, ["sockets 6 and 7 are idle: 8 ranks"]),
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


def test_floating_ranks_have_no_spare_cpus() -> None:
    [share] = place_ranks(LAPTOP, ranks=1, request=CoreRequest(), quota=1.5)
    assert share.floating and spare_cpus(share, LAPTOP) == ()
