"""Other programs on this rank's cores: every parallel region waits for the slowest thread."""

import time
from collections.abc import Collection

from launch.host.processor_time import ProcessTime, busiest, ticks_on, waiting_of_threads
from retinanet.printable import printable

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
