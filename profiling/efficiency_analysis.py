"""Measure a run's primitives against the same primitives alone. Loads no torch.

"benchDNN.sh runs each primitive operation multiple times and takes the average; efficiency.py takes
a weighted sum of all operations' time by the number of calls and produces an efficiency ratio"
(Fu et al. 2023, section 2.3). Where a log marks its steps, only whole steps count. From the ratios
follows what a step would take if oneDNN's primitives ran at another speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.errors import InputError
from profiling.onednn_log.log import OneDnnLog, Where
from profiling.onednn_log.work import Problem
from profiling.peaks import Peaks, cautions_of_peaks, roofline_ms
from profiling.replay.replay import Replay, ReplayTime, mismatches


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


Timed = ProblemEfficiency | Part


def hot_ratio(timed: Timed) -> float | None:
    """Return hot replay over measured time: 1 if the run was as fast; None if it took no time."""
    return timed.hot_ms / timed.measured_ms if timed.measured_ms else None


def cold_ratio(timed: Timed) -> float | None:
    """Return cold replay over the measured time of the same problems; None if there is none."""
    if timed.cold_ms is None or not timed.cold_measured_ms:
        return None
    return timed.cold_ms / timed.cold_measured_ms


@dataclass(frozen=True)
class Steps:
    """What is known of a log's steps."""

    whole: frozenset[tuple[int | None, int | None]]
    """Rank and number of each step whose begin and end are marked; none: the log has no marks."""
    ranks: int
    """Ranks in the log, at least 1."""
    wall_ms: float | None
    """Of a step, the mean over whole ones; None without marks."""
    images: int | None
    """Of all the log's ranks together in a step."""
    ranks_of_run: int | None
    """How many ranks trained, as the run says; None where it does not."""

    @property
    def count(self) -> int | None:
        """Steps of all ranks, counted each for itself; None without marks."""
        return len(self.whole) or None

    def holds(self, where: Where) -> bool:
        """Return whether what ran there counts."""
        return not self.whole or (where.rank, where.step) in self.whole


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
    problems, not_replayed = [], []
    for problem, calls in log.calls(steps.holds).items():
        time = replay.times.get(problem)
        if time is None:
            why = replay.not_replayed.get(problem, "it is not in the replay")
            not_replayed.append(NotReplayed(problem, calls.count, calls.total_ms, why))
        else:
            ideal = roofline_ms(problem, peaks) if peaks else None
            problems.append(ProblemEfficiency(problem, calls.count, calls.total_ms, time, ideal))
    outside = log.calls(lambda where: not steps.holds(where))
    return Efficiency(
        replay=replay,
        steps=steps,
        problems=sorted(problems, key=lambda problem: -problem.lost_ms),
        not_replayed=sorted(not_replayed, key=lambda problem: -problem.measured_ms),
        parts=parts_of(problems),
        total=sum_up("", "", problems),
        outside_ms=sum(calls.total_ms for calls in outside.values()),
        cautions=[*mismatches(log, replay), *cautions_of_peaks(peaks, log)],
    )


def parts_of(problems: Sequence[ProblemEfficiency]) -> list[Part]:
    """Return sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[ProblemEfficiency]] = {}
    for one in problems:
        groups.setdefault((one.problem.kind, one.problem.direction), []).append(one)
    parts = [sum_up(kind, direction, some) for (kind, direction), some in groups.items()]
    return sorted(parts, key=lambda part: -part.measured_ms)


def sum_up(kind: str, direction: str, problems: Sequence[ProblemEfficiency]) -> Part:
    """Return the sums of some problems."""
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


def steps_of(log: OneDnnLog) -> Steps:
    """Return what the marks and facts of a log have on its steps."""
    walls = {
        (where.rank, where.step): milliseconds
        for where, milliseconds in log.phase_ms.items()
        if where.phase is None
    }
    of_ranks = {facts.get("rank"): facts for facts in log.facts}
    images = [facts.get("images_a_step") for facts in of_ranks.values()]
    ranks_of_run = next((facts.get("ranks") for facts in log.facts), None)
    return Steps(
        whole=frozenset(walls),
        ranks=max(1, len(log.ranks)),
        wall_ms=sum(walls.values()) / len(walls) if walls else None,
        images=sum(one for one in images if isinstance(one, int)) or None,
        ranks_of_run=ranks_of_run if isinstance(ranks_of_run, int) else None,
    )


def require_fitting(steps: Steps, count: int | None) -> None:
    """Refuse `--steps` beside a log that marks its steps.

    Raises:
        InputError: It does.
    """
    if count is not None and steps.whole:
        raise InputError(
            f"--steps: the log marks its {len(steps.whole)} steps itself; leave --steps out"
        )


@dataclass(frozen=True, slots=True)
class Speed:
    """A step at some speed of oneDNN's primitives. [seconds]"""

    name: str
    onednn_s: float
    """In oneDNN's primitives."""
    step_s: float | None
    """Of the whole step; None where the log does not have what else is in it."""
    images_per_s: float | None
    """Of all ranks in the log; None where the step or its images are not known."""


