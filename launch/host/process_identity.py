"""Processes, identified such that none is ever taken for another that has or had its number."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.host.proc_files import read_text

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
    fields = read_text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
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
