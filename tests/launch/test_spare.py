from launch.placement import place_ranks
from launch.shares import CoreRequest, spare_cpus
from tests.launch.hosts_by_hand import LAPTOP, TWO_SOCKETS


def test_the_second_hyperthreads_of_a_ranks_own_cores_are_spare() -> None:
    shares = place_ranks(TWO_SOCKETS, ranks=2, request=CoreRequest())
    first, second = (spare_cpus(share, TWO_SOCKETS) for share in shares)
    assert first == tuple(range(56, 84)) and second == tuple(range(84, 112))


def test_cores_that_load_images_come_before_hyperthreads() -> None:
    [share, _] = place_ranks(TWO_SOCKETS, ranks=2, request=CoreRequest(loader_cores=2))
    assert spare_cpus(share, TWO_SOCKETS) == share.loader_cpus == (26, 27, 82, 83)


def test_hyperthreads_of_a_core_that_communicates_stay_free() -> None:
    [share, _] = place_ranks(TWO_SOCKETS, ranks=2, request=CoreRequest(comm_cores=1))
    assert share.comm_cpus == (27,) and 83 not in spare_cpus(share, TWO_SOCKETS)


def test_where_only_first_hyperthreads_may_be_used_none_is_spare() -> None:
    allowed = TWO_SOCKETS.restricted(range(56))
    [share, _] = place_ranks(allowed, ranks=2, request=CoreRequest())
    assert spare_cpus(share, allowed) == ()


def test_threads_that_float_leave_nothing() -> None:
    [share] = place_ranks(LAPTOP, ranks=1, request=CoreRequest(), quota=1.5)
    assert share.floating and spare_cpus(share, LAPTOP) == ()
