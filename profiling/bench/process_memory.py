"""Memory of processes and of the machine, as Linux tells it."""

from pathlib import Path

KIB_IN_MB = 1024 / 1e6


def resident_mb(process: int | str = "self") -> tuple[float, float]:
    """Resident memory of a process, now and at its largest. [MB, 10⁶ bytes]"""
    status = Path(f"/proc/{process}/status").read_text()
    return _kib(status, "VmRSS") * KIB_IN_MB, _kib(status, "VmHWM") * KIB_IN_MB


def available_mb() -> float:
    """What the machine can still give to processes without swapping. [MB]"""
    return _kib(Path("/proc/meminfo").read_text(), "MemAvailable") * KIB_IN_MB


def _kib(text: str, name: str) -> int:
    """A line such as `VmRSS:     123 kB`."""
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
