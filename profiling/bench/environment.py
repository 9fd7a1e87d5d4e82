"""On what a benchmark ran: a number never stands without it."""

import os
import platform

from retinanet.processor import processor_name
from retinanet.versions import installed_versions

PACKAGES = ("torch", "torchvision", "intel-extension-for-pytorch")


def environment() -> dict[str, str | int]:
    """Processor, cores this process may use, kernel, Python and the packages that compute."""
    found: dict[str, str | int] = {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    return found | installed_versions(PACKAGES)