@dataclass(frozen=True)
class Projection:
    """A step as it was, and as it could be; what is not oneDNN's stays as it was.

    Problems without a replay, or without a roofline, keep their measured time.
    """

    speeds: tuple[Speed, ...]
    """`as measured` first."""
    elsewhere_s: float | None
    """Outside of oneDNN's primitives, our own kernels included."""
    images: int | None
    """In a step, of all ranks in the log."""
    roofline_share: float
    """Of oneDNN's measured time, what has a roofline."""

    @property
    def measured(self) -> Speed:
        """The step as it was."""
        return self.speeds[0]


def project(
    efficiency: Efficiency, *, steps: int | None, images_a_step: int | None
) -> Projection | None:
    """Return seconds and images a second of a step, at each speed.

    Args:
        efficiency: With its marks, if the log has any.
        steps: How many the log is of, each rank's, where it marks none.
        images_a_step: Of all ranks in the log; None: as the log says.

    Returns:
        None where it is not known how many steps the log is of.
    """
    marked = efficiency.steps
    count = marked.count or (steps * marked.ranks if steps else None)
    if count is None:
        return None
    images = images_a_step or marked.images
    measured = efficiency.measured_ms / count / 1000
    elsewhere = None if marked.wall_ms is None else marked.wall_ms / 1000 - measured

    def speed(name: str, onednn_ms: float) -> Speed:
        onednn_s = onednn_ms / count / 1000
        step_s = None if elsewhere is None else onednn_s + elsewhere
        return Speed(name, onednn_s, step_s, images / step_s if images and step_s else None)

    speeds = [speed("as measured", efficiency.measured_ms)]
    if efficiency.problems:
        speeds.append(speed("at the hot replay's speed", total_ms(efficiency, hot)))
    if efficiency.total.cold_ms is not None:
        speeds.append(speed("at the cold replay's speed", total_ms(efficiency, cold_or_hot)))
    bounded = [problem for problem in efficiency.problems if problem.roofline_ms is not None]
    if bounded:
        speeds.append(speed("at the roofline", total_ms(efficiency, roofline_or_measured)))
    bounded_ms = sum(problem.measured_ms for problem in bounded)
    return Projection(
        speeds=tuple(speeds),
        elsewhere_s=elsewhere,
        images=images,
        roofline_share=bounded_ms / efficiency.measured_ms if efficiency.measured_ms else 0.0,
    )


def total_ms(efficiency: Efficiency, milliseconds: Callable[[ProblemEfficiency], float]) -> float:
    """Return all replayed problems by some measure, and the measured time of the others."""
    return sum(map(milliseconds, efficiency.problems)) + efficiency.not_replayed_ms


def hot(problem: ProblemEfficiency) -> float:
    """Return the time of all calls at the hot replay's speed."""
    return problem.hot_ms


def cold_or_hot(problem: ProblemEfficiency) -> float:
    """Return it at the cold replay's speed; at the hot one's for what was not run cold."""
    return problem.hot_ms if problem.cold_ms is None else problem.cold_ms


def roofline_or_measured(problem: ProblemEfficiency) -> float:
    """Return it at the roofline; as measured where there is none, or where caches beat it."""
    if problem.roofline_ms is None:
        return problem.measured_ms
    return min(problem.measured_ms, problem.roofline_ms * problem.calls)
