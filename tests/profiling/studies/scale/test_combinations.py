from launch.hosts import hosts_with_ranks
from launch.shares import CoreRequest
from launch.topology import Topology
from profiling.studies.scale_study import Combination, combine
from tests.launch.hosts_by_hand import EIGHT_SOCKETS, cores_in_a_row

TWO_CORES = cores_in_a_row((0, 2, 0, 0))


def combined(
    *,
    ranks: tuple[int, ...],
    threads: tuple[int, ...],
    allowed: Topology = TWO_CORES,
    global_batch: int | None = None,
    quota: float | None = None,
    comm_cores: int = 0,
    hosts: str | None = None,
) -> list[Combination]:
    return combine(
        ranks,
        threads,
        batch_size=8,
        global_batch=global_batch,
        place_on_hosts=lambda count: hosts_with_ranks(hosts, ranks=count) if hosts else (),
        allowed=allowed,
        quota=quota,
        request=CoreRequest(comm_cores=comm_cores),
    )


def shapes_that_fit(found: list[Combination]) -> list[tuple[int, int]]:
    return [(one.ranks, one.threads) for one in found if not one.misfit]


def test_two_cores_fit_two_ranks_or_two_threads() -> None:
    found = combined(ranks=(1, 2, 4), threads=(1, 2))
    assert shapes_that_fit(found) == [(1, 1), (1, 2), (2, 1)]
    reasons = {(one.ranks, one.threads): one.misfit for one in found if one.misfit}
    assert reasons[2, 2] == "2 ranks can have 1 core each, and launch.threads=2 is more"
    assert reasons[4, 1] == reasons[4, 2] == "4 ranks are more than the 2 cores"


def test_eight_sockets_of_28_cores() -> None:
    found = combined(ranks=(8, 16), threads=(7, 14, 28), allowed=EIGHT_SOCKETS)
    assert shapes_that_fit(found) == [(8, 7), (8, 14), (8, 28), (16, 7), (16, 14)]


def test_cores_set_aside_leave_fewer_threads() -> None:
    found = combined(ranks=(8,), threads=(27, 28), allowed=EIGHT_SOCKETS, comm_cores=1)
    assert shapes_that_fit(found) == [(8, 27)]


def test_a_quota_counts_as_cores() -> None:
    assert shapes_that_fit(combined(ranks=(1, 2), threads=(1, 2), quota=1.5)) == [(1, 1)]


def test_each_rank_has_the_batch_size_or_its_part_of_the_global_batch() -> None:
    weak = combined(ranks=(1, 2), threads=(1,))
    assert [(one.batch_size, one.images) for one in weak] == [(8, 8), (8, 16)]
    strong = combined(ranks=(1, 2), threads=(1,), global_batch=6)
    assert [(one.batch_size, one.images) for one in strong] == [(6, 6), (3, 6)]


def test_a_global_batch_that_does_not_divide_does_not_fit() -> None:
    (found,) = combined(ranks=(2,), threads=(1,), global_batch=3)
    assert found.misfit == "3 images do not divide evenly among 2 ranks"


def test_hosts_share_the_ranks_and_each_host_must_fit_its_own() -> None:
    found = combined(ranks=(1, 2, 4, 6), threads=(1,), hosts="a,b")
    assert [one.hosts for one in found][1:] == [
        (("a", 1), ("b", 1)),
        (("a", 2), ("b", 2)),
        (("a", 3), ("b", 3)),
    ]
    assert shapes_that_fit(found) == [(2, 1), (4, 1)]
    assert found[0].misfit.startswith("--np 1: does not divide evenly among 2 hosts")
    assert found[3].misfit == "3 ranks are more than the 2 cores"
