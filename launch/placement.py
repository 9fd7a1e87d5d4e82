"""Which cores each rank of a host gets, whether ranks fit, and what a user should know about it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from common.errors import InputError
from launch.mpirun import ANY_RANKS_OPTION
from launch.shares import CoreRequest, NodeGroup, Share, choose_sockets, divide_host, room_of
from launch.topology import Socket, Topology, count_cores, describe_sockets, sockets_of

CHOICES_SHOWN = 7


def place_ranks(
    topology: Topology,
    *,
    ranks: int,
    request: CoreRequest,
    quota: float | None = None,
    option: str = ANY_RANKS_OPTION,
) -> list[Share]:
    """Place ranks on a host: none over two sockets, nor over memory nodes if there are enough.

    Ranks up to the number of sockets have one each, more are a multiple of it, and the same holds
    for the memory nodes of a socket. Beyond that, ranks share the cores of a node. Where sockets or
    nodes differ in size, larger ones may take more ranks. All ranks have as many cores as each
    other; what is left over stays idle, up to `MOST_IDLE` of all. A core is a physical one; the
    lowest of its allowed CPUs computes. Of a rank's cores the first compute, the next communicate,
    the next load images.

    A CPU quota that gives fewer cores than there are makes ranks float: their threads are as many
    as the quota keeps busy, on any core of their nodes, and no cores are set aside.

    Args:
        topology: The CPUs that may be used, and no others.
        ranks: Ranks on this host.
        request: Cores for each of them.
        quota: CPUs' worth of time that all may use together; None: no limit.
        option: How the user sets the number of ranks, for the message.

    Returns:
        The shares in order of local rank; ranks on one socket follow each other.

    Raises:
        InputError: The ranks do not fit, or leave many cores idle; names choices that do.
    """
    assert ranks > 0, ranks
    sockets = sockets_of(topology)
    if not sockets:
        raise InputError("none of the allowed CPUs is online on this host; allow others")
    fitted = fit_ranks(sockets, ranks=ranks, request=request, quota=quota)
    if isinstance(fitted, Misfit):
        shapes = fitting_shapes(sockets, request=request, quota=quota)
        numbers = [number for number, _ in shapes]
        raise InputError(f"{fitted.why}: use {advice(fitted, numbers, ranks=ranks, option=option)}")
    return fitted


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why ranks do not fit, and what the user can do beside taking another number of ranks."""

    why: str
    advice: tuple[str, ...] = ()


def advice(misfit: Misfit, numbers: Sequence[int], *, ranks: int, option: str) -> str:
    """Return numbers of ranks that fit, the nearest to what was asked for, and other ways out."""
    nearest = sorted(sorted(numbers, key=lambda number: abs(number - ranks))[:CHOICES_SHOWN])
    ways = [*misfit.advice]
    if nearest:
        plural = "" if nearest == [1] else "s"
        ways.insert(0, f"{enumerated(nearest)} rank{plural} ({option})")
    return ", or ".join(ways) or "fewer ranks with fewer cores each"


def enumerated(numbers: Sequence[int]) -> str:
    """Return such as `1, 2 or 4`."""
    words = [str(number) for number in numbers]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


MOST_IDLE = 1 / 4
"""The part of the cores that may stay idle without being asked for: 16 ranks on sockets of 31 and
32 cores have 3 each and leave 15 of 63. More is taken for a mistake."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How ranks share a host, before each gets its cores."""

    groups: tuple[NodeGroup, ...]
    threads: int
    """Compute threads of each rank."""
    idle: int
    """Cores of the sockets in question, or CPUs of the quota, that no rank uses."""
    floating: bool
    """Whether threads move among the cores of their nodes, because of a quota."""


def fit_ranks(
    sockets: Sequence[Socket], *, ranks: int, request: CoreRequest, quota: float | None
) -> list[Share] | Misfit:
    """Return each rank's share in order of rank. [cores and CPUs of the host]

    Args:
        sockets: The CPUs that may be used.
        ranks: How many, at least 1.
        request: Cores for each.
        quota: CPUs' worth of time that the ranks may use together; None: no limit.
    """
    fitted = find_fit(sockets, ranks=ranks, request=request, quota=quota)
    if isinstance(fitted, Misfit):
        return fitted
    shares = floating_shares if fitted.floating else pinned_shares
    return [
        share
        for group in fitted.groups
        for share in shares(group, threads=fitted.threads, request=request)
    ]


