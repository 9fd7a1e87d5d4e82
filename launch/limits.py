"""What this process may use of its host: affinity, CPU quota, memory nodes.

TODO-DOC The CPU quota of a process's control groups, of version 1 and 2.

A group may use no more than its parent, so the least quota on the way up to the root counts.
https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
https://docs.kernel.org/scheduler/sched-bwc.html describe the files.

TODO-DOC The memory that a process may still take: the host's, and what its control groups leave.

https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html describe the groups' files.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from common.machine import read_proc_text, read_status
from launch.topology import parse_cpu_list

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Allowance:
    """The CPUs and memory that the kernel gives this process."""

    cpus: frozenset[int]
    """CPUs that it may run on: its affinity, which its cpuset bounds."""
    quota: float | None
    """CPUs' worth of time that its control groups may use together; None: no limit."""
    memory_nodes: frozenset[int]
    """NUMA nodes that it may take memory from; empty where the kernel does not say."""


def read_allowance(*, process: Path = PROCESS, cgroups: Path = CGROUPS) -> Allowance:
    """What this process may use now; read it before anything is pinned.

    Args:
        process: This process's folder in /proc.
        cgroups: Where control groups are mounted.
    """
    return Allowance(
        cpus=frozenset(os.sched_getaffinity(0)),
        quota=read_quota(process=process, cgroups=cgroups),
        memory_nodes=read_memory_nodes(process / "status"),
    )


def read_memory_nodes(status: Path) -> frozenset[int]:
    """The list that follows `Mems_allowed_list:`; empty where there is none that can be read."""
    try:
        return parse_cpu_list(read_status(status).get("Mems_allowed_list", ""))
    except ValueError:
        return frozenset()


MICROSECONDS = re.compile("[1-9][0-9]{0,17}")


def read_quota(*, process: Path, cgroups: Path) -> float | None:
    """CPUs' worth of time that a process may use; None: no limit, or none that can be read.

    Args:
        process: Its folder in /proc.
        cgroups: Where control groups are mounted, usually /sys/fs/cgroup.
    """
    quotas = [
        quota
        for mount, path in cpu_groups(read_proc_text(process / "cgroup"), cgroups)
        for folder in group_and_ancestors(mount, path)
        if (quota := quota_of(folder)) is not None
    ]
    return min(quotas, default=None)


def cpu_groups(membership: str, cgroups: Path) -> list[tuple[Path, str]]:
    """Mount and path of each group that may hold a CPU quota.

    A line is `NUMBER:CONTROLLERS:PATH`, with no controllers in version 2. Version 1 is mounted in a
    folder that its controllers name, version 2 at the top, or in `unified` where both are in use.
    """
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            found += [(cgroups, path), (cgroups / "unified", path)]
        elif "cpu" in controllers.split(","):
            mounts = [cgroups / controllers, cgroups / "cpu"]
            found += [(mount, path) for mount in mounts if mount.is_dir()][:1]
    return found


def group_and_ancestors(mount: Path, path: str) -> list[Path]:
    """The folders of a group and of those above it, up to the mount.

    A container often sees its own group as the mount itself, under a path that only the host has.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not mount.joinpath(*parts).is_dir():
        return [mount]
    return [mount.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def quota_of(group: Path) -> float | None:
    """The group's own quota: time over period, in CPUs."""
    words = read_proc_text(group / "cpu.max").split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [word for name in names for word in read_proc_text(group / name).split()]
    if len(words) != 2 or not all(map(MICROSECONDS.fullmatch, words)):
        return None  # `max` in version 2 and -1 in version 1 are no limit
    return int(words[0]) / int(words[1])


MEMINFO = Path("/proc/meminfo")
NO_LIMIT = 1 << 60
"""Version 1 writes a number about as large as this for none. [bytes]"""


@dataclass(frozen=True, kw_only=True)
class MemoryLeft:
    """What can still be taken, and who sets that limit."""

    size: int
    """[bytes]"""
    of: str
    """Such as `this host`, or the control group's folder and limit."""
    swap: int = 0
    """What may go to the disk beyond that, slowly. [bytes]"""


def memory_left(
    *, process: Path = PROCESS, cgroups: Path = CGROUPS, meminfo: Path = MEMINFO
) -> MemoryLeft | None:
    """The least of the host's available memory and of what each control group leaves.

    Args:
        process: The process's folder in /proc.
        cgroups: Where control groups are mounted.
        meminfo: The kernel's account of the host's memory.

    Returns:
        None where the kernel does not say.
    """
    left = [
        one
        for mount, path in memory_groups(read_proc_text(process / "cgroup"), cgroups)
        for folder in group_and_ancestors(mount, path)
        if (one := left_in(folder)) is not None
    ]
    host = {name: value.split()[:1] for name, value in read_status(meminfo).items()}
    available, swap = host.get("MemAvailable"), host.get("SwapFree", ["0"])
    if available:
        left.append(MemoryLeft(size=int(available[0]) * 1024, of="this host"))
    least = min(left, key=lambda one: one.size, default=None)
    return replace(least, swap=int(swap[0]) * 1024) if least else None


def memory_groups(membership: str, cgroups: Path) -> list[tuple[Path, str]]:
    """Mount and path of each group that may limit memory; see `launch.limits`."""
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            found += [(cgroups, path), (cgroups / "unified", path)]
        elif "memory" in controllers.split(","):
            found.append((cgroups / "memory", path))
    return found


def left_in(group: Path) -> MemoryLeft | None:
    """What a group leaves; None where it sets no limit.

    Pages of files that nobody has used lately count as the group's and are given back at need.
    """
    for limit, used, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = number_in(group / limit), number_in(group / used)
        if most is None or now is None or most >= NO_LIMIT:
            continue
        lines = (line.split() for line in read_proc_text(group / "memory.stat").splitlines())
        given_back = next((int(words[1]) for words in lines if words[:1] == [idle]), 0)
        size = max(0, most - now + given_back)
        return MemoryLeft(size=size, of=f"the control group {group} (limit {most / 1e9:.1f} GB)")
    return None


def number_in(file: Path) -> int | None:
    """The one number in a file; None for `max`, or where there is none."""
    text = read_proc_text(file).strip()
    return int(text) if text.isdigit() else None
