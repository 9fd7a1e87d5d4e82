"""Pin a rank to its cores and memory: `set_allocator`, `pin`, load torch, `check_cores`.

`enter_rank_context` does all that comes before torch is loaded. A process that is no rank of a
training takes chosen cores in the same way (`choose_cores`, `take_cores`).
"""

import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from common.errors import InputError
from launch import environment, limits
from launch.limits import read_allowance
from launch.placement import cores_of_quota, place_ranks, placement_notes
from launch.ranks import Ranks, launcher_named
from launch.rendezvous import (
    ONE_HOST,
    Rendezvous,
    Transport,
    make_rendezvous,
    settle_transport,
)
from launch.shares import CoreRequest, Share, spare_cpus
from launch.topology import Cpu, Topology, format_cpu_list, read_topology
from launch.waiting import Wait, deadline


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The cores and the environment of a rank, with notes for the user."""

    share: Share
    openmp: str  # `gnu` or `intel`
    notes: tuple[str, ...]
    """Sentences about what is lost, left idle, or not taken from the user's environment."""
    environment: Mapping[str, str]
    enabled: bool = True
    """Whether it was bound to its cores; else it has a number of threads and nothing more."""
    spare_cpus: tuple[int, ...] = ()
    """CPUs of its cores on which it does not compute, see `spare_cpus`."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a rank belongs on its host; nothing is bound yet."""

    share: Share
    topology: Topology  # The part of the host that its launcher gave it, alone or with others
    binding_notes: tuple[str, ...]  # About the launcher's binding
    notes: tuple[str, ...]  # About cores that stay idle


