"""Measure a run's primitives against the same primitives alone. Loads no torch.

"benchDNN.sh runs each primitive operation multiple times and takes the average; efficiency.py takes
a weighted sum of all operations' time by the number of calls and produces an efficiency ratio"
(Fu et al. 2023, section 2.3). If a log marks its steps, only whole steps count. The ratios give
what a step would take if oneDNN's primitives ran at another speed.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.onednn_log.log import LogPosition, OneDnnLog
from profiling.onednn_log.work import Problem
from profiling.peaks import Peaks, cautions_of_peaks, roofline_ms
from profiling.replay.replay import Replay, ReplayTime, mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The sum of problems of a kind and direction, or of all. [milliseconds]"""

    kind: str
    direction: str
    calls: int
    measured_ms: float  # The time of all calls in the run
    hot_ms: float  # The time of all calls at the hot replay's speed
    cold_ms: float | None
    """The time of those with a cold replay; None without any. benchdnn runs small ones hot only."""
    cold_measured_ms: float  # Measured time of the same

    @property
    def lost_ms(self) -> float:
        """Measured time minus that of the hot replay; negative if the run was faster."""
        return self.measured_ms - self.hot_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemEfficiency(Part):
    """One problem that was replayed."""

    problem: Problem
    replayed: ReplayTime  # The time of one call, alone
    roofline_ms: float | None
    """The time of one call at the machine's peaks; None where they or the work are not known."""


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """One problem without a replay: it is in neither side of any ratio."""

    problem: Problem
    calls: int
    measured_ms: float
    why: str


def hot_ratio(part: Part) -> float | None:
    """Return hot replay over measured time: 1 if the run was as fast; None if it took no time."""
    return part.hot_ms / part.measured_ms if part.measured_ms else None


def cold_ratio(part: Part) -> float | None:
    """Return cold replay over the measured time of the same problems; None if there is none."""
    if part.cold_ms is None or not part.cold_measured_ms:
        return None
    return part.cold_ms / part.cold_measured_ms


@dataclass(frozen=True)
class Steps:
    """The facts that a log has on its steps."""

    whole: frozenset[tuple[int | None, int | None]]
    """Rank and number of each step whose begin and end are marked; none: the log has no marks."""
    ranks: int  # Ranks in the log, at least 1
    wall_ms: float | None  # The time of a step, the mean over whole ones; None without marks
    images: int | None  # Images of all the log's ranks together in a step
    ranks_of_run: int | None  # Number of ranks that trained; None where the log does not have it

    @property
    def count(self) -> int | None:
        """The number of steps, summed over the ranks; None without marks."""
        return len(self.whole) or None

    def holds(self, where: LogPosition) -> bool:
        """Return whether executions in that place count."""
        return not self.whole or (where.rank, where.step) in self.whole


@dataclass(frozen=True)
class Efficiency:
    """A run against its replay."""

    replay: Replay
    steps: Steps
    problems: Sequence[ProblemEfficiency]  # The largest losses come first
    not_replayed: Sequence[NotReplayed]  # The costliest come first
    parts: Sequence[Part]  # By kind and direction, the costliest first
    total: Part  # The sum of all replayed problems
    outside_ms: float  # oneDNN's time outside of whole steps, which counts nowhere
    cautions: Sequence[str]
    """Differences between replay and run, other than running alone; reasons against the peaks."""

    @property
    def not_replayed_ms(self) -> float:
        """The measured time of problems without a replay."""
        return sum(problem.measured_ms for problem in self.not_replayed)

    @property
    def measured_ms(self) -> float:
        """The total oneDNN time in the analysis."""
        return self.total.measured_ms + self.not_replayed_ms

    @property
    def not_replayed_share(self) -> float:
        """The share of that time without a replay."""
        return self.not_replayed_ms / self.measured_ms if self.measured_ms else 0.0


def analyze_efficiency(log: OneDnnLog, replay: Replay, *, peaks: Peaks | None) -> Efficiency:
    """Compare a log with its replay; `peaks` are for the roofline.

    If the log marks its steps, only what ran inside whole steps counts.
    """
    steps = marked_steps(log)
    problems, not_replayed = [], []
    for problem, calls in log.calls(steps.holds).items():
        time = replay.times.get(problem)
        if time is None:
            why = replay.not_replayed.get(problem, "not in the replay")
            not_replayed.append(NotReplayed(problem, calls.count, calls.total_ms, why))
            continue
        item = ProblemEfficiency(
            kind=problem.kind,
            direction=problem.direction,
            calls=calls.count,
            measured_ms=calls.total_ms,
            hot_ms=time.hot_ms * calls.count,
            cold_ms=None if time.cold_ms is None else time.cold_ms * calls.count,
            cold_measured_ms=0.0 if time.cold_ms is None else calls.total_ms,
            problem=problem,
            replayed=time,
            roofline_ms=roofline_ms(problem, peaks) if peaks else None,
        )
        problems.append(item)
    outside = log.calls(lambda where: not steps.holds(where))
    return Efficiency(
        replay=replay,
        steps=steps,
        problems=sorted(problems, key=lambda problem: -problem.lost_ms),
        not_replayed=sorted(not_replayed, key=lambda problem: -problem.measured_ms),
        parts=sum_by_kind(problems),
        total=sum_up("", "", problems),
        outside_ms=sum(calls.total_ms for calls in outside.values()),
        cautions=[*mismatches(log, replay), *cautions_of_peaks(peaks, log)],
    )


