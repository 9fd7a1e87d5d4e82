"""A host as placement sees it: sockets of memory nodes of physical cores."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.host.topology import Topology

Core = tuple[int, ...]
"""The CPUs (hyperthreads) of a physical core, in order of number."""


@dataclass(frozen=True)
class Node:
    """The part of a NUMA node that lies on one socket."""

    number: int
    cores: tuple[Core, ...]
    """In order of their lowest CPU, the same however the host was described."""


@dataclass(frozen=True)
class Socket:
    """A processor package."""

    number: int
    nodes: tuple[Node, ...]

    @property
    def cores(self) -> tuple[Core, ...]:
        """All its cores, node by node."""
        return tuple(core for node in self.nodes for core in node.cores)


def sockets_of(topology: Topology) -> tuple[Socket, ...]:
    """The sockets that have CPUs, in order of number.

    A node whose CPUs lie on two sockets is a node of each.
    """
    tree: dict[int, dict[int, dict[int, list[int]]]] = {}
    for cpu in sorted(topology.cpus):
        nodes = tree.setdefault(cpu.socket, {})
        nodes.setdefault(cpu.node, {}).setdefault(cpu.core, []).append(cpu.cpu)
    return tuple(
        Socket(
            number,
            tuple(
                Node(node, tuple(tuple(core) for core in cores.values()))
                for node, cores in sorted(nodes.items())
            ),
        )
        for number, nodes in sorted(tree.items())
    )


def count_cores(sockets: Sequence[Socket]) -> int:
    """Physical cores of them all."""
    return sum(len(socket.cores) for socket in sockets)


def describe_sockets(sockets: Sequence[Socket]) -> str:
    """Such as `2 sockets of 28 cores`, or `2 sockets of 28 cores and 4 NUMA nodes`."""
    name = "1 socket" if len(sockets) == 1 else f"{len(sockets)} sockets"
    sizes = [len(socket.cores) for socket in sockets]
    nodes = [len(socket.nodes) for socket in sockets]
    cores = f"{span(sizes)} core{'s' if max(sizes) > 1 else ''}"
    in_nodes = f" and {span(nodes)} NUMA nodes" if max(nodes) > 1 else ""
    return f"{name} of {cores}{in_nodes}"


def span(counts: Sequence[int]) -> str:
    """One number where all are equal, else the least and the greatest."""
    least, greatest = min(counts), max(counts)
    return f"{least}" if least == greatest else f"{least} to {greatest}"
