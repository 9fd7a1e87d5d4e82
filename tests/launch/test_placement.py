import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import InputError
from launch.placement import place_ranks
from launch.shares import CoreRequest, Share
from launch.topology import Topology, read_topology
from tests.launch.hosts_by_hand import (
    EIGHT_SOCKETS,
    FOUR_NODES_A_SOCKET,
    LAPTOP,
    MANY_NODES,
    TWO_SOCKETS,
    TWO_SOCKETS_PAIRED,
    cores_in_a_row,
    host,
)

REPOSITORY = Path(__file__).resolve().parents[2]
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


def test_a_rank_a_socket_has_one_cpu_of_each_of_its_cores() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=2, request=ALL_CORES)
    assert shares == [
        Share(
            socket=0,
            nodes=(0,),
            cpus=tuple(range(28)),
            comm_cpus=(),
            loader_cpus=(),
            threads=28,
            floating=False,
        ),
        Share(
            socket=1,
            nodes=(1,),
            cpus=tuple(range(28, 56)),
            comm_cpus=(),
            loader_cpus=(),
            threads=28,
            floating=False,
        ),
    ]


def test_hyperthreads_numbered_in_pairs_leave_every_second_cpu() -> None:
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


def test_cores_compute_then_communicate_then_load_with_hyperthreads() -> None:
    request = CoreRequest(comm_cores=2, loader_cores=3)
    second = place_ranks(TWO_SOCKETS, ranks=4, request=request)[1]
    assert second.cpus == (14, 15, 16, 17, 18, 19, 20, 21, 22)
    assert second.comm_cpus == (23, 24)
    assert second.loader_cpus == (25, 26, 27, 81, 82, 83)
    assert second.threads == 9


def test_communication_has_one_cpu_a_core_where_hyperthreads_are_paired() -> None:
    request = CoreRequest(threads=2, comm_cores=1, loader_cores=1)
    first = place_ranks(TWO_SOCKETS_PAIRED, ranks=2, request=request)[0]
    assert (first.cpus, first.comm_cpus, first.loader_cpus) == ((0, 2), (4,), (6, 7))


def test_eight_ranks_have_eight_sockets() -> None:
    shares = place_ranks(EIGHT_SOCKETS, ranks=8, request=ALL_CORES)
    assert [share.socket for share in shares] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [share.cpus[0] for share in shares] == [0, 28, 56, 84, 112, 140, 168, 196]
    assert {share.threads for share in shares} == {28}


def test_fewer_ranks_than_sockets_take_the_first() -> None:
    shares = place_ranks(EIGHT_SOCKETS, ranks=3, request=ALL_CORES)
    assert [share.socket for share in shares] == [0, 1, 2]


def test_fewer_ranks_than_sockets_take_the_largest() -> None:
    of_2_4_4_cores = cores_in_a_row((0, 2, 0, 0), (2, 4, 1, 1), (6, 4, 2, 2))
    shares = place_ranks(of_2_4_4_cores, ranks=2, request=ALL_CORES)
    assert cpus_of(shares) == [[2, 3, 4, 5], [6, 7, 8, 9]]