def sum_by_kind(problems: Sequence[Part]) -> list[Part]:
    """Return sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for problem in problems:
        groups[problem.kind, problem.direction].append(problem)
    parts = [sum_up(*key, group) for key, group in groups.items()]
    return sorted(parts, key=lambda part: -part.measured_ms)


def sum_up(kind: str, direction: str, problems: Sequence[Part]) -> Part:
    """Return the sums of some problems."""
    cold = [problem.cold_ms for problem in problems if problem.cold_ms is not None]
    return Part(
        kind=kind,
        direction=direction,
        calls=sum(problem.calls for problem in problems),
        measured_ms=sum(problem.measured_ms for problem in problems),
        hot_ms=sum(problem.hot_ms for problem in problems),
        cold_ms=sum(cold) if cold else None,
        cold_measured_ms=sum(problem.cold_measured_ms for problem in problems),
    )


def marked_steps(log: OneDnnLog) -> Steps:
    """Return what the marks and facts of a log have on its steps."""
    marks = [(where, ms) for where, ms in log.phase_ms.items() if where.phase is None]
    # Marks without a phase surround whole steps. A step whose end is missing has no time.
    walls = {(where.rank, where.step): ms for where, ms in marks}
    by_rank = {facts.get("rank"): facts for facts in log.facts}
    images = [facts.get("images_a_step") for facts in by_rank.values()]
    ranks_of_run = next((facts.get("ranks") for facts in log.facts), None)
    return Steps(
        whole=frozenset(walls),
        ranks=max(1, len(log.ranks)),
        wall_ms=sum(walls.values()) / len(walls) if walls else None,
        images=sum(number for number in images if isinstance(number, int)) or None,
        ranks_of_run=ranks_of_run if isinstance(ranks_of_run, int) else None,
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """A step at some speed of oneDNN's primitives. [seconds]"""

    name: str
    onednn_s: float
    step_s: float | None
    """The time of the whole step; None where the log does not have what else is in it."""
    images_per_s: float | None
    """The rate of all ranks in the log; None where the step or its images are not known."""


@dataclass(frozen=True)
class Projection:
    """The measured step and its projections; time outside oneDNN is unchanged.

    Problems without a replay, or without a roofline, keep their measured time.
    """

    speeds: tuple[Speed, ...]  # `as measured` first
    elsewhere_s: float | None  # Outside of oneDNN's primitives, our own kernels included
    images: int | None  # In a step, of all ranks in the log
    roofline_share: float  # The share of oneDNN's measured time that has a roofline


def project(
    efficiency: Efficiency, *, steps: int | None, images_a_step: int | None
) -> Projection | None:
    """Return seconds and images a second of a step, at each speed.

    `steps` is each rank's number of steps in a log without marks, and `images_a_step` of all ranks
    in the log replaces the log's own. None where the number of steps is not known.
    """
    marked = efficiency.steps
    # Summed over the ranks, so that times are those of a rank's step.
    count = marked.count or (steps * marked.ranks if steps else None)
    if count is None:
        return None
    images = images_a_step or marked.images
    measured = efficiency.measured_ms / count / 1000
    # Seconds: times of steps and of primitives are in milliseconds.
    elsewhere = None if marked.wall_ms is None else marked.wall_ms / 1000 - measured
    problems, speeds = efficiency.problems, []

    def add_speed(name: str, onednn_ms: float) -> None:
        onednn_s = onednn_ms / count / 1000
        step_s = None if elsewhere is None else onednn_s + elsewhere
        speeds.append(Speed(name, onednn_s, step_s, images / step_s if images and step_s else None))

    add_speed("as measured", efficiency.measured_ms)
    if problems:
        hot_ms = sum(problem.hot_ms for problem in problems)
        add_speed("at the hot replay's speed", hot_ms + efficiency.not_replayed_ms)
    if efficiency.total.cold_ms is not None:
        # Problems without a cold time, such as small ones of benchdnn, keep their hot time.
        cold_ms = sum(p.hot_ms if p.cold_ms is None else p.cold_ms for p in problems)
        add_speed("at the cold replay's speed", cold_ms + efficiency.not_replayed_ms)
    bounded = [problem for problem in problems if problem.roofline_ms is not None]
    if bounded:
        # Data in caches can be faster than the roofline: such problems keep their measured time.
        times = (
            p.measured_ms if p.roofline_ms is None else min(p.measured_ms, p.roofline_ms * p.calls)
            for p in problems
        )
        add_speed("at the roofline", sum(times) + efficiency.not_replayed_ms)
    bounded_ms = sum(problem.measured_ms for problem in bounded)
    return Projection(
        speeds=tuple(speeds),
        elsewhere_s=elsewhere,
        images=images,
        roofline_share=bounded_ms / efficiency.measured_ms if efficiency.measured_ms else 0.0,
    )
