"""Whether this machine has what a contestant needs."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from launch.pinning.openmp import installed_openmp
from launch.pinning.preload import ALLOCATORS, find
from profiling.bench.contestant import Contestant


def missing(contestant: Contestant) -> str | None:
    """What a contestant needs and is not installed, with what to do; None where all is there."""
    if contestant.package is not None and find_spec(contestant.package) is None:
        return f"{contestant.package} is not installed"
    allocator = ALLOCATORS.get(contestant.allocator)
    if allocator is not None and find(allocator) is None:
        return f"{contestant.allocator} is not installed (apt-get install {allocator.package})"
    if contestant.needs_intel_openmp and installed_openmp() != "intel":
        return "Intel's OpenMP is not installed (pip install intel-openmp)"
    return None


def leave_out_missing(
    contestants: Sequence[Contestant], say: Callable[[str], None]
) -> list[Contestant]:
    """Those that can run; `say` is told of each other, in a line."""
    there = []
    for contestant in contestants:
        problem = missing(contestant)
        if problem is None:
            there.append(contestant)
        else:
            say(f"{contestant.name} is left out: {problem}")
    return there
