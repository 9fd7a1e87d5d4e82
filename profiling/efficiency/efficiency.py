"""Replayed time against measured time, weighted by calls. Loads no torch.

"benchDNN.sh runs each primitive operation multiple times and takes the average; efficiency.py takes
a weighted sum of all operations' time by the number of calls and produces an efficiency ratio"
(Fu et al. 2023, section 2.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from profiling.efficiency.steps import Steps, steps_of
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.problem import Problem
from profiling.peaks.cautions import cautions_of_peaks
from profiling.peaks.peaks import Peaks
from profiling.peaks.roofline import roofline_ms
from profiling.replay.mismatches import mismatches
from profiling.replay.replay import Replay, ReplayTime


@dataclass(frozen=True, slots=True)
class ProblemEfficiency:
    """One problem that was replayed. [milliseconds]"""

    problem: Problem
    calls: int
    measured_ms: float
    """Of all its calls in the run."""
    replayed: ReplayTime
    """Of one call, alone."""
    roofline_ms: float | None
    """Of one call at the machine's peaks; None where they or the work are not known."""

    @property
    def hot_ms(self) -> float:
        """What all its calls would take at the hot replay's speed."""
        return self.replayed.hot_ms * self.calls

    @property
    def cold_ms(self) -> float | None:
        """The same of the cold replay."""
        cold = self.replayed.cold_ms
        return None if cold is None else cold * self.calls

    @property
    def cold_measured_ms(self) -> float:
        """Measured time that the cold replay is to be held against."""
        return 0.0 if self.replayed.cold_ms is None else self.measured_ms

    @property
    def lost_ms(self) -> float:
        """Measured time beyond the hot replay's; below 0 where the run was faster."""
        return self.measured_ms - self.hot_ms


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """One problem without a replay: it is in neither side of any ratio."""

    problem: Problem
    calls: int
    measured_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """Problems together: those of a kind and direction, or all. [milliseconds]"""

    kind: str
    direction: str
    calls: int
    measured_ms: float
    hot_ms: float
    cold_ms: float | None
    """Of those that have a cold replay; None where none has. benchdnn runs small ones hot only."""
    cold_measured_ms: float
    """Measured time of the same."""

    @property
    def lost_ms(self) -> float:
        """Measured time beyond the hot replay's."""
        return self.measured_ms - self.hot_ms


class Timed(Protocol):
    """A problem or a part."""

    @property
    def measured_ms(self) -> float: ...  # noqa: D102
    @property
    def hot_ms(self) -> float: ...  # noqa: D102
    @property
    def cold_ms(self) -> float | None: ...  # noqa: D102
    @property
    def cold_measured_ms(self) -> float: ...  # noqa: D102


def hot_ratio(one: Timed) -> float | None:
    """Hot replay over measured: 1 where the run was as fast; None where it took no time."""
    return one.hot_ms / one.measured_ms if one.measured_ms else None


def cold_ratio(one: Timed) -> float | None:
    """Cold replay over the measured time of the same problems; None where there is none."""
    if one.cold_ms is None or not one.cold_measured_ms:
        return None
    return one.cold_ms / one.cold_measured_ms


@dataclass(frozen=True)
class Efficiency:
    """A run against its replay."""

    replay: Replay
    steps: Steps
    problems: Sequence[ProblemEfficiency]
    """Those that lose most come first."""
    not_replayed: Sequence[NotReplayed]
    """The costliest come first."""
    parts: Sequence[Part]
    """By kind and direction, the costliest first."""
    total: Part
    """All that was replayed."""
    outside_ms: float
    """oneDNN's time outside of whole steps, which counts nowhere."""
    cautions: Sequence[str]
    """What made the replay differ from the run, other than running alone; what speaks against the
    peaks."""

    @property
    def not_replayed_ms(self) -> float:
        """Measured time of what was not replayed."""
        return sum(one.measured_ms for one in self.not_replayed)

    @property
    def measured_ms(self) -> float:
        """All of oneDNN's time that counts."""
        return self.total.measured_ms + self.not_replayed_ms

    @property
    def not_replayed_share(self) -> float:
        """Of that time, what was not replayed."""
        return self.not_replayed_ms / self.measured_ms if self.measured_ms else 0.0


def efficiency_of(log: OneDnnLog, replay: Replay, *, peaks: Peaks | None) -> Efficiency:
    """Compare a log with its replay; `peaks` are for the roofline.

    Where the log marks its steps, only what ran inside whole steps counts.
    """
    steps = steps_of(log)
    calls = log.calls(steps.holds)
    problems, not_replayed = [], []
    for problem, one in calls.items():
        time = replay.times.get(problem)
        if time is None:
            why = replay.not_replayed.get(problem, "it is not in the replay")
            not_replayed.append(NotReplayed(problem, one.count, one.total_ms, why))
            continue
        ideal = roofline_ms(problem, peaks) if peaks else None
        problems.append(ProblemEfficiency(problem, one.count, one.total_ms, time, ideal))
    return Efficiency(
        replay=replay,
        steps=steps,
        problems=sorted(problems, key=lambda one: -one.lost_ms),
        not_replayed=sorted(not_replayed, key=lambda one: -one.measured_ms),
        parts=parts_of(problems),
        total=together("", "", problems),
        outside_ms=sum(
            one.total_ms for one in log.calls(lambda where: not steps.holds(where)).values()
        ),
        cautions=[*mismatches(log, replay), *cautions_of_peaks(peaks, log)],
    )


def parts_of(problems: Sequence[ProblemEfficiency]) -> list[Part]:
    """Sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[ProblemEfficiency]] = {}
    for one in problems:
        groups.setdefault((one.problem.kind, one.problem.direction), []).append(one)
    parts = [together(kind, direction, some) for (kind, direction), some in groups.items()]
    return sorted(parts, key=lambda part: -part.measured_ms)


def together(kind: str, direction: str, problems: Sequence[ProblemEfficiency]) -> Part:
    """The sums of some problems."""
    cold = [one.cold_ms for one in problems if one.cold_ms is not None]
    return Part(
        kind=kind,
        direction=direction,
        calls=sum(one.calls for one in problems),
        measured_ms=sum(one.measured_ms for one in problems),
        hot_ms=sum(one.hot_ms for one in problems),
        cold_ms=sum(cold) if cold else None,
        cold_measured_ms=sum(one.cold_measured_ms for one in problems),
    )
