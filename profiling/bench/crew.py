"""The workers that are alive, no more of them than fit into memory."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from profiling.bench.available_memory import available_mb
from profiling.bench.contestant import Contestant
from profiling.bench.run import Run
from profiling.bench.worker_process import contestant_worker
from profiling.bench.workload import Workload

SPARE_MB = 1000.0
"""Left to the rest of the machine."""


class Racer(Protocol):
    """What can be run again and again, such as a worker's process."""

    rss_mb: float
    """Resident memory after its last run. [10⁶ bytes]"""
    facts: dict[str, Any]

    def run(self) -> Run:
        """Do it once, while nothing else of the benchmark runs."""

    def ask(self, question: str) -> dict[str, Any]:
        """Put another question."""

    def close(self) -> None:
        """End it."""


class Crew:
    """Warmed-up workers by contestant; leaving the context ends them all.

    Where memory does not do for all at once, some are ended and started again at their next turn.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        warm_up: int,
        say: Callable[[str], None],
        available: Callable[[], float] = available_mb,
        start: Callable[[Contestant, Workload], Racer] = contestant_worker,
    ) -> None:
        """`warm_up` runs are not counted; `say` takes lines for the user; `available` is in MB."""
        self.workload = workload
        self.warm_up = warm_up
        self.say = say
        self.available = available
        self.start = start
        self.workers: dict[str, Racer] = {}  # the one that ran last comes last
        self.peak_mb: dict[str, float] = {}
        self.facts: dict[str, dict[str, float]] = {}
        self.told: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers.values():
            worker.close()

    def worker(self, contestant: Contestant) -> Racer:
        """The contestant's worker, started and warmed up if it is not there.

        Raises:
            WorkerDiedError: It ended by itself.
        """
        name = contestant.name
        worker = self.workers.pop(name, None)
        if worker is not None:
            self.workers[name] = worker
            self._make_room(self.peak_mb[name] - worker.rss_mb, keep=name)
            return worker
        # Before its first run a contestant is taken to need as much as the hungriest so far.
        self._make_room(self.peak_mb.get(name, max(self.peak_mb.values(), default=0.0)))
        worker = self.start(contestant, self.workload)
        self.workers[name] = worker
        self.facts[name] = worker.facts
        self.peak_mb.setdefault(name, 0.0)
        for _ in range(self.warm_up):
            self.peak_mb[name] = worker.run().peak_rss_mb
        return worker

    def _make_room(self, need_mb: float, *, keep: str | None = None) -> None:
        """End idle workers until `need_mb` are free: first the one whose next turn is farthest."""
        for name in reversed([name for name in self.workers if name != keep]):
            if self.available() >= need_mb + SPARE_MB:
                return
            self.workers.pop(name).close()
            if name not in self.told:
                self.told.add(name)
                self.say(f"memory does not do for all at once: {name} is started again every round")
