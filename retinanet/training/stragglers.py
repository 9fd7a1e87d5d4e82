"""A rank for which all others wait: a host that is busy, hot or older than the rest.

TODO-DOC Other programs on this rank's cores: every parallel region waits for the slowest thread.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from statistics import fmean

from common.errors import printable
from common.process_facts import ProcessTime, busiest, ticks_on, waiting_of_threads
from retinanet.config import Config
from retinanet.training.loop import StepResult

STEPS = 20
"""Looked at together: single steps are slow for many reasons."""
MOST_OF_THEM = 0.8
LONGER_TOLD = 0.25
"""Of the others' time, from which on it is worth a line."""


class SlowRank:
    """Looks for it in forward passes: in a backward pass those that are quick wait for the slow."""

    def __init__(self, hosts: Sequence[str], *, advice: str = "") -> None:
        """`hosts`: of each rank, for the message; `advice`: its end."""
        self._hosts = hosts
        self._advice = advice
        self._slowest: deque[int] = deque(maxlen=STEPS)
        self._longer: deque[float] = deque(maxlen=STEPS)
        self._told: int | None = None

    def heard(self, results: Sequence[StepResult]) -> str | None:
        """Take a step of all ranks; returns what to say of a slow one, once for each rank."""
        times = [one.forward_seconds for one in results]
        slowest = times.index(max(times))
        others = [one for rank, one in enumerate(times) if rank != slowest]
        if not others or not fmean(others):
            return None
        self._slowest.append(slowest)
        self._longer.append(times[slowest] / fmean(others) - 1)
        rank, count = Counter(self._slowest).most_common(1)[0]
        longer = fmean(self._longer)
        is_slow = count >= MOST_OF_THEM * STEPS and longer >= LONGER_TOLD
        if not is_slow or rank == self._told:
            return None
        self._told = rank
        return (
            f"note: rank {rank} on {self._hosts[rank]} is slow, and all wait for it: its forward "
            f"passes took {longer:.0%} longer than the others' in the last {STEPS} steps"
            f"{self._advice}"
        )


def advice_on_slow_rank(config: Config) -> str:
    """What helps against one that stays slow: fewer images for it, where it has as many as all."""
    if config.distributed.batch_split != "even" or config.training.batch_size == 1:
        return ""
    return "; if it stays so, --resume with distributed.batch_split=speed gives it fewer images"


SECONDS = 5.0
"""Between two looks: long enough for a share, short enough that a test run has several."""
LEAST_WAIT = 0.2
"""Share of the time that a compute thread waited for its core, from which on a note is worth it.
An undisturbed thread waits for less than 0.02, one beside a busy process for about 0.5."""
LEAST_CORES = 0.1
"""A process that used less is not named."""
MOST_NAMED = 3
SILENT_SECONDS = 600.0
"""After a note: a load that stays, or comes and goes, is reported again only then."""


class BackgroundLoad:
    """Watches how long compute threads wait for their cores; looks for who has them only then."""

    def __init__(self, cpus: Collection[int], *, place: str, seconds: float = SECONDS) -> None:
        """Begin to watch.

        Args:
            cpus: Of this rank's compute threads.
            place: The rank and its host, for the note.
            seconds: Between two looks.
        """
        self._cpus = frozenset(cpus)
        self._place = place
        self._seconds = seconds
        self._start = time.monotonic()
        self._waits = waiting_of_threads()
        self._ticks: dict[int, int] | None = None
        self._silent_until = self._start

    def note(self) -> str | None:
        """Return one line about the load, if there is one; call it after every step."""
        now = time.monotonic()
        seconds = now - self._start
        if seconds < self._seconds:
            return None
        waits = waiting_of_threads()
        known = waits.keys() & self._waits.keys()
        share = max((waits[thread] - self._waits[thread] for thread in known), default=0) / seconds
        before, self._ticks = self._ticks, None
        self._start, self._waits = now, waits
        if share < LEAST_WAIT or now < self._silent_until:
            return None
        # Reading all processes takes milliseconds, so it is done only where cores are shared. Names
        # come with the next look, if the load is still there.
        self._ticks = ticks_on(self._cpus)
        if before is None:
            return None
        self._silent_until = now + SILENT_SECONDS
        processes = busiest(before, self._ticks, seconds=seconds, least_cores=LEAST_CORES)
        return describe_load(self._place, share=share, seconds=seconds, processes=processes)


def describe_load(place: str, *, share: float, seconds: float, processes: list[ProcessTime]) -> str:
    """Return the note: how long a thread waited, for whom, and what helps."""
    named = [
        f"{printable(process.name)} (process {process.process}, {process.cores:.1f} cores"
        f"{', started by this run' if process.is_ours else ''})"
        for process in processes[:MOST_NAMED]
    ]
    causes = ", ".join(named) or "no process that can be seen from here, perhaps another container"
    return (
        f"note: {place} shares its cores: a compute thread waited for its core for {share:.0%} of "
        f"the last {seconds:.0f} s. Busy there: {causes}. A step waits for its slowest thread; end "
        "or move the other work, or give this run fewer cores (launch.threads)"
    )
