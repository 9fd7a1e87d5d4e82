"""What CPUs a launcher has left to each rank, and whether that makes sense.

Some launchers bind each rank before it starts: Open MPI gives two ranks a core each, on a host of
any size. What they leave is planned within, unless most of the host would stand still.

TODO-DOC What Slurm tells a task of srun about CPUs: its neighbours', and how many the job has.

TODO-DOC What /proc tells of this process: the launcher that started it, control group, threads.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from common.errors import InputError
from common.machine import read_proc_text, read_status
from launch.ranks import Ranks, tasks_per_node
from launch.topology import Topology, format_cpu_list, parse_cpu_list

UNBOUND = {
    "mpich": "mpirun -bind-to none",
    "intel-mpi": "mpirun -genv I_MPI_PIN=off",
    "open-mpi": "mpirun --bind-to none",
    "slurm": "srun --cpu-bind=none",
    "torchrun": "torchrun without taskset or numactl",
    "none": "python train.py without taskset or numactl",
}
"""How to start ranks that nobody has bound."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """CPUs for some of a host's ranks, and this rank's place among those."""

    cpus: frozenset[int]
    place: int
    """This rank's number, from 0, among those that share the CPUs."""
    ranks: int
    """How many share them."""
    notes: tuple[str, ...] = ()
    """Sentences about what the launcher holds back."""


