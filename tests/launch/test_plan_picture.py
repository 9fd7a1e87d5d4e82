import io

import pytest
from rich.console import Console

from launch.placement import place_ranks
from launch.plan import HostPlan, RankPlan, host_picture, row_length
from launch.shares import CoreRequest
from launch.topology import Topology
from tests.launch.hosts_by_hand import EIGHT_SOCKETS, LAPTOP, TWO_SOCKETS, cores_in_a_row


def drawn(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest | None = None,
    first: int = 0,
    quota: float | None = None,
) -> list[str]:
    shares = place_ranks(topology, ranks=ranks, request=request or CoreRequest(), quota=quota)
    planned = tuple(
        RankPlan(rank=first + place, share=share, environment={})
        for place, share in enumerate(shares)
    )
    text = io.StringIO()
    picture = host_picture(topology, topology, HostPlan(name="a", ranks=planned), width=100)
    Console(file=text, width=100, highlight=False).print(picture)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_compute_communication_loading_and_idle_cores_differ_without_colours() -> None:
    request = CoreRequest(threads=8, comm_cores=2, loader_cores=3)
    lines = drawn(TWO_SOCKETS, ranks=4, request=request)
    zero = "0  0  0  0  0  0  0  0  0c 0c 0L 0L 0L · "
    one = "1  1  1  1  1  1  1  1  1c 1c 1L 1L 1L · "
    assert lines[1] == f"│ node 0  {zero} {one} │"
    assert lines[-1] == (
        "  numbers are ranks: 0 computes, 0c communicates, 0L loads images, · idle"
    )


def test_numbers_of_several_digits_are_aligned() -> None:
    lines = drawn(cores_in_a_row((0, 2, 0, 9), (2, 2, 0, 10)), ranks=4, first=8)
    assert lines[1:3] == ["│ node 9    8  9 │", "│ node 10  10 11 │"]


def test_floating_ranks_are_drawn_on_all_cores_that_they_may_use() -> None:
    lines = drawn(LAPTOP, ranks=2, quota=2.0)
    assert lines[1] == "│ node 0  ~ ~ ~ ~ │"
    assert lines[-1] == "  ~ ranks move among these cores"


def test_an_idle_socket_is_drawn() -> None:
    assert drawn(TWO_SOCKETS, ranks=1)[4] == "│ node 1  " + " ".join("·" * 28) + " │"


@pytest.mark.parametrize(
    ("topology", "ranks"),
    [(EIGHT_SOCKETS, 224), (cores_in_a_row((0, 64, 0, 0), (64, 64, 1, 1)), 128)],
)
def test_large_hosts_fit_100_columns(topology: Topology, ranks: int) -> None:
    lines = drawn(topology, ranks=ranks, first=1000)
    cells = [
        word for line in lines[:-1] for word in line.split() if len(word) == 4 and word != "node"
    ]
    assert max(len(line) for line in lines) <= 100
    assert cells == [str(1000 + rank) for rank in range(ranks)]


def test_rows_are_even_where_that_is_near() -> None:
    assert row_length(28, most=30) == 28
    assert row_length(28, most=22) == 14
    assert row_length(64, most=29) == 16
    assert row_length(31, most=20) == 20