def find_fit(
    sockets: Sequence[Socket], *, ranks: int, request: CoreRequest, quota: float | None
) -> Fit | Misfit:
    """Return how the ranks share the host, or why they cannot; the arguments are `fit_ranks`'s."""
    cores = count_cores(sockets)
    usable = cores if quota is None else min(cores, cores_of_quota(quota))
    if ranks > usable:
        of_quota = f" that the CPU quota of {quota:g} gives" if usable < cores else ""
        have = f"{usable} core{'s' if usable > 1 else ''}{of_quota}"
        return Misfit(why=f"{ranks} ranks are more than the {have}")
    chosen = choose_sockets(sockets, ranks)
    asked = request.threads and request.threads + request.comm_cores + request.loader_cores
    groups = divide_host(chosen, ranks, cores_each=asked)
    if groups is None or not all(group.cores_each for group in groups):
        host = describe_sockets(sockets)
        return Misfit(why=f"{count_ranks(ranks)} do not fit evenly on {host}")
    if usable < sum(group.ranks * group.cores_each for group in groups):
        return fit_floating(groups, request=request, usable=usable)
    return fit_pinned(groups, request=request, cores=count_cores(chosen))


def fits_by_ranks(
    sockets: Sequence[Socket], *, request: CoreRequest, quota: float | None
) -> dict[int, Fit]:
    """Return how ranks share the host, for each number of ranks that fits, ascending."""
    fits = {
        ranks: find_fit(sockets, ranks=ranks, request=request, quota=quota)
        for ranks in range(1, count_cores(sockets) + 1)
    }
    return {ranks: fit for ranks, fit in fits.items() if isinstance(fit, Fit)}


def fitting_shapes(
    sockets: Sequence[Socket], *, request: CoreRequest, quota: float | None
) -> list[tuple[int, int]]:
    """Return the numbers of ranks that are worth choosing, ascending, with the threads of each.

    Unless the threads are given, these leave no core idle. Where that would be whole sockets and
    single cores only, numbers that leave few idle come with them: the most ranks of each number of
    threads.
    """
    fits = fits_by_ranks(sockets, request=request, quota=quota)
    shapes = [(ranks, fit.threads) for ranks, fit in fits.items()]
    if request.threads is not None:
        return shapes
    in_full_use = [(ranks, fit.threads) for ranks, fit in fits.items() if not fit.idle]
    if any(len(sockets) < ranks < max(fits) for ranks, _ in in_full_use):
        return in_full_use
    most = {threads: ranks for ranks, threads in shapes}
    return [shape for shape in shapes if shape[0] <= len(sockets) or most[shape[1]] == shape[0]]


def cores_of_quota(quota: float) -> int:
    """Return whole cores that a CPU quota keeps busy, at least one."""
    return max(1, math.floor(quota))


def fit_pinned(groups: Sequence[NodeGroup], *, request: CoreRequest, cores: int) -> Fit | Misfit:
    """Return a fit of as many cores for each rank: to compute, to communicate, to load.

    Args:
        groups: Those of `divide_host`.
        request: Cores for each rank.
        cores: All that the ranks could have.
    """
    ranks = room_of(groups)
    least = min(group.cores_each for group in groups)
    aside = request.comm_cores + request.loader_cores
    if aside + (request.threads or 1) > least:
        return too_few(least, ranks=ranks, request=request)
    threads = request.threads or least - aside
    idle = cores - ranks * (threads + aside)
    if request.threads is None and idle > MOST_IDLE * cores:
        return uneven(ranks, cores=f"{cores} cores", threads=threads)
    return Fit(groups=tuple(groups), threads=threads, idle=idle, floating=False)


def pinned_shares(group: NodeGroup, *, threads: int, request: CoreRequest) -> Iterator[Share]:
    """Yield the share of each rank of a group: of its cores the first compute, the last load."""
    size = group.cores_each
    all_cores = group.cores
    comm_end = threads + request.comm_cores
    for first in range(0, size * group.ranks, size):
        cores = all_cores[first : first + size]
        loaders = cores[comm_end : comm_end + request.loader_cores]
        yield Share(
            socket=group.socket,
            nodes=tuple(node.number for node in group.nodes),
            cpus=tuple(core[0] for core in cores[:threads]),
            comm_cpus=tuple(core[0] for core in cores[threads:comm_end]),
            loader_cpus=tuple(sorted(cpu for core in loaders for cpu in core)),
            threads=threads,
            floating=False,
        )


