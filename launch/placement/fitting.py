"""Whether ranks fit a host, and what each then gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launch.host.sockets import Socket, count_cores, describe_sockets
from launch.placement.host_parts import Part, divide_host
from launch.placement.share import CoreRequest, Share


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """Why ranks do not fit, and what the user can do beside taking another number of ranks."""

    why: str
    advice: tuple[str, ...] = ()


def fit_ranks(
    sockets: Sequence[Socket], *, ranks: int, request: CoreRequest, quota: float | None
) -> list[Share] | Misfit:
    """Each rank's share in order of rank. [cores and CPUs of the host]

    Args:
        sockets: The CPUs that may be used.
        ranks: How many, at least 1.
        request: Cores for each.
        quota: CPUs' worth of time that the ranks may use together; None: no limit.
    """
    cores = count_cores(sockets)
    usable = cores if quota is None else min(cores, cores_of_quota(quota))
    if ranks > usable:
        of_quota = f" that the CPU quota of {quota:g} gives" if usable < cores else ""
        have = f"{usable} core{'s' if usable > 1 else ''}{of_quota}"
        return Misfit(why=f"{ranks} ranks are more than the {have}")
    parts = divide_host(sockets, ranks)
    if parts is None or not all(part.size for part in parts):
        host = describe_sockets(sockets)
        return Misfit(why=f"{count_ranks(ranks)} do not fit evenly on {host}")
    if usable < sum(part.size for part in parts):
        return fit_floating(parts, request=request, usable=usable)
    return fit_pinned(parts, request=request)


def cores_of_quota(quota: float) -> int:
    """Whole cores that a CPU quota keeps busy, at least one."""
    return max(1, math.floor(quota))


def fit_pinned(parts: Sequence[Part], *, request: CoreRequest) -> list[Share] | Misfit:
    """Cores of its own for each rank: to compute, then to communicate, then to load."""
    least = min(part.size for part in parts)
    aside = request.comm_cores + request.loader_cores
    if aside + (request.threads or 1) > least:
        return too_few(least, ranks=len(parts), request=request)
    even = all(part.is_even and part.size == least for part in parts)
    if request.threads is None and not even:
        return uneven(parts, threads=least - aside)
    threads = request.threads or least - aside
    return [pinned_share(part, threads=threads, request=request) for part in parts]


def pinned_share(part: Part, *, threads: int, request: CoreRequest) -> Share:
    """The first cores of the part compute, the next communicate, the next load."""
    comm_end = threads + request.comm_cores
    loaders = part.cores[comm_end : comm_end + request.loader_cores]
    return Share(
        socket=part.socket,
        nodes=tuple(node.number for node in part.nodes),
        cpus=tuple(core[0] for core in part.cores[:threads]),
        comm_cpus=tuple(core[0] for core in part.cores[threads:comm_end]),
        loader_cpus=tuple(sorted(cpu for core in loaders for cpu in core)),
        threads=threads,
        floating=False,
    )


def fit_floating(
    parts: Sequence[Part], *, request: CoreRequest, usable: int
) -> list[Share] | Misfit:
    """As many threads as the quota keeps busy, on any core of the rank's nodes.

    Were they bound to chosen cores, containers beside this one would choose the same.
    """
    most = min(usable // len(parts), *(part.size for part in parts))
    if request.threads is not None and request.threads > most:
        why = f"launch.threads={request.threads} for each of {count_ranks(len(parts))} is too many"
        why = f"{why} for the {usable} CPUs of the quota"
        return Misfit(why=why, advice=(f"launch.threads={most}",))
    if request.threads is None and most * len(parts) != usable:
        return uneven(parts, threads=most, quota=usable)
    return [
        Share(
            socket=part.socket,
            nodes=tuple(node.number for node in part.nodes),
            cpus=tuple(core[0] for core in part.shared_cores),
            comm_cpus=(),
            loader_cpus=(),
            threads=request.threads or most,
            floating=True,
        )
        for part in parts
    ]


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


def uneven(parts: Sequence[Part], *, threads: int, quota: int | None = None) -> Misfit:
    """Cores would stay idle that nobody said should."""
    total = quota or sum(len(part.shared_cores) / part.sharers for part in parts)
    of_quota = " of the CPU quota" if quota else ""
    return Misfit(
        why=f"{count_ranks(len(parts))} do not share {total:.0f} cores{of_quota} evenly",
        advice=(f"launch.threads={threads}, which leaves the rest idle",),
    )


def count_ranks(ranks: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
