"""A log's problems as means of a step, beside what the machine's peaks allow."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.efficiency.steps import Steps, steps_of
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.problem import Problem
from profiling.onednn_log.work import gbyte, gflop
from profiling.peaks.peaks import Peaks
from profiling.peaks.roofline import matrix_peak, roofline_ms
from profiling.stats.rows import told_apart


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


def measured_of(log: OneDnnLog, peaks: Peaks | None) -> Measured:
    """Sum up a log; a mean step where it has whole ones, over steps and ranks."""
    steps = steps_of(log)
    divisor = steps.count or 1
    merged = told_apart(log.calls(steps.holds))
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
    """The numbers of one problem; `divisor`: steps that the calls are of."""
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
    """By kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[MeasuredProblem]] = {}
    for one in problems:
        groups.setdefault((one.problem.kind, one.problem.direction), []).append(one)
    parts = [MeasuredPart(kind, direction, some) for (kind, direction), some in groups.items()]
    return sorted(parts, key=lambda part: -part.ms)