def place_rank(
    ranks: Ranks,
    *,
    affinities: Sequence[frozenset[int]] | None,
    request: CoreRequest,
    pinned: bool = True,
) -> Placed:
    """Return the place of a rank of this host, within what its launcher gave it.

    `affinities` has the CPUs of each rank of this host, in order of local rank; None: only those of
    this process are known. A rank that is not `pinned` has a number of threads and nothing more.

    Raises:
        InputError: The ranks do not fit on this host, or the launcher's binding is invalid.
    """
    allowance, topology, host = read_allowance(), read_topology(), limits.host_cpus(ranks)
    part = limits.checked_part(
        ranks,
        affinities,
        host,
        affinity=affinities[ranks.local_rank] if affinities else allowance.cpus,
        topology=topology,
        offered=limits.cpus_of_job(os.environ) if ranks.launcher == "slurm" else None,
    )
    topology, quota = topology.restricted(part.cpus), allowance.quota
    if quota is not None:  # it counts for all ranks of this host: the part of these ranks
        quota = quota * part.ranks / ranks.local_size
    if not pinned:
        cores = topology.core_count
        usable = cores if quota is None else min(cores, cores_of_quota(quota))
        share = make_share(topology.cpus, threads=request.threads or max(1, usable // part.ranks))
        return Placed(share=share, topology=topology, binding_notes=part.notes, notes=())
    option = launcher_named(ranks.launcher).ranks_option
    shares = place_ranks(topology, ranks=part.ranks, request=request, quota=quota, option=option)
    notes = placement_notes(topology, shares, request=request, quota=quota)
    return Placed(
        share=shares[part.place],
        topology=topology,
        binding_notes=part.notes,
        notes=tuple(notes),
    )


def pin(
    ranks: Ranks,
    *,
    affinities: Sequence[frozenset[int]] | None,
    request: CoreRequest,
    backend: str,
    enabled: bool = True,
) -> Pinned:
    """Give this rank its cores, memory nodes and environment; torch is not loaded yet.

    `affinities` has the CPUs that the launcher gave each rank of this host, in order of local rank.
    `enabled=False` binds nothing and sets only the number of threads.

    Raises:
        InputError: The ranks do not fit on this host, or the launcher's binding is invalid.
    """
    assert not enabled or "torch" not in sys.modules, "torch has made its threads already"
    placed = place_rank(ranks, affinities=affinities, request=request, pinned=enabled)
    share, topology, launcher = placed.share, placed.topology, ranks.launcher
    openmp = environment.loaded_openmp()
    if not enabled:
        variables = {"OMP_NUM_THREADS": str(share.threads)}
        others = environment.use_environment(variables, bound=False, launcher=launcher)
        notes = (*placed.binding_notes, *others)
        return Pinned(share=share, openmp=openmp, notes=notes, environment=variables, enabled=False)
    # Whether binding is permitted is known only by trying. If it is not, the variables that bind
    # OpenMP's threads must not be set: libgomp ends the process where it cannot bind a thread.
    not_bound, memory_nodes = bind_process(share.cpus), read_allowance().memory_nodes
    if not_bound:
        share = make_share(topology.cpus, threads=share.threads)
    place, count = ranks.local_rank, ranks.local_size
    variables = environment.rank_environment(
        share, openmp=openmp, backend=backend, local_rank=place, local_ranks=count
    )
    notes = (  # `prefer_memory` and `use_environment` also change this process
        *placed.binding_notes,
        *placed.notes,
        *not_bound,
        *filter(None, [environment.prefer_memory(share.nodes, allowed=memory_nodes)]),
        *environment.use_environment(variables, bound=True, launcher=launcher),
    )
    spare = () if not_bound else spare_cpus(share, topology)
    return Pinned(share=share, openmp=openmp, notes=notes, environment=variables, spare_cpus=spare)


def bind_process(cpus: Collection[int]) -> list[str]:
    """Bind every thread of this process to these CPUs; return a note if that is not permitted."""
    try:
        # Affinity belongs to threads: a call for the process id sets the main thread's only, and
        # MPI and the watch of a supervisor may have started others.
        for thread in limits.thread_affinities():
            with suppress(ProcessLookupError):  # one of MPI's that has just ended
                os.sched_setaffinity(thread, cpus)
    except OSError as error:
        return [
            f"CPUs {format_cpu_list(cpus)}: this process cannot be bound to them "
            f"({error.strerror}), so several ranks may use the same cores; in a container, permit "
            "sched_setaffinity"
        ]
    return []


def make_share(cpus: Sequence[Cpu], *, threads: int, floating: bool = True) -> Share:
    """Return a share whose threads have these CPUs, or move among them; no cores are set aside."""
    return Share(
        socket=cpus[0].socket,
        nodes=tuple(sorted({cpu.node for cpu in cpus})),
        cpus=tuple(cpu.cpu for cpu in cpus),
        comm_cpus=(),
        loader_cpus=(),
        threads=threads,
        floating=floating,
    )


def choose_cores(*, threads: int | None, cpus: Sequence[int] = ()) -> Share:
    """Return cores of any socket for `threads` compute threads; None: one per core.

    They are chosen from `cpus`; none: from all that this process may use.

    Raises:
        InputError: There are fewer cores than threads, or some of the CPUs may not be used.
    """
    allowance = read_allowance()
    foreign = set(cpus) - allowance.cpus
    if foreign:
        raise InputError(
            f"CPUs {format_cpu_list(foreign)}: not available to this process; choose among "
            f"{format_cpu_list(allowance.cpus)}"
        )
    chosen = read_topology().restricted(set(cpus) or allowance.cpus)
    slower = () if cpus else chosen.slower
    # The lowest CPU of each core stays.
    cores = {cpu.core: cpu for cpu in reversed(chosen.cpus) if cpu not in slower}
    firsts = sorted(cores.values())
    usable = len(firsts)
    if allowance.quota is not None:
        usable = min(usable, cores_of_quota(allowance.quota))
    count = threads or usable
    if count > usable:
        noun = "core" if usable == 1 else "cores"
        raise InputError(f"--threads {count}: more than the {usable} usable {noun}; give fewer")
    # Under a quota threads are not bound, for the reason in `find_fit`.
    floating = usable < len(firsts)
    return make_share(firsts if floating else firsts[:count], threads=count, floating=floating)


def take_cores(share: Share, *, allocator: str = "tuned") -> list[str]:
    """Bind this process and what torch will start; call it before torch is loaded.

    It may start this process's command again, once, with libraries preloaded. It returns a sentence
    if the process cannot be bound.

    Raises:
        InputError: The allocator's library is not installed.
    """
    environment.set_allocator(allocator, with_openmp=True)
    not_bound = bind_process(share.cpus)
    if not not_bound:
        variables = environment.rank_environment(
            share, openmp=environment.loaded_openmp(), backend="gloo", local_rank=0, local_ranks=1
        )
        environment.use_environment(variables, bound=True, launcher="none")
    return not_bound


def check_cores(share: Share, *, openmp: str | None = None, bound: bool = True) -> list[str]:
    """Load torch, check that its threads are where they should be, and return notes.

    `openmp` is the library that was planned with; None: the one that is loaded. If threads are
    not bound to cores, only their number is checked.
    """
    # Here, because it loads torch.
    from launch.compute_threads import check_compute_threads, check_thread_count  # noqa: PLC0415

    notes = check_thread_count(share.threads)
    if bound:
        notes += check_compute_threads(share, openmp=openmp or environment.loaded_openmp())
    return notes


START_ADVICE = (
    "not all have started; check that each host can be reached by ssh, and that no firewall "
    "blocks TCP ports between the hosts"
)


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The resources of a rank, and its rendezvous with the others."""

    ranks: Ranks
    pinned: Pinned
    rendezvous: Rendezvous | None  # None for one rank alone
    backend: str  # torch's: `gloo` or `ccl`
    transport: Transport = ONE_HOST
    notes: tuple[str, ...] = ()
    beat: Callable[[], None] | None = None  # Called every second while the ranks are connected
    affinities: Sequence[frozenset[int]] | None = None
    """The CPUs that the launcher gave each rank of this host, if it is known."""


def enter_rank_context(
    ranks: Ranks,
    *,
    request: CoreRequest,
    allocator: str,
    backend: str,
    pinned: bool,
    timeout_s: float,
    job_outlives_ranks: bool = False,
) -> RankContext:
    """Set up all that must be set up before torch is loaded. Call it first of all.

    It may start this process's command again, once, with libraries preloaded. `allocator` is that
    of `set_allocator`; `backend` is that of the configuration. `pinned` keeps the rank to cores and
    memory of its own. If the other ranks do not come, the process ends after `timeout_s`. With
    `job_outlives_ranks` MPI is not used for gradients, since it ends with any of its ranks.

    Raises:
        InputError: A requested component is not installed or does not fit this host.
    """
    torch_backend = chosen_backend(backend)
    # Before MPI, which cannot be initialized again after a restart.
    environment.set_allocator(allocator, with_openmp=True)
    rendezvous = None
    if ranks.size > 1:
        wait = Wait(f"the other {ranks.size - 1} ranks", advice=START_ADVICE)
        with deadline(timeout_s, f"rank {ranks.rank} on {socket.gethostname()}", wait):
            rendezvous = make_rendezvous(ranks, os.environ)
    affinities: Sequence[frozenset[int]] | None = rendezvous.affinities if rendezvous else None
    if ranks.launcher == "slurm" and not affinities:
        own = read_allowance().cpus
        affinities = limits.slurm_affinities(os.environ, ranks, affinity=own)
    given = pin(
        ranks, affinities=affinities, request=request, backend=torch_backend, enabled=pinned
    )
    # Only now: errors of pinning are still exchanged by MPI, so that one rank prints them.
    if job_outlives_ranks and backend == "auto":
        backend = "gloo"
    transport, notes = settle_transport(ranks, rendezvous, backend)
    if backend == "ccl":
        notes = (*notes, CCL_NOTE)
    return RankContext(
        ranks=ranks,
        affinities=affinities,
        pinned=given,
        rendezvous=rendezvous,
        backend=torch_backend,
        transport=transport,
        notes=notes,
    )


CCL_NOTE = (
    "distributed.backend: ccl: oneCCL's bindings for torch have not been developed since October "
    "2025; auto does not need them"
)


def chosen_backend(name: str) -> str:
    """Return torch's backend for `distributed.backend`: `gloo` or `ccl`.

    Raises:
        InputError: oneCCL is requested but not installed.
    """
    if name == "ccl" and not environment.has_ccl():
        raise InputError(
            "distributed.backend: ccl: the package oneccl_bindings_for_pytorch is not installed; "
            "install Intel's build for this torch, or set distributed.backend=auto"
        )
    return "ccl" if name == "ccl" else "gloo"
