"""Properties of placements on hosts whose sockets and memory nodes differ in size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.placement import MOST_IDLE, Misfit, fit_ranks, fitting_shapes, placement_notes
from launch.shares import (
    CoreRequest,
    NodeGroup,
    Share,
    choose_sockets,
    divide_evenly,
    divide_host,
    spread,
)
from launch.topology import Socket, Topology, count_cores, list_sockets
from tests.launch.topologies import cores_in_a_row

NodeSizes = list[list[int]]
"""Cores of each node of each socket."""

HOSTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


def make_topology(sizes: NodeSizes) -> Topology:
    rows = []
    first = node = 0
    for socket, nodes in enumerate(sizes):
        for cores in nodes:
            rows.append((first, cores, socket, node))
            first, node = first + cores, node + 1
    return cores_in_a_row(*rows, sibling_offset=first)


def placed(topology: Topology, *, ranks: int, request: CoreRequest) -> list[Share] | Misfit:
    return fit_ranks(list_sockets(topology), ranks=ranks, request=request, quota=None)


def all_cpus(share: Share) -> tuple[int, ...]:
    return (*share.cpus, *share.comm_cpus, *share.loader_cpus)


@given(HOSTS, st.data())
def test_placement_of_any_number_of_ranks(sizes: NodeSizes, data: st.DataObject) -> None:
    topology = make_topology(sizes)
    sockets = list_sockets(topology)
    ranks = data.draw(st.integers(1, count_cores(sockets)))
    chosen = choose_sockets(sockets, ranks)
    groups, even = divide_host(chosen, ranks), divide_evenly(chosen, ranks)
    if groups and even:
        assert fewest_cores(groups) >= fewest_cores(even)
    request = CoreRequest(comm_cores=data.draw(st.integers(0, 1)), loader_cores=0)
    shares = placed(topology, ranks=ranks, request=request)
    if not request.comm_cores and groups is not None:
        cores = count_cores(chosen)
        is_wasteful = cores - ranks * fewest_cores(groups) > MOST_IDLE * cores
        assert isinstance(shares, Misfit) == is_wasteful
    assert groups is not None or isinstance(shares, Misfit)
    if isinstance(shares, Misfit):
        return
    taken = [cpu for share in shares for cpu in all_cpus(share)]
    assert len(shares) == ranks and len(taken) == len(set(taken))
    assert len({(share.threads, len(share.cpus), len(share.comm_cpus)) for share in shares}) == 1
    place = {cpu.cpu: (cpu.socket, cpu.node) for cpu in topology.cpus}
    for share in shares:
        assert {place[cpu][0] for cpu in all_cpus(share)} == {share.socket}
        assert {place[cpu][1] for cpu in all_cpus(share)} <= set(share.nodes)
        sharing = sum(bool(set(share.nodes) & set(other.nodes)) for other in shares)
        assert len(share.nodes) == 1 or sharing == 1  # a rank over several nodes has them alone
    assert [share.socket for share in shares] == sorted(share.socket for share in shares)
    placement_notes(topology, shares, request=request, quota=None)


def fewest_cores(groups: list[NodeGroup]) -> int:
    return min(group.cores_each for group in groups)


@given(HOSTS, st.data())
def test_requested_threads_fit_if_nodes_have_room(sizes: NodeSizes, data: st.DataObject) -> None:
    sockets = list_sockets(make_topology(sizes))
    threads = data.draw(st.integers(1, 9))
    ranks = sum(len(node.cores) // threads for socket in sockets for node in socket.nodes)
    different = len({len(node.cores) for socket in sockets for node in socket.nodes}) > 1
    if ranks >= len(sockets) and different:
        shares = placed(make_topology(sizes), ranks=ranks, request=CoreRequest(threads=threads))
        assert not isinstance(shares, Misfit)


@pytest.mark.parametrize("offline", [0, 5, 31, 32, 63])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_one_core_of_two_sockets_is_offline(offline: int, ranks: int) -> None:
    topology = cores_in_a_row((0, 32, 0, 0), (32, 32, 1, 1))
    online = topology.restricted(set(range(64)) - {offline})
    shares = placed(online, ranks=ranks, request=CoreRequest())
    assert not isinstance(shares, Misfit)
    assert shares[0].threads == (32 if ranks == 1 else 31 * 2 // ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_core_of_many_nodes_is_offline(ranks: int) -> None:
    nodes = [(8 * node, 8, node // 4, node) for node in range(8)]
    online = cores_in_a_row(*nodes).restricted(set(range(64)) - {13})
    shares = placed(online, ranks=ranks, request=CoreRequest())
    assert not isinstance(shares, Misfit)
    assert shares[0].threads == 64 // ranks - 1
    assert {len(share.nodes) for share in shares} == {8 // ranks}


def test_shapes_of_an_uneven_host() -> None:
    sockets = list_sockets(cores_in_a_row((1, 31, 0, 0), (32, 32, 1, 1)))
    shapes = fitting_shapes(sockets, request=CoreRequest(), quota=None)
    assert {(1, 32), (2, 31), (4, 15), (8, 7), (63, 1)} <= set(shapes)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_ranks_are_spread_evenly(rooms: list[int], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(0, sum(rooms)))
    counts = spread(ranks, rooms)
    assert sum(counts) == ranks
    assert all(count <= room for count, room in zip(counts, rooms, strict=True))
    for count, room in zip(counts, rooms, strict=True):
        assert count == room or count >= max(counts) - 1


@given(HOSTS)
def test_each_fitting_shape_can_be_placed(sizes: NodeSizes) -> None:
    sockets: tuple[Socket, ...] = list_sockets(make_topology(sizes))
    for quota in (None, count_cores(sockets) / 2 + 0.5):
        request = CoreRequest()
        for ranks, threads in fitting_shapes(sockets, request=request, quota=quota):
            shares = fit_ranks(sockets, ranks=ranks, request=request, quota=quota)
            assert not isinstance(shares, Misfit)
            assert {share.threads for share in shares} == {threads}
