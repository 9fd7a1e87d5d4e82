"""The resources that this process may use: affinity, CPU quota, memory, and the launcher's binding.

A control group may use no more than its parent, so the least quota on the way up to the root
counts, and likewise for memory. The files of the groups are described at
https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html
and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.

Some launchers bind each rank before it starts: Open MPI gives two ranks a core each, on a host of
any size. Ranks are placed within what is left, unless most of the host would be idle.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from common.errors import InputError
from common.machine import read_proc_text, read_status
from launch.ranks import Ranks, launcher_named, tasks_per_node
from launch.topology import Topology, format_cpu_list, parse_cpu_list

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
MICROSECONDS = re.compile("[1-9][0-9]{0,17}")
MEMINFO = Path("/proc/meminfo")
NO_LIMIT = 1 << 60  # Version 1 writes a number about as large as this for none. [bytes]
SLURM_CPUS = "SLURM_JOB_CPUS_PER_NODE"
DAEMONS = {"mpirun", "mpiexec", "orted", "prted", "prterun", "slurmstepd", "torchrun"}
DAEMONS |= {"mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr", "pt_elastic"}
DAEMONS |= {"flux-shell", "jsmd", "mpispawn", "palsd"}
"""Names of launchers' processes, which start the ranks of a host. The kernel keeps 15 letters (of
hydra_bstrap_proxy), and torchrun calls itself pt_elastic."""


@dataclass(frozen=True)
class Allowance:
    """The CPUs and memory that the kernel gives this process."""

    cpus: frozenset[int]  # CPUs that it may run on: its affinity, which its cpuset bounds
    quota: float | None
    """CPUs' worth of time that its control groups may use together; None: no limit."""
    memory_nodes: frozenset[int]
    """NUMA nodes that it may take memory from; empty where it is not known."""


def read_allowance(*, process: Path = PROCESS, cgroups: Path = CGROUPS) -> Allowance:
    """Return what this process may use now; call it before anything is pinned."""
    return Allowance(
        cpus=frozenset(os.sched_getaffinity(0)),
        quota=read_quota(process=process, cgroups=cgroups),
        memory_nodes=read_memory_nodes(process / "status"),
    )


def read_memory_nodes(status: Path) -> frozenset[int]:
    """Return the nodes of `Mems_allowed_list:`; empty if it cannot be read."""
    try:
        return parse_cpu_list(read_status(status).get("Mems_allowed_list", ""))
    except ValueError:
        return frozenset()


