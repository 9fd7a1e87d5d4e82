"""Whether ranks fit a host, and what each then gets."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from launch.host.sockets import Socket, count_cores, describe_sockets
from launch.placement.host_parts import NodeGroup, choose_sockets, divide_host, room_of
from launch.placement.share import CoreRequest, Share

MOST_IDLE = 1 / 4
"""The part of the cores that may stay idle without being asked for: 16 ranks on sockets of 31 and
32 cores have 3 each and leave 15 of 63. More is taken for a mistake."""


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why ranks do not fit, and what the user can do beside taking another number of ranks."""

    why: str
    advice: tuple[str, ...] = ()


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
    """Whole cores that a CPU quota keeps busy, at least one."""
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
    """More cores are asked for than the smallest part has."""
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
    """More cores would stay idle than a user would expect."""
    return Misfit(
        why=f"{count_ranks(ranks)} do not share {cores} evenly",
        advice=(f"launch.threads={threads}, which leaves the rest idle",),
    )


def count_ranks(ranks: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