def test_ranks_have_whole_memory_nodes_of_one_socket() -> None:
    shares = place_ranks(FOUR_NODES_A_SOCKET, ranks=4, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert cpus_of(shares)[1] == list(range(28, 56))


def test_a_rank_a_socket_has_all_its_nodes() -> None:
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


def test_sixteen_ranks_have_sixteen_nodes() -> None:
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


def test_a_core_that_a_socket_lacks_stays_idle_on_the_other() -> None:
    unequal = TWO_SOCKETS.restricted(range(4, 56))
    shares = place_ranks(unequal, ranks=2, request=ALL_CORES)
    assert cpus_of(shares) == [list(range(4, 28)), list(range(28, 52))]


def test_sockets_of_very_different_sizes_are_refused() -> None:
    unequal = TWO_SOCKETS.restricted(range(20, 56))
    assert refusal(unequal, ranks=36 // 2 + 1).endswith("which leaves the rest idle")


@pytest.mark.parametrize(("ranks", "threads"), [(2, 31), (4, 15), (8, 7), (16, 3)])
def test_an_offline_core_leaves_few_cores_idle(ranks: int, threads: int) -> None:
    shares = place_ranks(cores_in_a_row((1, 31, 0, 0), (32, 32, 1, 1)), ranks=ranks,
                         request=ALL_CORES)  # fmt: skip
    assert [share.threads for share in shares] == [threads] * ranks
    assert [share.socket for share in shares] == [0] * (ranks // 2) + [1] * (ranks // 2)


def test_a_larger_socket_takes_more_ranks_where_each_then_has_more_cores() -> None:
    shares = place_ranks(cores_in_a_row((0, 4, 0, 0), (4, 12, 1, 1)), ranks=4, request=ALL_CORES)
    assert cpus_of(shares) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_small_nodes_are_put_together_and_a_large_one_is_shared() -> None:
    of_4_4_16_cores = cores_in_a_row((0, 4, 0, 0), (4, 4, 0, 1), (8, 16, 0, 2))
    shares = place_ranks(of_4_4_16_cores, ranks=3, request=ALL_CORES)
    assert [share.nodes for share in shares] == [(0, 1), (2,), (2,)]
    assert {share.threads for share in shares} == {8}


def test_told_threads_leave_the_rest_of_unequal_sockets_idle() -> None:
    unequal = TWO_SOCKETS.restricted(range(4, 56))
    shares = place_ranks(unequal, ranks=2, request=CoreRequest(threads=24))
    assert cpus_of(shares) == [list(range(4, 28)), list(range(28, 52))]


def test_told_threads_leave_the_rest_of_a_shared_node_idle() -> None:
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


def test_one_cpu_takes_one_rank() -> None:
    one = host([(0, 0, 0, 0)])
    assert cpus_of(place_ranks(one, ranks=1, request=ALL_CORES)) == [[0]]
    assert refusal(one, ranks=2) == (
        "2 ranks are more than the 1 core: use 1 rank (mpirun -np, or --np)"
    )
    assert refusal(one, ranks=1, request=CoreRequest(loader_cores=1)) == (
        "1 rank can have 1 core, and data.reserve_cores=1 leaves none to compute: "
        "use data.reserve_cores=0"
    )


def test_more_ranks_than_cores_are_refused_though_there_are_hyperthreads() -> None:
    assert refusal(LAPTOP, ranks=8) == (
        "8 ranks are more than the 4 cores: use 1, 2 or 4 ranks (mpirun -np, or --np)"
    )


def test_ranks_that_do_not_divide_sockets_are_told_what_does() -> None:
    assert refusal(TWO_SOCKETS, ranks=3) == (
        "3 ranks do not fit evenly on 2 sockets of 28 cores: "
        "use 1, 2, 4, 8, 14, 28 or 56 ranks (mpirun -np, or --np)"
    )


def test_advice_names_the_nearest_numbers_of_many() -> None:
    assert "use 4, 5, 6, 7, 8, 16 or 32 ranks" in refusal(EIGHT_SOCKETS, ranks=30)


def test_ranks_that_do_not_divide_memory_nodes_are_told_what_does() -> None:
    assert refusal(FOUR_NODES_A_SOCKET, ranks=6) == (
        "6 ranks do not fit evenly on 2 sockets of 56 cores and 4 NUMA nodes: "
        "use 1, 2, 4, 8, 16, 56 or 112 ranks (mpirun -np, or --np)"
    )


def test_ranks_that_do_not_divide_cores_may_leave_some_idle() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=6, request=CoreRequest(comm_cores=1))
    assert [share.threads for share in shares] == [8] * 6
    assert refusal(TWO_SOCKETS, ranks=32) == (
        "32 ranks do not share 56 cores evenly: use 1, 2, 4, 8, 14, 28 or 56 ranks "
        "(mpirun -np, or --np), or launch.threads=1, which leaves the rest idle"
    )


def test_cores_that_are_set_aside_leave_some_to_compute() -> None:
    request = CoreRequest(comm_cores=8, loader_cores=6)
    assert refusal(TWO_SOCKETS, ranks=4, request=request) == (
        "4 ranks can have 14 cores each, and launch.comm_cores=8 + data.reserve_cores=6 leaves "
        "none to compute: use 1 or 2 ranks (mpirun -np, or --np), "
        "or launch.comm_cores + data.reserve_cores=13"
    )


@pytest.mark.parametrize(
    ("request_", "advice"),
    [
        (CoreRequest(threads=5), "use launch.threads=4"),
        (CoreRequest(threads=4, comm_cores=1), "use launch.threads=3, or launch.comm_cores=0"),
        (CoreRequest(threads=9, comm_cores=9), "use launch.threads + launch.comm_cores=4"),
    ],
)
def test_more_cores_than_a_single_rank_can_have_are_refused(
    request_: CoreRequest, advice: str
) -> None:
    assert refusal(LAPTOP, ranks=1, request=request_).endswith(f": {advice}")


def test_no_allowed_cpu_is_refused() -> None:
    message = refusal(LAPTOP.restricted({99}), ranks=1)
    assert message == "none of the allowed CPUs is online on this host; allow others"


def test_what_the_advice_names_fits() -> None:
    for ranks in (1, 2, 4, 8, 14, 28, 56):
        shares = place_ranks(TWO_SOCKETS, ranks=ranks, request=ALL_CORES)
        taken = [cpu for share in shares for cpu in share.cpus]
        assert len(shares) == ranks
        assert len(taken) == len(set(taken)) == (28 if ranks == 1 else 56)


def test_a_quota_of_one_and_a_half_cpus_is_one_floating_thread() -> None:
    assert place_ranks(LAPTOP, ranks=1, request=ALL_CORES, quota=1.5) == [
        Share(
            socket=0,
            nodes=(0,),
            cpus=(0, 1, 2, 3),
            comm_cpus=(),
            loader_cpus=(),
            threads=1,
            floating=True,
        )
    ]
    assert refusal(LAPTOP, ranks=2, quota=1.5) == (
        "2 ranks are more than the 1 core that the CPU quota of 1.5 gives: "
        "use 1 rank (mpirun -np, or --np)"
    )


def test_a_quota_below_one_cpu_is_one_thread() -> None:
    assert place_ranks(LAPTOP, ranks=1, request=ALL_CORES, quota=0.3)[0].threads == 1


def test_a_quota_is_divided_among_ranks_and_sets_no_cores_aside() -> None:
    request = CoreRequest(comm_cores=1, loader_cores=1)
    shares = place_ranks(TWO_SOCKETS, ranks=4, request=request, quota=8.9)
    assert [share.threads for share in shares] == [2, 2, 2, 2]
    assert [share.socket for share in shares] == [0, 0, 1, 1]
    assert shares[0].cpus == shares[1].cpus == tuple(range(28))
    assert shares[3].cpus == tuple(range(28, 56))
    assert {(share.comm_cpus, share.loader_cpus) for share in shares} == {((), ())}


def test_a_quota_of_which_much_would_be_lost_is_refused_unless_threads_are_told() -> None:
    assert refusal(TWO_SOCKETS, ranks=2, quota=3.5) == (
        "2 ranks do not share 3 cores of the CPU quota evenly: use 1 rank (mpirun -np, or --np), "
        "or launch.threads=1, which leaves the rest idle"
    )
    request = CoreRequest(threads=1)
    shares = place_ranks(TWO_SOCKETS, ranks=2, request=request, quota=3.5)
    assert [share.threads for share in shares] == [1, 1]


def test_a_quota_that_does_not_divide_loses_a_little() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=2, request=ALL_CORES, quota=5.5)
    assert [share.threads for share in shares] == [2, 2]


def test_more_threads_than_the_quota_keeps_busy_are_refused() -> None:
    assert refusal(TWO_SOCKETS, ranks=2, request=CoreRequest(threads=3), quota=5.5) == (
        "launch.threads=3 for each of 2 ranks is too many for the 5 CPUs of the quota: "
        "use 1 rank (mpirun -np, or --np), or launch.threads=2"
    )


def test_a_quota_above_the_cores_changes_nothing() -> None:
    pinned = place_ranks(LAPTOP, ranks=2, request=ALL_CORES)
    assert place_ranks(LAPTOP, ranks=2, request=ALL_CORES, quota=4.0) == pinned


def test_a_quota_above_the_cores_of_the_sockets_in_use_binds_all_the_same() -> None:
    share = place_ranks(TWO_SOCKETS, ranks=1, request=ALL_CORES, quota=30.0)[0]
    assert (share.cpus, share.floating) == (tuple(range(28)), False)


def test_this_machine_takes_a_rank() -> None:
    allowed = read_topology().restricted(os.sched_getaffinity(0))
    shares = place_ranks(allowed, ranks=1, request=ALL_CORES)
    assert set(shares[0].cpus) <= os.sched_getaffinity(0)
    assert shares[0].threads == len(shares[0].cpus) > 0


def test_a_place_is_found_without_torch_and_numpy() -> None:
    program = (
        "import sys, launch.placement, launch.placement\n"
        "import launch.limits, launch.plan\n"
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
