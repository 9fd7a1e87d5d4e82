"""The cores of each rank of a host, whether ranks fit, and notes for the user."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import InputError
from common.wording import counted
from launch.ranks import ANY_RANKS_OPTION
from launch.shares import CoreRequest, NodeGroup, Share, choose_sockets, divide_host
from launch.topology import (
    Socket,
    Topology,
    count_cores,
    describe_sockets,
    format_cpu_list,
    join_numbers,
    list_sockets,
    list_sockets_of_ranks,
)

CHOICES_SHOWN = 7
MOST_IDLE = 1 / 4
"""The part of the cores that may stay idle without a request: 16 ranks on sockets of 31 and
32 cores have 3 each and leave 15 of 63. More is taken for a mistake."""


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
    for the memory nodes of a socket. Beyond that, ranks share the cores of a node. If sockets or
    nodes differ in size, larger ones may take more ranks. All ranks have as many cores as each
    other; what is left over stays idle, up to `MOST_IDLE` of all. A core is a physical one; the
    lowest of its allowed CPUs computes. Of a rank's cores the first compute, the next communicate,
    the next load images.

    A CPU `quota`, the CPUs' worth of time that all may use together, that gives fewer cores than
    there are makes ranks float: their threads are as many as the quota keeps busy, on any core of
    their nodes, and no cores are set aside.

    The `topology` has the CPUs that may be used, and no others; messages name the `option` that
    sets the number of ranks. Returns the shares in order of local rank; ranks on one socket follow
    each other.

    Raises:
        InputError: The ranks do not fit, or leave many cores idle; names choices that do.
    """
    assert ranks > 0, ranks
    sockets = list_sockets_of_ranks(topology)
    if not sockets:
        raise InputError("none of the allowed CPUs is online on this host; allow others")
    shares = fit_ranks(sockets, ranks=ranks, request=request, quota=quota)
    if not isinstance(shares, Misfit):
        return shares
    numbers = [number for number, _ in fitting_shapes(sockets, request=request, quota=quota)]
    nearest = sorted(sorted(numbers, key=lambda number: abs(number - ranks))[:CHOICES_SHOWN])
    ways = [*shares.advice]
    if nearest:
        plural = "" if nearest == [1] else "s"
        ways.insert(0, f"{join_numbers(nearest, 'or')} rank{plural} ({option})")
    advice = ", or ".join(ways) or "fewer ranks with fewer cores each"
    raise InputError(f"{shares.why}: use {advice}")


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """The reason why ranks do not fit, and what to change besides the number of ranks."""

    why: str
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The division of a host among ranks, before cores are assigned."""

    groups: tuple[NodeGroup, ...]
    threads: int
    idle: int  # Cores of the sockets in question, or CPUs of the quota, that no rank uses
    floating: bool  # Whether threads move among the cores of their nodes, because of a quota


def fit_ranks(
    sockets: Sequence[Socket], *, ranks: int, request: CoreRequest, quota: float | None
) -> list[Share] | Misfit:
    """Return each rank's share in order of rank; the arguments are as for `place_ranks`."""
    fit = find_fit(sockets, ranks=ranks, request=request, quota=quota)
    if isinstance(fit, Misfit):
        return fit
    threads, comm_end = fit.threads, fit.threads + request.comm_cores
    shares = []
    for group in fit.groups:
        group_cores, size = group.cores, group.cores_each
        for first in range(0, size * group.ranks, size):
            cores = group_cores[first : first + size]
            # One thread of a convolution keeps the arithmetic units of a core busy, so that one CPU
            # of each core computes. Loading images uses its hyperthread too.
            computing, communicating = cores[:threads], cores[threads:comm_end]
            loading = cores[comm_end : comm_end + request.loader_cores]
            if fit.floating:  # among all cores of the nodes, and none are set aside
                computing, communicating, loading = group_cores, (), ()
            share = Share(
                socket=group.socket,
                nodes=tuple(node.number for node in group.nodes),
                cpus=tuple(core[0] for core in computing),
                comm_cpus=tuple(core[0] for core in communicating),
                loader_cpus=tuple(sorted(cpu for core in loading for cpu in core)),
                threads=threads,
                floating=fit.floating,
            )
            shares.append(share)
    return shares


