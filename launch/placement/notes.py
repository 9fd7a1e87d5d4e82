"""What a user should know about a placement that fits all the same."""

from collections.abc import Iterable, Sequence

from launch.host.sockets import Socket, count_cores, sockets_of
from launch.host.topology import Topology
from launch.placement.fitting import Misfit, cores_of_quota, find_fit, fits_by_ranks
from launch.placement.host_parts import NodeGroup
from launch.placement.share import CoreRequest, Share


def notes(
    topology: Topology, shares: Sequence[Share], *, request: CoreRequest, quota: float | None
) -> list[str]:
    """Idle sockets and cores, ranks over several memory nodes, a quota that makes ranks float.

    The arguments are those of `place_ranks`, and what it returned.
    """
    sockets = sockets_of(topology)
    busy = {share.socket for share in shares}
    used = [socket for socket in sockets if socket.number in busy]
    nodes = sum(len(socket.nodes) for socket in sockets)

    def groups_with(ranks: int) -> Sequence[NodeGroup]:
        fit = find_fit(sockets, ranks=ranks, request=request, quota=quota)
        return () if isinstance(fit, Misfit) else fit.groups

    all_sockets = len({group.socket for group in groups_with(len(sockets))}) == len(sockets)
    own_nodes = [len(group.nodes) for group in groups_with(nodes)] == [1] * nodes
    found = [
        *idle_sockets(sockets, used, advised=all_sockets),
        *spanning(shares, advised=nodes if own_nodes else None),
    ]
    if quota is not None and shares[0].floating:
        return [*found, *floating(used, shares, request=request, quota=quota)]
    idle = count_idle(used, shares)
    if not idle:
        return found
    what = f"{idle} of {count_cores(used)} cores are idle beside the ranks"
    if request.threads is not None:  # they were asked to be
        return [*found, what]
    better = numbers_in_full_use(sockets, request=request, quota=quota)
    return [*found, what + better_choice(better, ranks=len(shares))]


def count_idle(used: Sequence[Socket], shares: Sequence[Share]) -> int:
    """Cores that no rank has, of the sockets that have ranks."""
    busy = {cpu for one in shares for cpu in (*one.cpus, *one.comm_cpus, *one.loader_cpus)}
    return sum(busy.isdisjoint(core) for socket in used for core in socket.cores)


def numbers_in_full_use(
    sockets: Sequence[Socket], *, request: CoreRequest, quota: float | None
) -> list[int]:
    """Return the numbers of ranks, more than there are sockets, that leave no core idle."""
    fits = fits_by_ranks(sockets, request=request, quota=quota)
    return [ranks for ranks, fit in fits.items() if ranks > len(sockets) and not fit.idle]


def better_choice(numbers: Sequence[int], *, ranks: int) -> str:
    """Return the end of a note that names the nearest numbers, from half to twice the ranks."""
    below = [number for number in numbers if ranks / 2 <= number < ranks][-1:]
    above = [number for number in numbers if ranks < number <= 2 * ranks][:1]
    choices = " or ".join(str(number) for number in (*below, *above))
    return f": {choices} ranks a host would use all" if choices else ""


def idle_sockets(sockets: Sequence[Socket], used: Sequence[Socket], *, advised: bool) -> list[str]:
    """Sockets without a rank; `advised`: a rank for each would use them."""
    idle = [socket.number for socket in sockets if socket not in used]
    if not idle:
        return []
    what = f"{named('socket', idle)} {'is' if len(idle) == 1 else 'are'} idle"
    if advised:
        return [f"{what}: {len(sockets)} ranks a host would use {'all' if idle[1:] else 'both'}"]
    return [what]


def spanning(shares: Sequence[Share], *, advised: int | None) -> list[str]:
    """Ranks whose memory comes from several nodes; `advised`: ranks that would have one each."""
    spans = [(rank, share) for rank, share in enumerate(shares) if len(share.nodes) > 1]
    if not spans:
        return []
    rank, share = spans[0]
    what = f"rank {rank} spans {named('node', share.nodes)} of socket {share.socket}"
    if len(spans) > 1:
        what = f"ranks span several memory nodes: {what}"
    if advised:
        return [f"{what}: {advised} ranks a host would have a node each"]
    return [what]


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
