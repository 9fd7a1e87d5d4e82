"""The data that a report is made from.

A log's problems as means of a step, beside what the machine's peaks allow; a step by its phases;
and perf's counters of a run's steps, as `profile.perf` writes them.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from common.stored import read_stored
from profiling.compare import Comparison
from profiling.efficiency import Efficiency, Steps, marked_steps
from profiling.onednn_log.log import LogPosition, OneDnnLog
from profiling.peaks import Peaks, cautions_of_peaks
from profiling.sums import ProblemCalls, sum_by_problem
from profiling.trace.analysis import Analysis, MatchedLog


@dataclass(frozen=True)
class Traced:
    """The analysis of a trace."""

    analysis: Analysis
    beside: MatchedLog | None  # The log's part of the same steps, where they fit


@dataclass(frozen=True)
class Measured:
    """The analyzed part of a log: its complete steps if it has marks, else all of it."""

    problems: Sequence[ProblemCalls]  # The costliest first
    steps: Steps

    @property
    def wall_ms(self) -> float | None:
        """The time of a step; None where the log marks none."""
        return self.steps.wall_ms

    @property
    def ms(self) -> float:
        """oneDNN's time."""
        return sum(problem.total_ms for problem in self.problems)

    @property
    def unit(self) -> str:
        """The unit of calls and times, for headings."""
        return "per step" if self.steps.count else "in the log"

    @property
    def roofline_ms(self) -> float | None:
        """oneDNN's time with every problem at its roofline; as measured without one."""
        if all(problem.roofline_ms is None for problem in self.problems):
            return None
        # A problem that is faster than its roofline, by caches, counts as measured.
        return sum(problem.total_ms - (problem.lost_ms or 0.0) for problem in self.problems)


class Count(TypedDict):
    """Events of all steps together; times in milliseconds."""

    value: float


@dataclass(frozen=True)
class Counters:
    """perf's counters of one rank."""

    rank: int
    steps: Annotated[list[int], Field(min_length=1)]
    seconds: float  # Of all steps together
    counters: dict[str, Count]
    not_counted: list[str]  # Events that the machine has no counters for

    @property
    def step_s(self) -> float:
        """The mean time of a step. [seconds]"""
        return self.seconds / len(self.steps)

    def per_step(self, name: str) -> float | None:
        """Return the count of a mean step, None where it was not counted."""
        return self.counters[name]["value"] / len(self.steps) if name in self.counters else None


@dataclass(frozen=True)
class Material:
    """A log and the optional inputs; None where an input was not given."""

    log: OneDnnLog
    measured: Measured
    peaks: Peaks | None
    environment: Mapping[str, Any] | None
    counters: Sequence[Counters]
    efficiency: Efficiency | None
    comparison: Comparison | None
    traced: Traced | None

    @property
    def cautions(self) -> list[str]:
        """Reasons to doubt the numbers of peaks and replay."""
        replay = self.efficiency.cautions if self.efficiency else []
        return list(dict.fromkeys([*cautions_of_peaks(self.peaks, self.log), *replay]))

    @property
    def log_argument(self) -> str:
        """The log as an argument of a command."""
        files = self.log.files
        if len(files) == 1:
            return shlex.quote(files[0])
        # The quotes end before the pattern, which the shell must expand.
        return f"{shlex.quote(str(Path(files[0]).parent))}/*.log"


def summarize_log(log: OneDnnLog, peaks: Peaks | None) -> Measured:
    """Summarize a log: the mean over complete steps and ranks, or the sum without steps."""
    steps = marked_steps(log)
    problems = sum_by_problem(log.calls(steps.holds), steps=steps.count or 1, peaks=peaks)
    return Measured(problems, steps)


BETWEEN = "between phases"


@dataclass(frozen=True)
class Phase:
    """One phase of a mean step. [milliseconds]"""

    name: str
    wall_ms: float
    kinds_ms: dict[str, float]  # oneDNN's time by kind of primitive, the costliest first

    @property
    def onednn_ms(self) -> float:
        """oneDNN's time."""
        return sum(self.kinds_ms.values())

    @property
    def elsewhere_ms(self) -> float:
        """Time outside oneDNN."""
        return max(0.0, self.wall_ms - self.onednn_ms)


def find_phases(log: OneDnnLog) -> list[Phase]:
    """Return phases in the order of a step, finally the time between them; none without marks."""
    steps = marked_steps(log)
    if not steps.count or steps.wall_ms is None:
        return []
    # Phases are in the order of their end marks, which is that of the step.
    whole_ms: dict[str, float] = {}
    for where, ms in log.phase_ms.items():
        if where.phase and steps.holds(where):
            whole_ms[where.phase] = whole_ms.get(where.phase, 0.0) + ms

    def kinds_ms(phase: str | None) -> dict[str, float]:
        def keep(where: LogPosition) -> bool:
            return steps.holds(where) and where.phase == phase

        kinds: dict[str, float] = {}
        for problem, calls in log.calls(keep).items():
            kinds[problem.kind] = kinds.get(problem.kind, 0.0) + calls.total_ms / len(steps.whole)
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))

    phases = [Phase(name, ms / steps.count, kinds_ms(name)) for name, ms in whole_ms.items()]
    if phases:
        # Primitives between phases are at positions of the log without a phase.
        between_ms = steps.wall_ms - sum(phase.wall_ms for phase in phases)
        phases.append(Phase(BETWEEN, between_ms, kinds_ms(None)))
    return phases


def load_counters(file: Path) -> Counters:
    """Read `perf/rank<N>.json`; raise InputError if it cannot be read, or is invalid."""
    return read_stored(
        file,
        Counters,
        wrong="has no counters",
        advice="expected a file that profile.perf=true writes to runs/NAME/perf",
    )
