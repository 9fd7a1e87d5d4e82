"""What the kernel counts for this process: page faults and resident memory."""

import resource
from pathlib import Path

KIB = 1024


def page_faults() -> int:
    """Minor page faults of this process so far, its threads included and its children not.

    Each is a page that the kernel had to give first: after warm-up a step should need next to none.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_mb() -> float:
    """Memory that this process has in RAM now. [10⁶ bytes]"""
    return memory_status("VmRSS")


def peak_resident_mb() -> float:
    """The most that this process has ever had in RAM. [10⁶ bytes]

    Not `ru_maxrss`: that one also counts what the process was before its `exec`, such as a large
    parent that started it.
    """
    return memory_status("VmHWM")


def private_mb() -> float:
    """Memory in RAM that this process shares with no other now. [10⁶ bytes]

    Pages of a mapped file count as long as nobody else has them mapped.
    """
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(kilobytes) * KIB / 1e6


def anonymous_bytes() -> int:
    """Memory in RAM that is no file's, which another process like this one would take too."""
    return round(memory_status("RssAnon") * 1e6)


def memory_status(name: str) -> float:
    """A size from Linux's `/proc/self/status`. [10⁶ bytes]"""
    for line in (
        Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB / 1e6
    raise LookupError(f"/proc/self/status: no {name}")
