"""What a user should know about a placement that fits all the same."""

from collections.abc import Iterable, Sequence

from launch.host.sockets import Socket, count_cores, sockets_of
from launch.host.topology import Topology
from launch.placement.fitting import cores_of_quota
from launch.placement.place_ranks import fitting_numbers
from launch.placement.share import CoreRequest, Share


def notes(
    topology: Topology, shares: Sequence[Share], *, request: CoreRequest, quota: float | None
) -> list[str]:
    """Idle sockets and cores, ranks over several memory nodes, a quota that makes ranks float.

    The arguments are those of `place_ranks`, and what it returned.
    """
    sockets = sockets_of(topology)
    used = [socket for socket in sockets if any(one.socket == socket.number for one in shares)]
    numbers = fitting_numbers(sockets, request=request, quota=quota)
    found = [*idle_sockets(sockets, used, numbers), *spanning(sockets, shares, numbers)]
    if quota is not None and shares[0].floating:
        return [*found, *floating(used, shares, request=request, quota=quota)]
    return [*found, *idle_cores(used, shares)]


def idle_sockets(
    sockets: Sequence[Socket], used: Sequence[Socket], numbers: Sequence[int]
) -> list[str]:
    """Sockets without a rank."""
    idle = [socket.number for socket in sockets if socket not in used]
    if not idle:
        return []
    what = f"{named('socket', idle)} {'is' if len(idle) == 1 else 'are'} idle"
    if len(sockets) in numbers:
        return [f"{what}: {len(sockets)} ranks a host would use {'all' if idle[1:] else 'both'}"]
    return [what]


def spanning(
    sockets: Sequence[Socket], shares: Sequence[Share], numbers: Sequence[int]
) -> list[str]:
    """Ranks whose memory comes from several nodes."""
    spans = [(rank, share) for rank, share in enumerate(shares) if len(share.nodes) > 1]
    if not spans:
        return []
    rank, share = spans[0]
    what = f"rank {rank} spans {named('node', share.nodes)} of socket {share.socket}"
    if len(spans) > 1:
        what = f"ranks span several memory nodes: {what}"
    nodes = sum(len(socket.nodes) for socket in sockets)
    if nodes in numbers:
        return [f"{what}: {nodes} ranks a host would have a node each"]
    return [what]


def idle_cores(used: Sequence[Socket], shares: Sequence[Share]) -> list[str]:
    """Cores that no rank has, of the sockets that have ranks."""
    busy = {cpu for one in shares for cpu in (*one.cpus, *one.comm_cpus, *one.loader_cpus)}
    cores = [core for socket in used for core in socket.cores]
    idle = sum(busy.isdisjoint(core) for core in cores)
    return [f"{idle} of {len(cores)} cores are idle beside the ranks"] if idle else []


def floating(
    used: Sequence[Socket], shares: Sequence[Share], *, request: CoreRequest, quota: float
) -> list[str]:
    """Why threads are not bound to cores of their own, and what was asked for in vain."""
    usable = cores_of_quota(quota)
    found = [
        f"the CPU quota of {quota:g} keeps {usable} of {count_cores(used)} cores busy: threads "
        "move among all of them, since other containers may be bound to any"
    ]
    threads = sum(one.threads for one in shares)
    if threads < usable:
        found.append(f"{usable - threads} of the quota's {usable} CPUs have no thread")
    asked = {
        "launch.comm_cores": request.comm_cores,
        "data.reserve_cores": request.loader_cores,
    }
    fields = [f"{field}={count}" for field, count in asked.items() if count]
    if fields:
        found.append(f"{' and '.join(fields)}: under the CPU quota no cores are set aside")
    return found


def named(kind: str, numbers: Iterable[int]) -> str:
    """Such as `socket 1`, `nodes 0 and 1`."""
    words = [str(number) for number in numbers]
    if len(words) == 1:
        return f"{kind} {words[0]}"
    return f"{kind}s {', '.join(words[:-1])} and {words[-1]}"