def fit_floating(groups: Sequence[NodeGroup], *, request: CoreRequest, usable: int) -> Fit | Misfit:
    """Return a fit of as many threads as the quota keeps busy, on any core of the rank's nodes.

    Were they bound to chosen cores, containers beside this one would choose the same.
    """
    ranks = room_of(groups)
    most = min(usable // ranks, *(group.cores_each for group in groups))
    if request.threads is not None and request.threads > most:
        why = f"launch.threads={request.threads} for each of {count_ranks(ranks)} is too many"
        why = f"{why} for the {usable} CPUs of the quota"
        return Misfit(why=why, advice=(f"launch.threads={most}",))
    threads = request.threads or most
    idle = usable - ranks * threads
    if request.threads is None and idle > MOST_IDLE * usable:
        return uneven(ranks, cores=f"{usable} cores of the CPU quota", threads=most)
    return Fit(groups=tuple(groups), threads=threads, idle=idle, floating=True)


def floating_shares(group: NodeGroup, *, threads: int, request: CoreRequest) -> Iterator[Share]:
    """Yield the share of each rank of a group, all cores of its nodes; none are set aside."""
    del request
    share = Share(
        socket=group.socket,
        nodes=tuple(node.number for node in group.nodes),
        cpus=tuple(core[0] for core in group.cores),
        comm_cpus=(),
        loader_cpus=(),
        threads=threads,
        floating=True,
    )
    return repeat(share, group.ranks)


def too_few(cores: int, *, ranks: int, request: CoreRequest) -> Misfit:
    """Return the misfit of ranks that ask for more cores than the smallest part has."""
    asked = {
        "launch.threads": request.threads,
        "launch.comm_cores": request.comm_cores,
        "data.reserve_cores": request.loader_cores,
    }
    fields = [field for field, count in asked.items() if count]
    wanted = " + ".join(f"{field}={asked[field]}" for field in fields)
    have = f"{cores} core{'s' if cores > 1 else ''}{' each' if ranks > 1 else ''}"
    too_much = "is more" if request.threads else "leaves none to compute"
    threads = request.threads or 1
    others = [field for field in fields if field != "launch.threads"]
    advice = []
    if request.threads and cores > request.comm_cores + request.loader_cores:
        advice.append(f"launch.threads={cores - request.comm_cores - request.loader_cores}")
    if others and threads <= cores:
        advice.append(f"{' + '.join(others)}={cores - threads}")
    return Misfit(
        why=f"{count_ranks(ranks)} can have {have}, and {wanted} {too_much}",
        advice=tuple(advice) or (f"{' + '.join(fields)}={cores}",),
    )


def uneven(ranks: int, *, cores: str, threads: int) -> Misfit:
    """Return the misfit of ranks that would leave more cores idle than a user would expect."""
    return Misfit(
        why=f"{count_ranks(ranks)} do not share {cores} evenly",
        advice=(f"launch.threads={threads}, which leaves the rest idle",),
    )


def count_ranks(ranks: int) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def placement_notes(
    topology: Topology, shares: Sequence[Share], *, request: CoreRequest, quota: float | None
) -> list[str]:
    """Return notes on idle sockets and cores, on ranks over several nodes, on ranks that float.

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
    """Return cores that no rank has, of the sockets that have ranks."""
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
    """Return sockets without a rank; `advised`: a rank for each would use them."""
    idle = [socket.number for socket in sockets if socket not in used]
    if not idle:
        return []
    what = f"{named('socket', idle)} {'is' if len(idle) == 1 else 'are'} idle"
    if advised:
        return [f"{what}: {len(sockets)} ranks a host would use {'all' if idle[1:] else 'both'}"]
    return [what]


def spanning(shares: Sequence[Share], *, advised: int | None) -> list[str]:
    """Return a note on ranks that span several nodes; `advised`: ranks that would have one each."""
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
    """Return why threads are not bound to cores of their own, and which requests have no effect."""
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
    """Return such as `socket 1`, `nodes 0 and 1`."""
    words = [str(number) for number in numbers]
    if len(words) == 1:
        return f"{kind} {words[0]}"
    return f"{kind}s {', '.join(words[:-1])} and {words[-1]}"
