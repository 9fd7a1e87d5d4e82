"""Everything that a report is made from, once it is read.

A log's problems as means of a step, beside what the machine's peaks allow; a step by its phases;
and perf's counters of a run's steps, as `profile.perf` writes them.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import read_json_object
from profiling.compare import Comparison
from profiling.efficiency_analysis import Efficiency, Steps, steps_of
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.work import Problem, gbyte, gflop, kind_and_direction
from profiling.peaks import Peaks, cautions_of_peaks, matrix_peak, roofline_ms
from profiling.stats import merge_equal
from profiling.trace.analysis import Analysis, BesideLog
from profiling.trace.trace import Trace


@dataclass(frozen=True)
class Traced:
    """A trace, and what it comes to."""

    trace: Trace
    analysis: Analysis
    beside: BesideLog | None
    """The log's part of the same steps, where they fit."""


@dataclass(frozen=True, slots=True)
class MeasuredProblem:
    """One problem; all its calls of a step, or of a log without steps."""

    problem: Problem
    calls: float
    ms: float
    share: float
    """Of all of oneDNN's time, 0 to 1."""
    gflop_per_s: float | None
    gbyte_per_s: float | None
    roofline_ms: float | None
    """Of all these calls at the machine's peaks; None where not known."""
    peak_share: float | None
    """Of the peak rate of its type of number, what it reaches; None where not known."""

    @property
    def lost_ms(self) -> float | None:
        """Beyond the roofline; 0 where caches made it faster than that."""
        return None if self.roofline_ms is None else max(0.0, self.ms - self.roofline_ms)


@dataclass(frozen=True)
class Measured:
    """All of a log that counts: whole steps where it marks them, else everything."""

    problems: Sequence[MeasuredProblem]
    """The costliest first."""
    steps: Steps
    wall_ms: float | None
    """Of a step; None where the log marks none."""

    @property
    def ms(self) -> float:
        """oneDNN's time."""
        return sum(one.ms for one in self.problems)

    @property
    def unit(self) -> str:
        """Of what calls and times are."""
        return "a step" if self.steps.count else "in the log"

    @property
    def roofline_ms(self) -> float | None:
        """oneDNN's time if every problem were at its roofline; as measured where it has none."""
        if all(one.roofline_ms is None for one in self.problems):
            return None
        return sum(one.ms - (one.lost_ms or 0.0) for one in self.problems)


@dataclass(frozen=True)
class Counters:
    """Of one rank."""

    rank: int
    steps: int
    """How many the counts are of."""
    seconds: float
    counts: dict[str, float]
    """Of all steps together; times in milliseconds."""
    not_counted: tuple[str, ...]
    """Events that the machine has no counters for."""

    def a_step(self, name: str) -> float | None:
        """Return the count of a mean step, None where it was not counted."""
        return self.counts[name] / self.steps if name in self.counts else None


@dataclass(frozen=True)
class Material:
    """A log, and what was given beside it; None: was not."""

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
        """What speaks against the numbers of peaks and replay."""
        of_peaks = cautions_of_peaks(self.peaks, self.log)
        return list(
            dict.fromkeys([*of_peaks, *(self.efficiency.cautions if self.efficiency else [])])
        )

    @property
    def log_words(self) -> str:
        """The log as it would be typed after a command."""
        files = self.log.files
        if len(files) == 1:
            return shlex.quote(files[0])
        return f"{shlex.quote(str(Path(files[0]).parent))}/*.log"


def measured_of(log: OneDnnLog, peaks: Peaks | None) -> Measured:
    """Sum up a log: a mean step where it has whole ones, over steps and ranks."""
    steps = steps_of(log)
    divisor = steps.count or 1
    merged = merge_equal(log.calls(steps.holds))
    total = sum(one.total_ms for one in merged.values())
    problems = [
        measured_problem(problem, one, divisor=divisor, total_ms=total, peaks=peaks)
        for problem, one in merged.items()
    ]
    return Measured(
        sorted(problems, key=lambda one: -one.ms),
        steps,
        wall_ms=steps.wall_ms if steps.count else None,
    )


