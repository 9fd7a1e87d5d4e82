"""A host divided among ranks: whole sockets, whole memory nodes, or a share of one node."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.host.sockets import Core, Node, Socket


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank may have: some nodes of a socket, alone or as one of several sharers."""

    socket: int
    nodes: tuple[Node, ...]
    sharers: int
    """Ranks on these nodes, this one included."""
    place: int
    """This rank's place among them, from 0."""

    @property
    def shared_cores(self) -> tuple[Core, ...]:
        """All cores of its nodes, those of the other sharers included."""
        return tuple(core for node in self.nodes for core in node.cores)

    @property
    def size(self) -> int:
        """Cores of this rank alone."""
        return len(self.shared_cores) // self.sharers

    @property
    def cores(self) -> tuple[Core, ...]:
        """The cores of this rank alone: neighbours in the order of the host."""
        first = self.place * self.size
        return self.shared_cores[first : first + self.size]

    @property
    def is_even(self) -> bool:
        """Whether the sharers leave no core over."""
        return len(self.shared_cores) % self.sharers == 0


def divide_host(sockets: Sequence[Socket], ranks: int) -> list[Part] | None:
    """Each rank's part in order of rank; ranks on one socket follow each other.

    Up to one rank a socket, ranks have whole sockets: the largest, and of equal ones the first.
    More ranks than sockets, or than a socket's nodes, must be a multiple; fewer ranks than nodes
    must divide them.

    Returns:
        None where some rank would need parts of two sockets, or share a node that others do not.
    """
    by_size = sorted(sockets, key=lambda socket: (-len(socket.cores), socket.number))
    chosen = sorted(by_size[:ranks], key=lambda socket: socket.number)
    if ranks % len(chosen):
        return None
    of_sockets = [divide_socket(socket, ranks // len(chosen)) for socket in chosen]
    if None in of_sockets:
        return None
    return [part for parts in of_sockets if parts for part in parts]


def divide_socket(socket: Socket, ranks: int) -> list[Part] | None:
    """The parts of the ranks on one socket."""
    nodes = socket.nodes
    if ranks > len(nodes):
        if ranks % len(nodes):
            return None
        sharers = ranks // len(nodes)
        return [
            Part(socket=socket.number, nodes=(node,), sharers=sharers, place=place)
            for node in nodes
            for place in range(sharers)
        ]
    if len(nodes) % ranks:
        return None
    step = len(nodes) // ranks
    return [
        Part(socket=socket.number, nodes=nodes[first : first + step], sharers=1, place=0)
        for first in range(0, len(nodes), step)
    ]