def find_fit(
    sockets: Sequence[Socket], *, ranks: int, request: CoreRequest, quota: float | None
) -> Fit | Misfit:
    """Return how the ranks share the host, or why they cannot; the arguments are `fit_ranks`'s."""
    cores = count_cores(sockets)
    usable = cores if quota is None else min(cores, cores_of_quota(quota))
    if ranks > usable:
        of_quota = f" that the CPU quota of {quota:g} gives" if usable < cores else ""
        have = f"{counted(usable, 'core')}{of_quota}"
        return Misfit(why=f"{ranks} ranks are more than the {have}")
    chosen = choose_sockets(sockets, ranks)
    cores_each = request.threads and request.threads + request.comm_cores + request.loader_cores
    groups = divide_host(chosen, ranks, cores_each=cores_each)
    if groups is None or not all(group.cores_each for group in groups):
        host = describe_sockets(sockets)
        return Misfit(why=f"{counted(ranks, 'rank')} do not fit evenly on {host}")
    floating = usable < sum(group.ranks * group.cores_each for group in groups)
    # All ranks have as many cores as the one with the fewest, since every step waits for the
    # slowest.
    least = min(group.cores_each for group in groups)
    if floating:
        # Threads are not bound to cores: other containers of this host run the same code, and would
        # bind theirs to the same, first cores.
        most, aside = min(usable // ranks, least), 0
        if request.threads is not None and request.threads > most:
            why = (
                f"launch.threads={request.threads} for each of {counted(ranks, 'rank')} is too "
                f"many for the {usable} CPUs of the quota"
            )
            return Misfit(why=why, advice=(f"launch.threads={most}",))
        available, what = usable, f"{usable} cores of the CPU quota"
    else:
        aside = request.comm_cores + request.loader_cores
        if aside + (request.threads or 1) > least:
            return too_few(least, ranks=ranks, request=request)
        most, available = least - aside, count_cores(chosen)
        what = f"{available} cores"
    threads = request.threads or most
    idle = available - ranks * (threads + aside)
    if request.threads is None and idle > MOST_IDLE * available:
        return Misfit(
            why=f"{counted(ranks, 'rank')} do not share {what} evenly",
            advice=(f"launch.threads={threads}, which leaves the rest idle",),
        )
    return Fit(groups=tuple(groups), threads=threads, idle=idle, floating=floating)


def too_few(cores: int, *, ranks: int, request: CoreRequest) -> Misfit:
    """Return the misfit of ranks that request more cores than the smallest part has."""
    counts = {
        "launch.threads": request.threads,
        "launch.comm_cores": request.comm_cores,
        "data.reserve_cores": request.loader_cores,
    }
    fields = [field for field, count in counts.items() if count]
    wanted = " + ".join(f"{field}={counts[field]}" for field in fields)
    have = f"{counted(cores, 'core')}{' each' if ranks > 1 else ''}"
    too_much = "requests more" if request.threads else "leaves none to compute"
    threads = request.threads or 1
    others = [field for field in fields if field != "launch.threads"]
    advice = []
    if request.threads and cores > request.comm_cores + request.loader_cores:
        advice.append(f"launch.threads={cores - request.comm_cores - request.loader_cores}")
    if others and threads <= cores:
        advice.append(f"{' + '.join(others)}={cores - threads}")
    return Misfit(
        why=f"{counted(ranks, 'rank')} can have {have}, but {wanted} {too_much}",
        advice=tuple(advice) or (f"{' + '.join(fields)}={cores}",),
    )


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

    Unless the threads are given, these leave no core idle. If only full sockets and single
    cores would remain, the largest number of ranks for each number of threads is added.
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
    """Return the number of full cores in a CPU quota; at least one."""
    # With one thread more the ranks would exhaust the quota in each period. The kernel then stops
    # all of their threads until the next period.
    return max(1, math.floor(quota))


def placement_notes(
    topology: Topology, shares: Sequence[Share], *, request: CoreRequest, quota: float | None
) -> list[str]:
    """Return notes on idle sockets and cores, on ranks over several nodes, on ranks that float."""
    sockets = list_sockets_of_ranks(topology)
    busy_sockets = {share.socket for share in shares}
    used = [socket for socket in sockets if socket.number in busy_sockets]
    nodes = sum(len(socket.nodes) for socket in sockets)

    def groups_with(ranks: int) -> Sequence[NodeGroup]:
        fit = find_fit(sockets, ranks=ranks, request=request, quota=quota)
        return () if isinstance(fit, Misfit) else fit.groups

    notes = []
    if len(sockets) < (real := len(list_sockets(topology))):
        notes.append(f"{real} sockets share memory nodes, and count as {len(sockets)}")
    if slower := topology.slower:
        cpus = format_cpu_list(cpu.cpu for cpu in slower)
        notes.append(
            f"CPUs {cpus} are of slower cores and idle: a rank that mixed them with faster ones "
            "would wait for them; launch.pin=false uses all, unbound"
        )
    if idle_sockets := [socket.number for socket in sockets if socket not in used]:
        several = len(idle_sockets) > 1
        note = f"{count_noun('socket', idle_sockets)} {'are' if several else 'is'} idle"
        if len({group.socket for group in groups_with(len(sockets))}) == len(sockets):
            note += f": {len(sockets)} ranks per host would use {'all' if several else 'both'}"
        notes.append(note)
    spans = [(rank, share) for rank, share in enumerate(shares) if len(share.nodes) > 1]
    if spans:
        rank, share = spans[0]
        note = f"rank {rank} spans {count_noun('node', share.nodes)} of socket {share.socket}"
        if len(spans) > 1:
            note = f"ranks span several memory nodes: {note}"
        if [len(group.nodes) for group in groups_with(nodes)] == [1] * nodes:
            note += f": {nodes} ranks per host would have one node each"
        notes.append(note)
    if quota is not None and shares[0].floating:
        return [*notes, *floating_notes(used, shares, request=request, quota=quota)]
    busy = {cpu for share in shares for cpu in (*share.cpus, *share.comm_cpus, *share.loader_cpus)}
    idle = sum(busy.isdisjoint(core) for socket in used for core in socket.cores)
    if idle:
        note = f"{idle} of {count_cores(used)} cores are idle"
        if request.threads is None:  # else they were requested to be
            fits = fits_by_ranks(sockets, request=request, quota=quota)
            full = [ranks for ranks, fit in fits.items() if ranks > len(sockets) and not fit.idle]
            below = [ranks for ranks in full if len(shares) / 2 <= ranks < len(shares)][-1:]
            above = [ranks for ranks in full if len(shares) < ranks <= 2 * len(shares)][:1]
            if choices := " or ".join(map(str, (*below, *above))):
                note += f": {choices} ranks per host would use all"
        notes.append(note)
    return notes


def floating_notes(
    used: Sequence[Socket], shares: Sequence[Share], *, request: CoreRequest, quota: float
) -> list[str]:
    """Return notes on why threads are not bound to cores, and on requests without effect."""
    usable = cores_of_quota(quota)
    notes = [
        f"the CPU quota of {quota:g} is worth {usable} of {count_cores(used)} cores: threads are "
        "not bound, since other containers may use the same cores"
    ]
    threads = sum(share.threads for share in shares)
    if threads < usable:
        notes.append(f"{usable - threads} of the quota's {usable} CPUs are not used")
    counts = {"launch.comm_cores": request.comm_cores, "data.reserve_cores": request.loader_cores}
    fields = [f"{field}={count}" for field, count in counts.items() if count]
    if fields:
        notes.append(f"{' and '.join(fields)}: no cores are reserved under a CPU quota")
    return notes


def count_noun(noun: str, numbers: Sequence[int]) -> str:
    """Return a noun with numbers, such as `socket 1` or `nodes 0 and 1`."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {join_numbers(numbers, 'and')}"
