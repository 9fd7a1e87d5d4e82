"""A rank on its own cores, memory and threads: `preload`, `pin`, load torch, `check_pinning`.

`enter_rank_context` does all that comes before torch is loaded. A process that is no rank of a
training takes chosen cores in the same way (`choose_cores`, `take_cores`, `check_cores`), with one
compute thread on each. Where ranks are not bound to cores, they have a number of threads only.
"""

import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from common.errors import InputError
from launch import environment as environment_module
from launch.environment import (
    find_intel,
    installed_backend,
    intel_is_loaded,
    loaded_openmp,
    prefer_memory,
    rank_environment,
    set_allocator,
    use_environment,
)
from launch.limits import (
    Allowance,
    Part,
    cpus_of_job,
    host_cpus,
    my_cpus,
    read_allowance,
    slurm_affinities,
    thread_affinities,
    whose_cpus,
)
from launch.mpirun import ranks_option
from launch.placement import cores_of_quota, place_ranks, placement_notes
from launch.ranks import Ranks
from launch.rendezvous import Rendezvous, Wait, deadline, meet, part
from launch.shares import CoreRequest, Share, spare_cpus
from launch.topology import Topology, count_cores, format_cpu_list, read_topology, sockets_of
from launch.watchdog import RankSupervisor


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """What a rank was given, and what it should say of it."""

    share: Share
    openmp: str
    """`gnu` or `intel`."""
    notes: tuple[str, ...]
    """Sentences about what is lost, left idle, or not taken from the user's environment."""
    environment: Mapping[str, str]
    """The variables of this rank."""
    enabled: bool = True
    """Whether it was bound to its cores; else it has a number of threads and nothing more."""
    spare_cpus: tuple[int, ...] = ()
    """CPUs of its cores on which it does not compute, see `spare_cpus`."""


def preload(allocator: str) -> None:
    """Set the allocator, and put Intel's OpenMP in place where it is installed; call it first.

    May start this command again, once, and not return: before MPI, before torch.

    Args:
        allocator: A policy of `launch.environment.set_allocator`.

    Raises:
        InputError: The allocator's library is not installed.
    """
    name = allocator if allocator in environment_module.ALLOCATORS else None
    environment_module.preload(name, openmp=None if intel_is_loaded() else find_intel())
    set_allocator(allocator)


def pin(
    ranks: Ranks,
    *,
    affinities: Sequence[frozenset[int]] | None,
    request: CoreRequest,
    backend: str,
    enabled: bool = True,
) -> Pinned:
    """Give this rank its cores, memory nodes and environment; torch is not loaded yet.

    Args:
        ranks: This rank.
        affinities: The CPUs that the launcher gave each rank of this host, in order of local rank,
            if they told each other.
        request: Cores for each rank.
        backend: `gloo` or `ccl`.
        enabled: False binds nothing and sets only the number of threads.

    Raises:
        InputError: The ranks do not fit on this host, or what the launcher left makes no sense.
    """
    assert not enabled or "torch" not in sys.modules, "torch has made its threads already"
    allowance = read_allowance()
    topology = read_topology()
    host = host_cpus(ranks)
    offered = None
    if ranks.launcher == "slurm":
        affinities = affinities or slurm_affinities(os.environ, ranks, own=allowance.cpus)
        offered = cpus_of_job(os.environ)
    if not enabled:
        part = whose_cpus(ranks, affinities, host, own=allowance.cpus)
        share = unbound_share(
            topology.restricted(part.cpus),
            ranks=part.ranks,
            request=request,
            quota=quota_of(part, ranks, allowance),
        )
        variables = {"OMP_NUM_THREADS": str(share.threads)}
        notes = use_environment(variables, bound=False, launcher=ranks.launcher)
        return Pinned(
            share=share,
            openmp=loaded_openmp(),
            notes=tuple(notes),
            environment=variables,
            enabled=False,
        )
    part = my_cpus(
        ranks,
        affinities,
        host,
        own=allowance.cpus,
        topology=topology,
        offered=offered,
    )
    return pin_within(
        part,
        topology.restricted(part.cpus),
        ranks=ranks,
        request=request,
        backend=backend,
        allowance=allowance,
    )


