"""Small files of the kernel, below /proc and /sys/fs/cgroup, that may be hidden or missing.

TODO-DOC Processes, identified such that none is ever taken for another that has or had its number.

TODO-DOC Processor time from /proc: what threads used, and how long they waited for a core.
"""

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def read_proc_text(file: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_status(file: Path) -> dict[str, str]:
    """The fields of a process's or a thread's status; none where it cannot be read."""
    pairs = (line.partition(":") for line in read_proc_text(file).splitlines())
    return {name: value.strip() for name, _, value in pairs}


START_TIME = 19
"""Index of the start time in /proc/PID/stat, counted from the first field after the name."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process number, and what tells it from others that have or had the same number."""

    namespace: str
    """The boot of the machine and the PID namespace in which the number is valid."""
    number: int
    started: int
    """Clock ticks from the machine's boot to the start of the process."""


def own_process() -> ProcessIdentity | None:
    """Return the identity of this process, or None if /proc does not show it."""
    number = os.getpid()
    try:
        shown = int(Path("/proc/self").readlink().name)  # /proc may be another namespace's
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None
    started = start_time(number)
    if shown != number or started is None:
        return None
    return ProcessIdentity(namespace=namespace, number=number, started=started)


def start_time(process: int) -> int | None:
    """Return when a process was started in clock ticks since boot, or None if it has ended."""
    fields = read_proc_text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    return int(fields[START_TIME]) if fields and fields[0] not in "ZX" else None


def kill_if_local(target: ProcessIdentity | None) -> None:
    """Send SIGKILL, which also ends a stopped process, to a process of this host and user.

    Nothing happens if it is on another host, in a container with its own process numbers,
    owned by another user, or gone.
    """
    own = own_process()
    if target is None or own is None or target.namespace != own.namespace or target == own:
        return
    with suppress(OSError):
        is_ours = Path(f"/proc/{target.number}").stat().st_uid == os.geteuid()
        if is_ours and start_time(target.number) == target.started:
            os.kill(target.number, signal.SIGKILL)


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
        fields = read_proc_text(folder / "schedstat").split()
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
            fields = read_proc_text(stat).rpartition(")")[2].split()
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
    return read_proc_text(PROC / str(process) / "comm").strip()


def is_descendant(process: int) -> bool:
    """Return whether this process started that one, directly or not."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(read_status(PROC / str(process) / "status").get("PPid", "0"))
    return False