def read_quota(*, process: Path, cgroups: Path) -> float | None:
    """Return the CPU quota of a process [CPUs]; None if there is no limit or it cannot be read."""
    quotas = map(read_group_quota, control_groups(process, cgroups, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def control_groups(process: Path, cgroups: Path, controller: str) -> list[Path]:
    """Return the folders of a process's control groups that may limit something, and their parents.

    Version 1 is mounted in a folder that its controllers name, version 2 at the top, or in
    `unified` where both are in use. The `controller` is `cpu`, `cpuset` or `memory`.
    """
    folders = []
    for line in read_proc_text(process / "cgroup").splitlines():  # NUMBER:CONTROLLERS:PATH
        controllers, _, path = line.partition(":")[2].partition(":")  # no controllers: version 2
        mounts = [cgroups, cgroups / "unified"]
        if controllers:
            named = (cgroups / controllers, cgroups / controller)
            is_ours = controller in controllers.split(",")
            mounts = [mount for mount in named if is_ours and mount.is_dir()][:1]
        parts = [part for part in path.split("/") if part]
        for mount in mounts:
            # A container often has its own group as the mount, under a path of the host's.
            is_below = ".." not in parts and mount.joinpath(*parts).is_dir()
            lengths = range(len(parts) if is_below else 0, -1, -1)
            folders += [mount.joinpath(*parts[:length]) for length in lengths]
    return folders


def read_group_quota(group: Path) -> float | None:
    """Return the group's own quota: time over period, in CPUs."""
    fields = read_proc_text(group / "cpu.max").split()
    if not fields:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        fields = [field for name in names for field in read_proc_text(group / name).split()]
    if len(fields) != 2 or not all(map(MICROSECONDS.fullmatch, fields)):
        return None  # `max` in version 2 and -1 in version 1 are no limit
    return int(fields[0]) / int(fields[1])


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """The memory that can still be taken, and what sets that limit. [bytes]"""

    size: int
    of: str  # Such as `this host`, or the control group's folder and limit
    swap: int = 0  # Beyond that, on the disk and slow


def free_memory(
    *, process: Path = PROCESS, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO
) -> FreeMemory | None:
    """Return the least of the host's available memory and of what each control group leaves.

    None where it is not known.
    """
    groups = map(group_memory, control_groups(process, cgroups, "memory"))
    limits = [limit for limit in groups if limit is not None]
    host = {name: value.split()[:1] for name, value in read_status(meminfo).items()}
    available, swap = host.get("MemAvailable"), host.get("SwapFree", ["0"])
    if available:
        limits.append(FreeMemory(size=int(available[0]) * 1024, of="this host"))
    least = min(limits, key=lambda limit: limit.size, default=None)
    return replace(least, swap=int(swap[0]) * 1024) if least else None


def group_memory(group: Path) -> FreeMemory | None:
    """Return the memory that a group leaves; None where it sets no limit."""
    for limit, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        texts = [read_proc_text(group / name).strip() for name in (limit, used)]
        if not all(text.isdigit() for text in texts):  # such as `max`
            continue
        most, now = map(int, texts)
        if most >= NO_LIMIT:
            continue
        lines = (line.split() for line in read_proc_text(group / "memory.stat").splitlines())
        # The kernel counts idle page cache as used, and frees it before the limit is enforced.
        given_back = next((int(fields[1]) for fields in lines if fields[:1] == [idle]), 0)
        size = max(0, most - now + given_back)
        return FreeMemory(size=size, of=f"the control group {group} (limit {most / 1e9:.1f} GB)")
    return None


@dataclass(frozen=True, kw_only=True)
class Part:
    """The CPUs shared by some of a host's ranks, and notes on CPUs withheld by the launcher."""

    cpus: frozenset[int]
    place: int  # This rank's number, from 0, among those that share the CPUs
    ranks: int
    notes: tuple[str, ...] = ()


def host_cpus(
    ranks: Ranks, *, processes: Path = Path("/proc"), cgroups: Path = CGROUPS
) -> frozenset[int]:
    """Return the CPUs that this host offers the job: those of the launcher's process.

    Slurm's is outside of the job's control group, whose CPUs count there. If no launcher can be
    seen, as from inside a container, they are this process's own.
    """
    affinity = frozenset(os.sched_getaffinity(0))
    if ranks.launcher == "none":
        return affinity
    # A parent of another PID namespace has the number 0, so that the search ends inside a
    # container.
    offered, process = affinity, "self"
    while process != "0":  # up to the nearest ancestor that is a launcher's process
        status = read_status(processes / process / "status")
        if status.get("Name") in DAEMONS:
            offered = parse_cpu_list(status.get("Cpus_allowed_list", "")) or affinity
            break
        process = status.get("PPid", "0")
    if ranks.launcher == "slurm":
        offered &= cpuset(processes, cgroups) or offered
    return offered | affinity


def cpuset(processes: Path, cgroups: Path) -> frozenset[int]:
    """Return the CPUs of this process's control group; empty where they cannot be read."""
    for group in control_groups(processes / "self", cgroups, "cpuset"):
        # The effective CPUs: in version 2 `cpuset.cpus` is empty where a group uses those of its
        # parent, which has the file where the group has not.
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if text := read_proc_text(group / name):
                return parse_cpu_list(text)
    return frozenset()


def given_part(
    ranks: Ranks,
    affinities: Sequence[frozenset[int]] | None,
    host: frozenset[int],
    *,
    affinity: frozenset[int],
) -> Part:
    """Return the CPUs on which this rank was started, and its index among ranks that share them.

    `host` has the CPUs that the host offers the job, `affinities` those of each rank of this host,
    in order of local rank. If they are None, a proper subset of the host's CPUs is this rank's
    alone.
    """
    if affinities is None and affinity >= host:
        return Part(cpus=affinity, place=ranks.local_rank, ranks=ranks.local_size)
    if affinities is None:
        return Part(cpus=affinity, place=0, ranks=1)
    assert affinities[ranks.local_rank] == affinity, "not in order of local rank"
    sharers = [number for number, mask in enumerate(affinities) if mask == affinity]
    return Part(cpus=affinity, place=sharers.index(ranks.local_rank), ranks=len(sharers))


def checked_part(
    ranks: Ranks,
    affinities: Sequence[frozenset[int]] | None,
    host: frozenset[int],
    *,
    affinity: frozenset[int],
    topology: Topology,
    offered: int | None = None,
) -> Part:
    """Return `given_part`, if the launcher's binding of this host's ranks makes sense.

    `topology` is the host's; `offered` is how many of its CPUs are the job's, under Slurm.

    Raises:
        InputError: The ranks' CPUs overlap in part, or leave more than half of the host's cores
            idle; names the launcher's flag.
    """
    part = given_part(ranks, affinities, host, affinity=affinity)
    masks = affinities or [affinity]
    used = frozenset[int]().union(*masks)
    host |= used  # a launcher's own process may be bound to less
    bound = topology.restricted(used).core_count
    if affinities is None and part.ranks < ranks.local_size:
        bound *= ranks.local_size  # if the others were given as much
    whole = topology.restricted(host).core_count
    # Equal CPUs are no overlap: the ranks that have them divide them among themselves.
    overlapping = any(a & b and a != b for a, b in combinations(masks, 2))
    if ranks.local_size == 1:
        subject = f"{ranks.launcher}: the rank of this host is"
    else:
        subject = f"{ranks.launcher}: the {ranks.local_size} ranks of this host are"
    unbound = launcher_named(ranks.launcher).unbound
    if overlapping or bound > whole:
        raise InputError(
            f"{subject} bound to CPUs that overlap (this rank's are "
            f"{format_cpu_list(affinity)}); start with {unbound}"
        )
    if offered is not None:
        # Slurm counts CPUs. The cores are the same share of the host, rounded up.
        whole = -(-whole * offered // len(host))
        unbound = f"srun --cpus-per-task={max(1, offered // ranks.local_size)}"
    if bound == whole:
        return part
    if bound > whole:
        note = (
            f"{subject} bound to {bound} cores, but the job has {whole}: other jobs may use the "
            f"remaining ones; start with {unbound}"
        )
        return replace(part, notes=(note,))
    shortage = f"{subject} bound to {bound} of the {whole} cores that this host offers"
    if 2 * bound < whole:
        raise InputError(f"{shortage}; start with {unbound}, so that each rank gets its share")
    return replace(part, notes=(f"{shortage}; start with {unbound} to use all",))


def slurm_affinities(
    environment: Mapping[str, str], ranks: Ranks, *, affinity: frozenset[int]
) -> list[frozenset[int]] | None:
    """Return the CPUs that srun bound each task of this host to; None where it is not known.

    The masks count where this task's are its `affinity`. A shorter list starts over.
    """
    if not environment.get("SLURM_CPU_BIND_TYPE", "").startswith("mask_cpu"):
        return None
    texts = environment.get("SLURM_CPU_BIND_LIST", "").split(",")
    if not all(re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,2048}", text) for text in texts):
        return None
    masks = [int(text, 16) for text in texts]
    cpus = [frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1) for mask in masks]
    bound = [cpus[task % len(cpus)] for task in range(ranks.local_size)]
    return bound if bound[ranks.local_rank] == affinity else None


def cpus_of_job(environment: Mapping[str, str]) -> int | None:
    """Return how many CPUs the job has on a host, the least of all; None: not known.

    A step may have fewer: srun gives a task one without --cpus-per-task.
    """
    if not environment.get(SLURM_CPUS):
        return None
    return min(tasks_per_node(environment, SLURM_CPUS))


def thread_affinities() -> dict[int, set[int]]:
    """Return the CPUs of each thread of this process by its number, usually the oldest first."""
    affinities = {}
    for number in sorted(int(folder.name) for folder in Path("/proc/self/task").iterdir()):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            affinities[number] = os.sched_getaffinity(number)
    return affinities
