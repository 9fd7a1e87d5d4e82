"""Which OpenMP library makes the compute threads: torch's own libgomp, or Intel's in its place."""

import os
import sys
from pathlib import Path

INTEL_LIBRARIES = ("libiomp5.so", "libomp.so")
"""Intel's, and LLVM's, which is the same library and what conda's `libiomp5.so` is a link to."""


def installed_openmp() -> str:
    """`intel` where libiomp5 is preloaded or lies in this environment, else `gnu`."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    named = any(f"/{name}" in f"/{preloaded}" for name in INTEL_LIBRARIES)
    return "intel" if named or intel_is_loaded() or find_intel() else "gnu"


def loaded_openmp() -> str:
    """`intel` where libiomp5 is part of this process, so that it goes before libgomp, else `gnu`.

    Ask after `launch.pinning.pin.preload`.
    """
    return "intel" if intel_is_loaded() else "gnu"


def find_intel() -> Path | None:
    """libiomp5 of this environment, which the package `intel-openmp` brings."""
    library = Path(sys.prefix) / "lib" / INTEL_LIBRARIES[0]
    return library if library.is_file() else None


def intel_is_loaded() -> bool:
    """Whether it is mapped into this process."""
    return any(f"/{name}" in maps() for name in INTEL_LIBRARIES)


def loaded_libraries() -> set[str]:
    """The files of all OpenMP libraries that are mapped into this process."""
    files = {line.split(maxsplit=5)[-1] for line in maps().splitlines() if "/" in line}
    names = (*INTEL_LIBRARIES, "libgomp")
    return {file for file in files if Path(file).name.startswith(names)}


def maps() -> str:
    """What is mapped into this process, as the kernel tells it."""
    return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
