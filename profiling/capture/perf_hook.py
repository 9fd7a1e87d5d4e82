"""`profile.perf`: what the processor and the kernel count in steps that are profiled."""

import json
import time
from pathlib import Path
from typing import Any

from profiling.capture.perf_stat import PerfStat
from retinanet.engine.engines import PreparedTraining
from retinanet.output_files import write_whole

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults")
HARDWARE = (
    "cycles",
    "instructions",
    "branch-misses",
    "cache-references",
    "cache-misses",
    "dTLB-load-misses",
)


class PerfHook:
    """Counts over steps, and nothing between them, into one JSON file."""

    def __init__(self, file: Path, *, rank: int) -> None:
        self.file = file
        self.not_counted: list[str] = []
        """Events that this machine has no counters for, once the file is written."""
        self._rank = rank
        self._perf: PerfStat | None = None
        self._step = 0
        self._steps: list[int] = []
        self._begun = self._seconds = 0.0

    def open(self, prepared: PreparedTraining) -> None:
        """Start perf.

        Raises:
            PerfFailedError: It does not count here.
        """
        self._perf = PerfStat((*SOFTWARE, *HARDWARE))

    def begin_step(self, number: int, prepared: PreparedTraining) -> None:
        """Begin to count.

        Raises:
            PerfFailedError: perf has ended.
        """
        assert self._perf is not None
        self._step = number
        self._perf.count(on=True)
        self._begun = time.perf_counter()

    def begin_phase(self, name: str) -> None:
        """Nothing: it counts whole steps."""

    def end_phase(self, name: str) -> None:
        """Nothing."""

    def end_step(self, *, whole: bool) -> None:
        """Cease to count; what a broken step added makes all counts worthless.

        Raises:
            PerfFailedError: perf has ended.
        """
        assert self._perf is not None
        if not whole:
            self._perf.end()
            self._perf = None
            return
        self._seconds += time.perf_counter() - self._begun
        self._perf.count(on=False)
        self._steps.append(self._step)

    def close(self) -> None:
        """Write the counts.

        Raises:
            InputError: They cannot be written.
        """
        if self._perf is None:
            return
        output = self._perf.end()
        self._perf = None
        if not self._steps:
            return
        counters, self.not_counted = parse_counters(output)
        content = {
            "rank": self._rank,
            "steps": self._steps,
            "seconds": round(self._seconds, 6),
            "counters": counters,
            "not_counted": self.not_counted,
        }
        write_whole(self.file, json.dumps(content, indent=1))


def parse_counters(output: str) -> tuple[dict[str, Any], list[str]]:
    """Read what `perf stat --field-separator ,` prints; see "CSV FORMAT" in perf-stat(1).

    Returns:
        By event, its value, unit, and the share of the time in which it was counted; and the
        events that this machine has no counters for.
    """
    counters: dict[str, Any] = {}
    missing = []
    for line in output.splitlines():
        fields = line.split(",")
        if len(fields) < 5:
            continue
        value, unit, event, _, percent = fields[:5]
        name = event.partition(":")[0]  # `cycles:u` where the kernel's own are not to be seen
        try:
            counters[name] = {"value": float(value), "unit": unit, "share": float(percent) / 100}
        except ValueError:  # <not supported>, <not counted>
            missing.append(name)
    return counters, missing