def measured_problem(
    problem: Problem, calls: Calls, *, divisor: int, total_ms: float, peaks: Peaks | None
) -> MeasuredProblem:
    """Return the numbers of one problem; `divisor`: steps that the calls are of."""
    seconds = calls.mean_ms / 1000
    computed, moved = gflop(problem), gbyte(problem)
    rate = computed / seconds if computed is not None and seconds else None
    peak = matrix_peak(problem, peaks) if peaks else None
    ideal = roofline_ms(problem, peaks) if peaks else None
    return MeasuredProblem(
        problem,
        calls=calls.count / divisor,
        ms=calls.total_ms / divisor,
        share=calls.total_ms / total_ms if total_ms else 0.0,
        gflop_per_s=rate,
        gbyte_per_s=moved / seconds if moved is not None and seconds else None,
        roofline_ms=None if ideal is None else ideal * calls.count / divisor,
        peak_share=rate / peak if rate is not None and peak else None,
    )


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Problems of one kind and direction."""

    kind: str
    direction: str
    problems: Sequence[MeasuredProblem]

    @property
    def name(self) -> str:
        """Such as `convolution backward data`."""
        return kind_and_direction(self.kind, self.direction)

    @property
    def calls(self) -> float:
        """Of a step, as all that follows."""
        return sum(one.calls for one in self.problems)

    @property
    def ms(self) -> float:
        """oneDNN's time in them."""
        return sum(one.ms for one in self.problems)

    @property
    def share(self) -> float:
        """Of all of oneDNN's time."""
        return sum(one.share for one in self.problems)

    @property
    def bounded_ms(self) -> float:
        """Time of those that have a roofline."""
        return sum(one.ms for one in self.problems if one.roofline_ms is not None)

    @property
    def lost_ms(self) -> float:
        """Of those, time beyond it."""
        return sum(one.lost_ms or 0.0 for one in self.problems)

    @property
    def gflop_per_s(self) -> float | None:
        """Of those whose arithmetic is counted."""
        counted = [one for one in self.problems if one.gflop_per_s is not None]
        milliseconds = sum(one.ms for one in counted)
        work = sum((one.gflop_per_s or 0.0) * one.ms for one in counted)
        return work / milliseconds if milliseconds else None


def parts_of(problems: Sequence[MeasuredProblem]) -> list[MeasuredPart]:
    """Return sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[MeasuredProblem]] = {}
    for one in problems:
        groups.setdefault((one.problem.kind, one.problem.direction), []).append(one)
    parts = [MeasuredPart(kind, direction, some) for (kind, direction), some in groups.items()]
    return sorted(parts, key=lambda part: -part.ms)


BETWEEN = "between phases"


@dataclass(frozen=True)
class Phase:
    """One phase of a mean step. [milliseconds]"""

    name: str
    wall_ms: float
    kinds_ms: dict[str, float]
    """oneDNN's time by kind of primitive, the costliest first."""

    @property
    def onednn_ms(self) -> float:
        """oneDNN's time."""
        return sum(self.kinds_ms.values())

    @property
    def elsewhere_ms(self) -> float:
        """What is not oneDNN's."""
        return max(0.0, self.wall_ms - self.onednn_ms)


def phases_of(log: OneDnnLog) -> list[Phase]:
    """Return phases in the order of a step, last what lies between them; none without marks."""
    steps = steps_of(log)
    if not steps.count or steps.wall_ms is None:
        return []
    names = list(dict.fromkeys(
        where.phase for where in log.phase_ms if where.phase and steps.holds(where)
    ))  # fmt: skip
    found = [
        Phase(
            name,
            wall_ms=sum(
                ms for where, ms in log.phase_ms.items()
                if where.phase == name and steps.holds(where)
            ) / steps.count,
            kinds_ms=kinds_of(log, name),
        )
        for name in names
    ]  # fmt: skip
    rest = steps.wall_ms - sum(phase.wall_ms for phase in found)
    between = kinds_of(log, None)
    if found:
        found.append(Phase(BETWEEN, wall_ms=rest, kinds_ms=between))
    return found


def kinds_of(log: OneDnnLog, phase: str | None) -> dict[str, float]:
    """Return oneDNN's time in a phase of a mean step, by kind; the costliest first."""
    steps = steps_of(log)
    calls = log.calls(lambda where: steps.holds(where) and where.phase == phase)
    kinds: dict[str, float] = {}
    for problem, one in calls.items():
        kinds[problem.kind] = kinds.get(problem.kind, 0.0) + one.total_ms / (steps.count or 1)
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def largest_kinds(phases: Sequence[Phase], count: int) -> list[str]:
    """Return the kinds that cost most over all phases."""
    totals: dict[str, float] = {}
    for phase in phases:
        for kind, ms in phase.kinds_ms.items():
            totals[kind] = totals.get(kind, 0.0) + ms
    return sorted(totals, key=lambda kind: -totals[kind])[:count]


ADVICE = "expected what profile.perf=true writes to runs/NAME/perf"


def load_counters(file: Path) -> Counters:
    """Read `perf/rank<N>.json`.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    content = read_json_object(file, advice=ADVICE)
    try:
        return counters_of(content)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: {type(error).__name__}: {error}; {ADVICE}") from error


def counters_of(content: Any) -> Counters:
    """Return counters from JSON; raise KeyError, TypeError or ValueError if it is no such."""
    steps = len(content["steps"])
    if not steps:
        raise ValueError("steps: none were counted")
    return Counters(
        rank=int(content["rank"]),
        steps=steps,
        seconds=float(content["seconds"]),
        counts={str(name): float(one["value"]) for name, one in content["counters"].items()},
        not_counted=tuple(map(str, content["not_counted"])),
    )
