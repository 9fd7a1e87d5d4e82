"""How busy the rest of the machine was while a benchmark ran."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
DISTURBING_CORES = 0.1
"""More than this is told."""


class OtherLoad:
    """Filled in when the measured stretch has ended."""

    cores: float = 0.0
    """Cores that others kept busy, on average; on a virtual machine also what its host took."""


@contextmanager
def other_load() -> Iterator[OtherLoad]:
    """Measure while the context lasts; child processes count as ours once they were waited for."""
    load = OtherLoad()
    start, busy, own = time.monotonic(), _busy_seconds(), _own_seconds()
    yield load
    busy, own = _busy_seconds() - busy, _own_seconds() - own
    load.cores = max(0.0, busy - own) / (time.monotonic() - start)


def disturbance(cores: float) -> str:
    """What to say of so many cores that others kept busy; empty where it does not matter."""
    if cores <= DISTURBING_CORES:
        return ""
    return (
        f"disturbed: other work kept {cores:.2f} cores busy meanwhile; "
        "times and rates mean little, ratios less than they could"
    )


def _busy_seconds() -> float:
    """Processor time of everybody since the machine's start, and what its host stole."""
    first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, first_line.split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS_PER_SECOND


def _own_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
