"""Processor time from /proc: what threads used, and how long they waited for a core."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from launch.host.proc_files import read_status, read_text

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessTime:
    """Processor time that a process used on some CPUs."""

    process: int
    name: str
    """As the kernel keeps it: 15 characters at most."""
    cores: float
    """Cores that it kept busy, on average."""
    is_ours: bool
    """Whether the calling process started it, directly or not."""


def waiting_of_threads() -> dict[int, float]:
    """Return how long each thread of this process was ready to run and had no core. [s]

    Empty where the kernel does not count it (`CONFIG_SCHED_INFO`).
    """
    waits = {}
    for folder in (PROC / "self/task").iterdir():
        # https://docs.kernel.org/scheduler/sched-stats.html: running, waiting [ns], timeslices
        fields = read_text(folder / "schedstat").split()
        if len(fields) == 3:
            waits[int(folder.name)] = int(fields[1]) / 1e9
    return waits


def ticks_on(cpus: Collection[int]) -> dict[int, int]:
    """Return the processor time of all processes' threads that ran on these CPUs last. [ticks]

    By process id; a process without such a thread is left out. This process is left out, too.
    """
    ticks: dict[int, int] = {}
    own = str(os.getpid())
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or folder.name == own:
            continue
        for stat in folder.glob("task/*/stat"):
            # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: the name may hold spaces;
            # behind it, utime and stime are the 12th and 13th field, the last CPU is the 37th
            fields = read_text(stat).rpartition(")")[2].split()
            if len(fields) > 36 and int(fields[36]) in cpus:
                process = int(folder.name)
                ticks[process] = ticks.get(process, 0) + int(fields[11]) + int(fields[12])
    return ticks


def busiest(
    before: dict[int, int], after: dict[int, int], *, seconds: float, least_cores: float
) -> list[ProcessTime]:
    """Return the processes that used at least so many cores between two calls of `ticks_on`.

    The busiest comes first. A process that is in one of the two only is left out: how much of its
    time belongs to the stretch is not known.
    """
    processes = [
        ProcessTime(process, name_of(process), cores, is_ours=is_descendant(process))
        for process in before.keys() & after.keys()
        if (cores := (after[process] - before[process]) / TICKS_PER_SECOND / seconds) >= least_cores
    ]
    return sorted(processes, key=lambda process: -process.cores)


def name_of(process: int) -> str:
    """Return a process's name; empty if it has ended."""
    return read_text(PROC / str(process) / "comm").strip()


def is_descendant(process: int) -> bool:
    """Return whether this process started that one, directly or not."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(read_status(PROC / str(process) / "status").get("PPid", "0"))
    return False
