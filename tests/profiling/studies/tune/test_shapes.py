"""Ranks and threads of a host."""

from collections.abc import Sequence

from launch.placement import fitting_shapes
from launch.shares import CoreRequest
from launch.topology import Cpu, Socket, Topology, sockets_of
from profiling.studies.tune.measure import measured_pairs, with_batches

REQUEST = CoreRequest(threads=None, comm_cores=0, loader_cores=0)


def host(sockets: int, cores: int) -> Sequence[Socket]:
    topology = Topology(
        tuple(
            Cpu(number, core=number, socket=number // cores, node=number // cores)
            for number in range(sockets * cores)
        )
    )
    return sockets_of(topology)


def test_shapes_are_those_that_fit_evenly_and_a_rank_keeps_to_a_socket() -> None:
    found = fitting_shapes(host(2, 4), quota=None, request=REQUEST)
    assert found == [(1, 4), (2, 4), (4, 2), (8, 1)]


def test_cores_set_aside_do_not_compute() -> None:
    aside = CoreRequest(threads=None, comm_cores=1, loader_cores=0)
    assert fitting_shapes(host(2, 4), quota=None, request=aside) == [(1, 3), (2, 3), (4, 1)]


def test_each_measured_pair_of_several_ranks_is_also_measured_alone() -> None:
    shapes = fitting_shapes(host(2, 28), quota=None, request=REQUEST)
    found = measured_pairs(shapes, most=4)
    assert len(found) <= 10
    assert {(1, threads) for _, threads in found} <= set(found)
    assert (1, 28) in found and (56, 1) in found


def test_two_cores_are_measured_in_every_way() -> None:
    shapes = fitting_shapes(host(1, 2), quota=None, request=REQUEST)
    assert measured_pairs(shapes, most=4) == [(1, 1), (1, 2), (2, 1)]
    assert len(with_batches(measured_pairs(shapes, most=4), configured=2)) == 9


def test_the_configurations_own_batch_is_measured_too() -> None:
    assert [one.batch_size for one in with_batches([(1, 2)], configured=8)] == [1, 2, 4, 8]
