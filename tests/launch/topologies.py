"""Topologies of hosts for tests, written as rows of CPUs."""

from collections.abc import Sequence

from launch.topology import Cpu, Topology


def cores_in_a_row(
    *nodes: tuple[int, int, int, int], sibling_offset: int | None = None
) -> Topology:
    """Return a host of rows (first CPU, cores, socket, node); cores have the number of their CPU.

    Args:
        nodes: One row for each memory node of each socket.
        sibling_offset: The second CPU of the core of CPU n is n plus this; None: no hyperthreads.
    """
    rows = [
        (cpu, cpu, socket, node)
        for first, cores, socket, node in nodes
        for cpu in range(first, first + cores)
    ]
    if sibling_offset is not None:
        rows += [(cpu + sibling_offset, core, socket, node) for cpu, core, socket, node in rows]
    return host(rows)


def host(rows: Sequence[tuple[int, int, int, int]]) -> Topology:
    """Return a host of rows (CPU, core, socket, node)."""
    return Topology(tuple(sorted(Cpu(*row) for row in rows)))


TWO_SOCKETS = cores_in_a_row((0, 28, 0, 0), (28, 28, 1, 1), sibling_offset=56)
"""2×28 cores; CPU n and n + 56 are one core."""

TWO_SOCKETS_PAIRED = host(
    [(cpu, cpu // 2, 0, 0) for cpu in range(56)] + [(cpu, cpu // 2, 1, 1) for cpu in range(56, 112)]
)
"""2×28 cores; CPU 2n and 2n + 1 are one core."""

EIGHT_SOCKETS = cores_in_a_row(
    *((28 * socket, 28, socket, socket) for socket in range(8)), sibling_offset=224
)

FOUR_NODES_A_SOCKET = cores_in_a_row(*((14 * node, 14, node // 4, node) for node in range(8)))
"""2 sockets of 4 nodes of 14 cores, as Xeon Max with four clusters a socket."""

MANY_NODES = cores_in_a_row(
    *((8 * node, 8, 0 if node < 8 else 1, node) for node in range(16)), sibling_offset=128
)
"""2 sockets of 8 nodes of 8 cores, as an EPYC that shows each L3 cache as a node."""

LAPTOP = cores_in_a_row((0, 4, 0, 0), sibling_offset=4)
