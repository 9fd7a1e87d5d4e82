from launch.placement import place_ranks, placement_notes
from launch.shares import CoreRequest
from launch.topology import Topology
from tests.launch.hosts_by_hand import (
    EIGHT_SOCKETS,
    FOUR_NODES_A_SOCKET,
    LAPTOP,
    TWO_SOCKETS,
    cores_in_a_row,
)


def noted(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest | None = None,
    quota: float | None = None,
) -> list[str]:
    asked = request or CoreRequest()
    shares = place_ranks(topology, ranks=ranks, request=asked, quota=quota)
    return placement_notes(topology, shares, request=asked, quota=quota)


def test_a_host_in_full_use_needs_no_note() -> None:
    request = CoreRequest(comm_cores=1, loader_cores=2)
    assert noted(TWO_SOCKETS, ranks=4, request=request) == []


def test_idle_sockets_are_noted_with_the_ranks_that_would_use_them() -> None:
    assert noted(TWO_SOCKETS, ranks=1) == ["socket 1 is idle: 2 ranks a host would use both"]
    assert noted(EIGHT_SOCKETS, ranks=6) == [
        "sockets 6 and 7 are idle: 8 ranks a host would use all"
    ]


def test_no_number_is_advised_that_does_not_fit() -> None:
    unequal = cores_in_a_row((0, 4, 0, 0), (4, 2, 1, 1))
    assert noted(unequal, ranks=1) == ["socket 1 is idle"]


def test_ranks_over_several_memory_nodes_are_noted() -> None:
    assert noted(FOUR_NODES_A_SOCKET, ranks=4) == [
        "ranks span several memory nodes: rank 0 spans nodes 0 and 1 of socket 0: "
        "8 ranks a host would have a node each"
    ]
    assert noted(FOUR_NODES_A_SOCKET.restricted(range(56)), ranks=1) == [
        "rank 0 spans nodes 0, 1, 2 and 3 of socket 0: 4 ranks a host would have a node each"
    ]


def test_cores_that_told_threads_leave_idle_are_noted() -> None:
    request = CoreRequest(threads=7, comm_cores=1, loader_cores=1)
    assert noted(TWO_SOCKETS, ranks=6, request=request) == [
        "2 of 56 cores are idle beside the ranks"
    ]


def test_cores_that_stay_idle_unasked_are_noted_with_ranks_that_would_use_all() -> None:
    assert noted(TWO_SOCKETS, ranks=6) == [
        "2 of 56 cores are idle beside the ranks: 4 or 8 ranks a host would use all"
    ]
    one_offline = cores_in_a_row((1, 31, 0, 0), (32, 32, 1, 1))
    [note] = noted(one_offline, ranks=4)
    assert note.startswith("3 of 63 cores are idle")


def test_no_socket_is_promised_that_ranks_would_not_use() -> None:
    unequal = cores_in_a_row((0, 28, 0, 0), (28, 4, 1, 1))
    assert noted(unequal, ranks=2) == ["socket 1 is idle"]


def test_a_quota_is_noted_with_what_was_asked_for_in_vain() -> None:
    request = CoreRequest(threads=1, comm_cores=1, loader_cores=2)
    assert noted(LAPTOP, ranks=1, request=request, quota=2.5) == [
        "the CPU quota of 2.5 keeps 2 of 4 cores busy: threads move among all of them, since other "
        "containers may be bound to any",
        "1 of the quota's 2 CPUs have no thread",
        "launch.comm_cores=1 and data.reserve_cores=2: under the CPU quota no cores are set aside",
    ]
