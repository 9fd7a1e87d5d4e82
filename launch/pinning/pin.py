"""A rank on its own cores, memory and threads: `preload`, `pin`, load torch, `check_pinning`."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from launch.host.allowance import Allowance, read_allowance
from launch.host.cpu_lists import format_cpu_list
from launch.host.topology import Topology, read_topology
from launch.pinning import preload as libraries
from launch.pinning.allocator import set_allocator
from launch.pinning.binding import Part, host_cpus, my_cpus, whose_cpus
from launch.pinning.environment import rank_environment, use_environment
from launch.pinning.memory_policy import prefer_memory
from launch.pinning.openmp import find_intel, intel_is_loaded, loaded_openmp
from launch.pinning.processes import thread_affinities
from launch.pinning.slurm_binding import cpus_of_job, slurm_affinities
from launch.pinning.unbound import anywhere, unbound_share
from launch.placement.notes import notes as placement_notes
from launch.placement.place_ranks import place_ranks
from launch.placement.share import CoreRequest, Share
from launch.placement.spare import spare_cpus
from launch.ranks import Ranks
from launch.start.starting_words import ranks_option


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
        allocator: A policy of `launch.pinning.allocator.set_allocator`.

    Raises:
        InputError: The allocator's library is not installed.
    """
    name = allocator if allocator in libraries.ALLOCATORS else None
    libraries.preload(name, openmp=None if intel_is_loaded() else find_intel())
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
    """What the ranks that share some CPUs have of the quota of all ranks of this host."""
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
    """Load torch and see that its threads are as planned; call it before anything starts others.

    Returns:
        Sentences about what was not, and whether it has been put right.
    """
    # Here, because it loads torch.
    from launch.pinning.compute_threads import (  # noqa: PLC0415
        check_compute_threads,
        check_thread_count,
    )

    found = check_thread_count(pinned.share.threads)
    if not pinned.enabled:
        return found
    return found + check_compute_threads(pinned.share, openmp=pinned.openmp)
