"""Watching slow hosts: ranks that delay all others, and other programs on this rank's cores.

`SlowRank` finds a host that is busy, hot or older than the others, `BackgroundLoad` what competes
with compute threads: every parallel region waits for its slowest thread.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from statistics import fmean

from common.errors import printable
from common.machine import busiest, thread_wait_times, ticks_on
from retinanet.config import Config
from retinanet.training.loop import StepResult

STEPS = 20  # Window of steps: single steps are slow for many reasons
MOST_OF_THEM = 0.8  # Fraction of the window in which the same rank is slowest
LONGER_NOTED = 0.25  # Least excess over the mean of the other ranks, as a fraction of it


class SlowRank:
    """Compares forward passes: in a backward pass fast ranks wait for slow ones."""

    def __init__(self, hosts: Sequence[str], *, advice: str = "") -> None:
        """Prepare messages with the `hosts` of the ranks, and with `advice` at the end."""
        self._hosts = hosts
        self._advice = advice
        self._slowest: deque[int] = deque(maxlen=STEPS)
        self._longer: deque[float] = deque(maxlen=STEPS)
        self._noted: int | None = None

    def note(self, results: Sequence[StepResult]) -> str | None:
        """Return a note about a slow rank, once per rank; call it with every step of all ranks."""
        times = [result.forward_seconds for result in results]
        slowest = times.index(max(times))
        others = [seconds for rank, seconds in enumerate(times) if rank != slowest]
        if not others or not fmean(others):
            return None
        self._slowest.append(slowest)
        self._longer.append(times[slowest] / fmean(others) - 1)
        rank, count = Counter(self._slowest).most_common(1)[0]
        longer = fmean(self._longer)
        is_slow = count >= MOST_OF_THEM * STEPS and longer >= LONGER_NOTED
        if not is_slow or rank == self._noted:
            return None
        self._noted = rank
        return (
            f"note: rank {rank} on {self._hosts[rank]} is slow, and all wait for it: its forward "
            f"passes took {longer:.0%} longer than the others' in the last {STEPS} steps"
            f"{self._advice}"
        )


def advice_on_slow_rank(config: Config) -> str:
    """Return advice to give a slow rank fewer images, if batches are split evenly."""
    if config.distributed.batch_split != "even" or config.training.batch_size == 1:
        return ""
    return "; to give it fewer images, --resume with distributed.batch_split=speed"


SECONDS = 5.0
"""Interval of the measurements: long enough for a stable share, and several fit a short run."""
LEAST_WAIT = 0.2
"""Least share of the time that a compute thread waited for its core, for a note.
An undisturbed thread waits for less than 0.02, one that competes with a process for about 0.5."""
LEAST_CORES = 0.1  # Processes that used less are not named
MOST_NAMED = 3
SILENT_SECONDS = 600.0
"""Least time between two notes, so that a persistent load does not fill the log."""


class BackgroundLoad:
    """Measures how long compute threads wait for their cores, and which processes use these."""

    def __init__(self, cpus: Collection[int], *, place: str, seconds: float = SECONDS) -> None:
        """Watch this rank's `cpus`, once in `seconds`; `place` names rank and host in the note."""
        self._cpus = frozenset(cpus)
        self._place = place
        self._seconds = seconds
        self._start = time.monotonic()
        self._waits = thread_wait_times()
        self._ticks: dict[int, int] | None = None
        self._silent_until = self._start

    def note(self) -> str | None:
        """Return a note about the load, if there is any; call it after every step."""
        now = time.monotonic()
        seconds = now - self._start
        if seconds < self._seconds:
            return None
        waits = thread_wait_times()
        # Threads that were started in this interval have no earlier reading.
        known = waits.keys() & self._waits.keys()
        # The largest share counts, since a parallel region waits for its slowest thread.
        share = max((waits[thread] - self._waits[thread] for thread in known), default=0) / seconds
        before, self._ticks = self._ticks, None
        self._start, self._waits = now, waits
        if share < LEAST_WAIT or now < self._silent_until:
            return None
        # Reading /proc of all processes takes milliseconds, so do it only once a thread has waited.
        # Usage is a difference of two readings: the note follows in the next interval.
        self._ticks = ticks_on(self._cpus)
        if before is None:
            return None
        self._silent_until = now + SILENT_SECONDS
        processes = busiest(before, self._ticks, seconds=seconds, least_cores=LEAST_CORES)
        named = [
            f"{printable(process.name)} (process {process.process}, {process.cores:.1f} cores"
            f"{', started by this run' if process.is_ours else ''})"
            for process in processes[:MOST_NAMED]
        ]
        causes = ", ".join(named)
        if not causes:
            causes = "no visible process, perhaps one in another container"
        return (
            f"note: {self._place} shares its cores: a compute thread waited for its core for "
            f"{share:.0%} of the last {seconds:.0f} s. Busy on them: {causes}. A step waits for "
            "its slowest thread; end or move the other work, or give this run fewer cores "
            "(launch.threads)"
        )
