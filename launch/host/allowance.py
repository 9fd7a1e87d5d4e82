"""What this process may use of its host: affinity, CPU quota, memory nodes."""

import os
from dataclasses import dataclass
from pathlib import Path

from launch.host.cgroups import read_quota
from launch.host.cpu_lists import parse_cpu_list
from launch.host.proc_files import read_status

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