def pin_within(
    part: Part,
    topology: Topology,
    *,
    ranks: Ranks,
    request: CoreRequest,
    backend: str,
    allowance: Allowance,
) -> Pinned:
    """Plan within the CPUs that are left to this rank, and do it.

    Raises:
        InputError: The ranks do not fit.
    """
    quota = quota_of(part, ranks, allowance)
    shares = place_ranks(
        topology,
        ranks=part.ranks,
        request=request,
        quota=quota,
        option=ranks_option(ranks.launcher),
    )
    share = shares[part.place]
    not_bound = bind_process(share.cpus)
    if not_bound:  # libgomp would end the process where it cannot bind a thread
        share = anywhere(topology, threads=share.threads)
    variables = rank_environment(
        share,
        openmp=loaded_openmp(),
        backend=backend,
        local_rank=ranks.local_rank,
        local_ranks=ranks.local_size,
    )
    lost = prefer_memory(share.nodes, allowed=allowance.memory_nodes)
    notes = [
        *part.notes,
        *placement_notes(topology, shares, request=request, quota=quota),
        *not_bound,
        *([lost] if lost else []),
        *use_environment(variables, bound=True, launcher=ranks.launcher),
    ]
    return Pinned(
        share=share,
        openmp=loaded_openmp(),
        notes=tuple(notes),
        environment=variables,
        spare_cpus=() if not_bound else spare_cpus(share, topology),
    )


def quota_of(part: Part, ranks: Ranks, allowance: Allowance) -> float | None:
    """Return what ranks that share some CPUs have of the quota of all ranks of this host."""
    if allowance.quota is None:
        return None
    return allowance.quota * part.ranks / ranks.local_size


def bind_process(cpus: Collection[int]) -> list[str]:
    """Have every thread of this process on these CPUs; a sentence where that is not permitted."""
    try:
        for thread in thread_affinities():
            with suppress(ProcessLookupError):  # one of MPI's that has just ended
                os.sched_setaffinity(thread, cpus)
    except OSError as error:
        return [
            f"CPUs {format_cpu_list(cpus)}: this process cannot be bound to them "
            f"({error.strerror}), so ranks may meet on the same cores; in a container, permit "
            "sched_setaffinity"
        ]
    return []


def check_pinning(pinned: Pinned) -> list[str]:
    """Load torch and check that its threads are as planned; call it before any others start.

    Returns:
        Sentences about what was not, and whether it has been corrected.
    """
    return check_cores(pinned.share, openmp=pinned.openmp, bound=pinned.enabled)


