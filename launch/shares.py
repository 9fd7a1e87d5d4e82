"""Divide a host among ranks: full sockets, full memory nodes, or shares of one node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.topology import Core, Node, Socket, Topology, count_cores


@dataclass(frozen=True, kw_only=True)
class CoreRequest:
    """Cores that each rank requests. [physical cores]"""

    threads: int | None = None  # Compute threads, one a core; None: all cores that are left
    comm_cores: int = 0  # For communication: `launch.comm_cores`
    loader_cores: int = 0  # For loading images: `data.reserve_cores`


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of a host."""

    socket: int
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    """CPUs of its compute threads, one a core: exactly `threads` of them, more where it floats."""
    comm_cpus: tuple[int, ...]
    loader_cpus: tuple[int, ...]  # All CPUs, hyperthreads included, of the cores that load images
    threads: int  # Compute threads
    floating: bool
    """Whether the threads move among `cpus`, because a CPU quota gives fewer than there are."""

    @property
    def main_cpus(self) -> tuple[int, ...]:
        """The CPU that the main thread is bound to while it computes; empty: it is not bound.

        The other compute threads are each bound to a core. A main thread that may leave its own
        moves, as soon as another program runs there, to the core of one of these: two threads of a
        team then share a core, and every parallel region waits for both.
        """
        return () if self.floating else self.cpus[:1]


def spare_cpus(share: Share, topology: Topology) -> tuple[int, ...]:
    """Return CPUs that load images: set aside, or else the other hyperthreads of bound cores."""
    if share.loader_cpus or share.floating:
        return share.loader_cpus
    cores = {cpu.core for cpu in topology.cpus if cpu.cpu in share.cpus}
    return tuple(
        cpu.cpu for cpu in topology.cpus if cpu.core in cores and cpu.cpu not in share.cpus
    )


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Memory nodes of one socket, and the number of ranks that share them."""

    socket: int
    nodes: tuple[Node, ...]
    ranks: int

    @property
    def cores(self) -> tuple[Core, ...]:
        """All cores of the nodes, in the order of the host."""
        return tuple(core for node in self.nodes for core in node.cores)

    @property
    def cores_each(self) -> int:
        """Cores of each rank alone."""
        return sum(len(node.cores) for node in self.nodes) // self.ranks


def choose_sockets(sockets: Sequence[Socket], ranks: int) -> list[Socket]:
    """Return the sockets that ranks may use: the largest and first ones, in order of number."""
    by_size = sorted(sockets, key=lambda socket: (-len(socket.cores), socket.number))
    return sorted(by_size[:ranks], key=lambda socket: socket.number)


def divide_host(
    sockets: Sequence[Socket], ranks: int, *, cores_each: int | None = None
) -> list[NodeGroup] | None:
    """Return the groups of nodes that ranks share, in order of rank.

    On a uniform host every socket has as many ranks as another, and every node too. If nodes
    differ in size, which offline cores and cpusets bring about, a larger node may take more ranks
    than a smaller one if each rank then has more cores. `cores_each` is enough for each rank.

    Returns None where some rank of a uniform host would need parts of two sockets, or share a node
    that others do not.
    """
    even = divide_evenly(sockets, ranks)
    node_sizes = {len(node.cores) for socket in sockets for node in socket.nodes}
    if len({len(socket.nodes) for socket in sockets}) == 1 and len(node_sizes) == 1:
        return even
    # The largest number of cores for which all ranks have room: it cannot be computed directly,
    # since room is counted node by node.
    size = count_cores(sockets) // ranks
    while sum(count_room(form_groups(socket, size=size)) for socket in sockets) < ranks:
        size -= 1
    if cores_each is not None:
        size = min(size, cores_each)
    if even and min(group.cores_each for group in even) >= size:
        return even
    return pack(sockets, ranks, size=size)


def divide_evenly(sockets: Sequence[Socket], ranks: int) -> list[NodeGroup] | None:
    """Return the groups with equal numbers of ranks per socket, and per node of a socket."""
    if ranks % len(sockets):
        return None
    groups: list[NodeGroup] = []
    for socket in sockets:
        of_socket = divide_socket(socket, ranks // len(sockets))
        if of_socket is None:
            return None
        groups += of_socket
    return groups


def divide_socket(socket: Socket, ranks: int) -> list[NodeGroup] | None:
    """Return the groups of one socket, with equal numbers of ranks per node or nodes per rank."""
    count = len(socket.nodes)
    if max(ranks, count) % min(ranks, count):
        return None
    step, sharers = max(1, count // ranks), max(1, ranks // count)
    parts = [socket.nodes[first : first + step] for first in range(0, count, step)]
    return [NodeGroup(socket=socket.number, nodes=nodes, ranks=sharers) for nodes in parts]


def form_groups(socket: Socket, *, size: int) -> list[NodeGroup]:
    """Return the groups of nodes, each with the number of ranks of `size` cores that fit.

    A node that has room for a rank is a group by itself; smaller ones are put together until one
    rank has room. Remaining nodes are in no group.
    """
    groups = []
    small: list[Node] = []
    for node in socket.nodes:
        if len(node.cores) >= size:
            ranks = len(node.cores) // size
            groups.append(NodeGroup(socket=socket.number, nodes=(node,), ranks=ranks))
            continue
        small.append(node)
        if sum(len(other.cores) for other in small) >= size:
            groups.append(NodeGroup(socket=socket.number, nodes=tuple(small), ranks=1))
            small = []
    return sorted(groups, key=lambda group: group.nodes[0].number)


def count_room(groups: Sequence[NodeGroup]) -> int:
    """Return the number of ranks that fit on all groups."""
    return sum(group.ranks for group in groups)


def pack(sockets: Sequence[Socket], ranks: int, *, size: int) -> list[NodeGroup]:
    """Return the groups of ranks of at least `size` cores, spread as evenly as there is room."""
    of_sockets = [form_groups(socket, size=size) for socket in sockets]
    counts = spread(ranks, [count_room(groups) for groups in of_sockets])
    packed = []
    for socket, groups, count in zip(sockets, of_sockets, counts, strict=True):
        even = divide_socket(socket, count) if count else []
        if even is not None and all(group.cores_each >= size for group in even):
            packed += even
            continue
        shared = spread(count, [group.ranks for group in groups])
        pairs = zip(groups, shared, strict=True)
        packed += [replace(group, ranks=of_group) for group, of_group in pairs if of_group]
    return packed


def spread(ranks: int, rooms: Sequence[int]) -> list[int]:
    """Return the ranks of each place, as even as `rooms` allows; the first get the remainder."""
    assert ranks <= sum(rooms), (ranks, rooms)
    counts = [0] * len(rooms)
    while ranks:
        free = [place for place, room in enumerate(rooms) if counts[place] < room]
        least_room = min(rooms[place] - counts[place] for place in free)
        step = max(1, min(ranks // len(free), least_room))
        for place in free[:ranks]:
            counts[place] += step
            ranks -= step
    return counts
