"""Another allocator in the C library's place, and Intel's OpenMP in that of torch's.

The dynamic linker puts them there when a program starts (`LD_PRELOAD`), not later. So a process
that wants them starts its own command again, once: same process id, arguments, open pipes and
pinning.
"""

import os
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from retinanet.errors import InputError

STARTED_AGAIN = "RETINANET_PRELOADED"
"""Set while the command starts again, so that it cannot do so twice."""


@dataclass(frozen=True)
class Allocator:
    """A library that replaces malloc, and how it is told to keep freed memory."""

    libraries: tuple[str, ...]
    """Names without `lib` and `.so`, the best first."""
    package: str
    """Debian's and Ubuntu's package."""
    settings: Mapping[str, str]
    """Environment variables; what the user has set goes first."""


ALLOCATORS = {
    "tcmalloc": Allocator(
        libraries=("tcmalloc_minimal", "tcmalloc"),
        package="libtcmalloc-minimal4",
        settings={"TCMALLOC_RELEASE_RATE": "0"},
    ),
    "jemalloc": Allocator(
        libraries=("jemalloc",),
        package="libjemalloc2",
        settings={"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
    ),
}


def preload(name: str | None, *, openmp: Path | None = None) -> None:
    """Go on under an allocator of `ALLOCATORS`; returns only if all is in place already.

    A library that the user has preloaded is taken as it is.

    Args:
        name: The allocator; None leaves it.
        openmp: An OpenMP library that is not loaded, to be preloaded in the same start. If the
            dynamic linker does not take it, the process goes on without.

    Raises:
        InputError: The allocator's library is not installed, or the linker does not take it.
    """
    started_again = os.environ.pop(STARTED_AGAIN, None) is not None
    environment = dict(os.environ)
    if openmp is not None and not started_again:
        environment = preloading(environment, str(openmp), {})
    if name is not None and not is_loaded(ALLOCATORS[name]):
        library = library_of(name, started_again=started_again)
        environment = preloading(environment, library, ALLOCATORS[name].settings)
    if environment == os.environ:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**environment, STARTED_AGAIN: name or "none"})


def library_of(name: str, *, started_again: bool) -> str:
    """The library of an allocator that is not loaded.

    Raises:
        InputError: It is not installed, or starting again with it was of no use.
    """
    allocator = ALLOCATORS[name]
    library = find(allocator)
    if library is None or started_again:
        problem = f"{library} cannot be preloaded" if library else "its library is not installed"
        raise InputError(
            f"engine.allocator: {name}: {problem}; apt-get install {allocator.package}, start "
            "with LD_PRELOAD=/path/to/the/library, or set engine.allocator=tuned"
        )
    return library


def is_loaded(allocator: Allocator) -> bool:
    """Whether one of the allocator's libraries is part of this process."""
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return any(f"/lib{name}.so" in mapped for name in allocator.libraries)


def find(allocator: Allocator) -> str | None:
    """The library: a path in this environment (conda's, say), or a name that the linker knows."""
    folder = Path(sys.prefix) / "lib"
    for name in allocator.libraries:
        in_environment = sorted(folder.glob(f"lib{name}.so*"))
        found = str(in_environment[0]) if in_environment else find_library(name)
        if found:
            return found
    return None


def preloading(
    environment: Mapping[str, str], library: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """An environment that has the library before all others, and the settings that it lacks."""
    others = environment.get("LD_PRELOAD", "")
    preloaded = f"{library}:{others}" if others else library
    return {**settings, **environment, "LD_PRELOAD": preloaded}