def unbound_share(
    topology: Topology, *, ranks: int, request: CoreRequest, quota: float | None
) -> Share:
    """Return a share that is bound to nothing: threads, on any of the CPUs."""
    cores = count_cores(sockets_of(topology))
    usable = cores if quota is None else min(cores, cores_of_quota(quota))
    return anywhere(topology, threads=request.threads or max(1, usable // ranks))


def anywhere(topology: Topology, *, threads: int) -> Share:
    """Return a share whose threads move among all these CPUs."""
    return Share(
        socket=topology.cpus[0].socket,
        nodes=tuple(sorted({cpu.node for cpu in topology.cpus})),
        cpus=tuple(cpu.cpu for cpu in topology.cpus),
        comm_cpus=(),
        loader_cpus=(),
        threads=threads,
        floating=True,
    )


def choose_cores(*, threads: int | None, cpus: Sequence[int] = ()) -> Share:
    """Return cores for so many compute threads, of any socket.

    Args:
        threads: How many; None: one for each core.
        cpus: The CPUs to choose from; none: all that this process may use.

    Raises:
        InputError: There are fewer cores than threads, or some of the CPUs may not be used.
    """
    allowance = read_allowance()
    foreign = set(cpus) - allowance.cpus
    if foreign:
        raise InputError(
            f"CPUs {format_cpu_list(foreign)}: not among those that this process may use, "
            f"{format_cpu_list(allowance.cpus)}"
        )
    chosen = read_topology().restricted(set(cpus) or allowance.cpus).cpus
    cores = {cpu.core: cpu for cpu in reversed(chosen)}  # the lowest CPU of each core stays
    firsts = sorted(cores.values())
    usable = len(firsts)
    if allowance.quota is not None:
        usable = min(usable, cores_of_quota(allowance.quota))
    count = threads or usable
    if count > usable:
        noun = "core" if usable == 1 else "cores"
        raise InputError(f"--threads: {count} are more than the {usable} {noun} to be used here")
    floating = usable < len(firsts)
    used = firsts if floating else firsts[:count]
    return Share(
        socket=used[0].socket,
        nodes=tuple(sorted({cpu.node for cpu in used})),
        cpus=tuple(cpu.cpu for cpu in used),
        comm_cpus=(),
        loader_cpus=(),
        threads=count,
        floating=floating,
    )


def take_cores(share: Share, *, allocator: str = "tuned") -> list[str]:
    """Bind this process and what torch will start; call it before torch is loaded.

    It may start this process's command again, once, with libraries preloaded.

    Returns:
        Sentences about what was not possible, or not taken from the environment.

    Raises:
        InputError: The allocator's library is not installed.
    """
    preload(allocator)
    not_bound = bind_process(share.cpus)
    if not_bound:
        return not_bound
    variables = rank_environment(
        share, openmp=loaded_openmp(), backend="gloo", local_rank=0, local_ranks=1
    )
    use_environment(variables, bound=True, launcher="none")
    return []


def check_cores(share: Share, *, openmp: str | None = None, bound: bool = True) -> list[str]:
    """Load torch and check that its threads are where they should be.

    Args:
        share: The cores.
        openmp: The library that was planned with; None: the one that is loaded.
        bound: Whether threads are bound to cores; else only their number is checked.

    Returns:
        Sentences about what was not, and whether it has been corrected.
    """
    # Here, because it loads torch.
    from launch.compute_threads import check_compute_threads, check_thread_count  # noqa: PLC0415

    notes = check_thread_count(share.threads)
    if bound:
        notes += check_compute_threads(share, openmp=openmp or loaded_openmp())
    return notes


START_ADVICE = (
    "they have not all started; check that each host can be reached by ssh, and that no firewall "
    "blocks TCP ports between the hosts"
)


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What a rank has been given, and where it meets the others."""

    ranks: Ranks
    pinned: Pinned
    meeting: Rendezvous | None
    """None for one rank alone."""
    backend: str
    """`gloo` or `ccl`."""
    keeper: RankSupervisor | None = None
    """The process between this one and the launcher, if there is one."""


def enter_rank_context(
    ranks: Ranks,
    *,
    request: CoreRequest,
    allocator: str,
    backend: str,
    pinned: bool,
    timeout_s: float,
) -> RankContext:
    """Set up all that must be set up before torch is loaded. Call it first of all.

    It may start this process's command again, once, with libraries preloaded.

    Args:
        ranks: Which of the job's ranks this process is.
        request: The cores that it asks for.
        allocator: See `set_allocator`.
        backend: `auto`, `shared`, `gloo` or `ccl`.
        pinned: Whether to keep to cores and memory of its own.
        timeout_s: Ends the process if the others do not come.

    Raises:
        InputError: Something asked for is not installed or does not fit this host.
    """
    chosen = chosen_backend(backend)
    preload(allocator)
    meeting = None
    if ranks.size > 1:
        wait = Wait(f"the other {ranks.size - 1} ranks", advice=START_ADVICE)
        with deadline(timeout_s, f"rank {ranks.rank} on {socket.gethostname()}", wait):
            meeting = meet(ranks, os.environ)
    affinities = meeting.affinities if meeting else None
    given = pin(ranks, affinities=affinities, request=request, backend=chosen, enabled=pinned)
    part(ranks)
    return RankContext(ranks=ranks, pinned=given, meeting=meeting, backend=chosen)


def chosen_backend(name: str) -> str:
    """Return torch's backend for `distributed.backend`: `gloo` or `ccl`.

    Raises:
        InputError: oneCCL is asked for and not installed.
    """
    installed = installed_backend()
    if name == "ccl" and installed != "ccl":
        raise InputError(
            "distributed.backend: ccl: the package oneccl_bindings_for_pytorch is not installed; "
            "install Intel's build for this torch, or set distributed.backend=gloo"
        )
    return installed if name in ("auto", "ccl") else "gloo"
