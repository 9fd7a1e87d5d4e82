"""What /proc tells of this process: the launcher that started it, control group, threads."""

import os
from contextlib import suppress
from pathlib import Path

from launch.host.cpu_lists import parse_cpu_list
from launch.host.proc_files import read_status, read_text

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
    for line in read_text(processes / "self" / "cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "cpuset":
            file = cgroups / "cpuset" / path.strip("/") / "cpuset.effective_cpus"
        elif not controllers:
            file = cgroups / path.strip("/") / "cpuset.cpus.effective"
        else:
            continue
        if found := read_text(file):
            return parse_cpu_list(found)
    return frozenset()


def thread_affinities() -> dict[int, set[int]]:
    """The CPUs of each of this process's threads, by its number; as a rule the oldest first."""
    found = {}
    for number in sorted(int(folder.name) for folder in Path("/proc/self/task").iterdir()):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            found[number] = os.sched_getaffinity(number)
    return found
