"""Memory that is left on the machine."""

from pathlib import Path


def available_mb() -> float:
    """What Linux can still give to processes without swapping. [10⁶ bytes]"""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError("/proc/meminfo: no MemAvailable")