def host_cpus(
    ranks: Ranks, *, processes: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> frozenset[int]:
    """The CPUs that this host offers the job: those of the launcher's process that started us.

    Slurm's is outside of the job's control group, whose CPUs count there. Where no launcher can be
    seen, as from inside a container, they are those that this process may use itself.
    """
    own = frozenset(os.sched_getaffinity(0))
    if ranks.launcher == "none":
        return own
    offered = daemon_cpus(processes) or own
    if ranks.launcher == "slurm":
        offered &= cpuset(processes, cgroups) or offered
    return offered | own


def whose_cpus(
    ranks: Ranks,
    affinities: Sequence[frozenset[int]] | None,
    host: frozenset[int],
    *,
    own: frozenset[int],
) -> Part:
    """The CPUs that this rank was started on, and with whom it shares them.

    Args:
        ranks: This rank.
        affinities: What each rank of this host was started on, in order of local rank; None where
            the ranks have not met. Then CPUs fewer than the host's are taken as this rank's alone.
        host: What the host offers the job.
        own: What this rank was started on.
    """
    if affinities is None and own >= host:
        return Part(cpus=own, place=ranks.local_rank, ranks=ranks.local_size)
    if affinities is None:
        return Part(cpus=own, place=0, ranks=1)
    assert affinities[ranks.local_rank] == own, "not in order of local rank"
    same = [number for number, mask in enumerate(affinities) if mask == own]
    return Part(cpus=own, place=same.index(ranks.local_rank), ranks=len(same))


def my_cpus(
    ranks: Ranks,
    affinities: Sequence[frozenset[int]] | None,
    host: frozenset[int],
    *,
    own: frozenset[int],
    topology: Topology,
    offered: int | None = None,
) -> Part:
    """`whose_cpus` within what the launcher has left to the ranks of this host, if it makes sense.

    Args:
        ranks: As there.
        affinities: As there.
        host: As there.
        own: As there.
        topology: The host's.
        offered: How many CPUs of the host are the job's, where Slurm says so.

    Raises:
        InputError: The ranks' CPUs overlap in part, or leave more than half of the host's cores
            idle; names the launcher's flag.
    """
    part = whose_cpus(ranks, affinities, host, own=own)
    masks = affinities or [own]
    used = frozenset[int]().union(*masks)
    host |= used  # a launcher's own process may be bound to less
    bound = count_cores(topology, used)
    if affinities is None and part.ranks < ranks.local_size:
        bound *= ranks.local_size  # if the others were given as much
    whole = count_cores(topology, host)
    overlapping = any(a & b and a != b for a, b in combinations(masks, 2))
    if overlapping or bound > whole:
        raise InputError(
            f"{describe(ranks)} bound to CPUs that overlap (this rank's are "
            f"{format_cpu_list(own)}); start with {UNBOUND[ranks.launcher]}"
        )
    unbound = UNBOUND[ranks.launcher]
    if offered is not None:
        whole = -(-whole * offered // len(host))
        unbound = f"srun --cpus-per-task={max(1, offered // ranks.local_size)}"
    return replace(part, notes=held_back(ranks, bound=bound, whole=whole, unbound=unbound))


def held_back(ranks: Ranks, *, bound: int, whole: int, unbound: str) -> tuple[str, ...]:
    """A note where the ranks' cores are not as many as the job's.

    Raises:
        InputError: They are fewer than half.
    """
    if bound > whole:
        return (
            f"{describe(ranks)} bound to {bound} cores, and the job has {whole}: other jobs may "
            f"compute on the rest; start with {unbound}",
        )
    if bound == whole:
        return ()
    found = f"{describe(ranks)} bound to {bound} of the {whole} cores that this host offers"
    if 2 * bound < whole:
        raise InputError(f"{found}; start with {unbound}, and each is given its share of all")
    return (f"{found}; {unbound} gives them all",)


def count_cores(topology: Topology, cpus: Collection[int]) -> int:
    """How many physical cores these CPUs belong to."""
    return len({cpu.core for cpu in topology.restricted(cpus).cpus})


def describe(ranks: Ranks) -> str:
    """Such as `open-mpi: the 2 ranks of this host are`."""
    if ranks.local_size == 1:
        return f"{ranks.launcher}: the rank of this host is"
    return f"{ranks.launcher}: the {ranks.local_size} ranks of this host are"


CPUS = "SLURM_JOB_CPUS_PER_NODE"


def slurm_affinities(
    environment: Mapping[str, str], ranks: Ranks, *, own: frozenset[int]
) -> list[frozenset[int]] | None:
    """The CPUs that srun bound each task of this host to, in order; None where it does not say.

    The masks are believed where this task's are the CPUs that it really has. A list that is shorter
    than the tasks starts over.

    Args:
        environment: Of this task.
        ranks: This rank.
        own: The CPUs that it was started on.
    """
    if not environment.get("SLURM_CPU_BIND_TYPE", "").startswith("mask_cpu"):
        return None
    try:
        masks = [int(mask, 16) for mask in environment["SLURM_CPU_BIND_LIST"].split(",")]
    except (KeyError, ValueError):
        return None
    bound = [cpus_of(masks[task % len(masks)]) for task in range(ranks.local_size)]
    return bound if bound[ranks.local_rank] == own else None


def cpus_of(mask: int) -> frozenset[int]:
    """The numbers of the bits that are set."""
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def cpus_of_job(environment: Mapping[str, str]) -> int | None:
    """How many CPUs Slurm gave the job on a host, the least of all hosts; None: it does not say.

    A step may have fewer: srun gives a task one, unless --cpus-per-task asks for more.
    """
    if not environment.get(CPUS):
        return None
    return min(tasks_per_node(environment, CPUS))


DAEMONS = {
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",  # hydra_bstrap_proxy: the kernel keeps 15 letters
    "orted",
    "prted",
    "prterun",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "slurmstepd",
    "torchrun",
    "pt_elastic",  # torchrun, as it calls itself
}
"""Names of launchers' processes, which start the ranks of a host."""


def daemon_cpus(processes: Path) -> frozenset[int]:
    """Affinity of the nearest ancestor of this process that is a launcher's; empty: none is.

    Args:
        processes: Where /proc is mounted.
    """
    process = "self"
    while process != "0":
        status = read_status(processes / process / "status")
        if status.get("Name") in DAEMONS:
            return parse_cpu_list(status.get("Cpus_allowed_list", ""))
        process = status.get("PPid", "0")
    return frozenset()


def cpuset(processes: Path, cgroups: Path) -> frozenset[int]:
    """CPUs of this process's control group, of version 1 or 2; empty where that cannot be read.

    Args:
        processes: Where /proc is mounted.
        cgroups: Where control groups are mounted.
    """
    for line in read_proc_text(processes / "self" / "cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "cpuset":
            file = cgroups / "cpuset" / path.strip("/") / "cpuset.effective_cpus"
        elif not controllers:
            file = cgroups / path.strip("/") / "cpuset.cpus.effective"
        else:
            continue
        if found := read_proc_text(file):
            return parse_cpu_list(found)
    return frozenset()


def thread_affinities() -> dict[int, set[int]]:
    """The CPUs of each of this process's threads, by its number; as a rule the oldest first."""
    found = {}
    for number in sorted(int(folder.name) for folder in Path("/proc/self/task").iterdir()):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found[number] = os.sched_getaffinity(number)
    return found
