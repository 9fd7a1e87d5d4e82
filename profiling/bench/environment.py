"""On what a benchmark ran: a number never stands without it."""

import os
import platform
from pathlib import Path

from retinanet.versions import installed_versions

PACKAGES = ("torch", "torchvision", "intel-extension-for-pytorch")


def environment() -> dict[str, str | int]:
    """Processor, cores this process may use, kernel, Python and the packages that compute."""
    found: dict[str, str | int] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    return found | installed_versions(PACKAGES)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
