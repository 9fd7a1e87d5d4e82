"""Replayed time against measured time, weighted by calls. Loads no torch.

"benchDNN.sh runs each primitive operation multiple times and takes the average; efficiency.py takes
a weighted sum of all operations' time by the number of calls and produces an efficiency ratio"
(Fu et al. 2023, section 2.3).

TODO-DOC Which of a log counts: whole steps where it marks them, else all of it.

TODO-DOC What a step would take if oneDNN's primitives ran at another speed.

TODO-DOC The replay that a log is compared with: from a file, or made now.

TODO-DOC Problems as people name them: `convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from common.console import progress
from common.errors import InputError
from profiling.bench.results import background_load
from profiling.onednn_log.log import OneDnnLog, Where
from profiling.onednn_log.work import Problem, named_sizes
from profiling.peaks.peaks import Peaks, cautions_of_peaks, roofline_ms
from profiling.replay.benchdnn import find_benchdnn
from profiling.replay.replay import Replay, ReplayTime, conditions_of
from profiling.replay.runners import mismatches, replay_with_benchdnn
from profiling.replay.torch_replay import replay_with_torch


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
        """Whether what ran there counts."""
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


def steps_of(log: OneDnnLog) -> Steps:
    """Read off the marks and facts of a log."""
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


def require_fitting(steps: Steps, asked: int | None) -> None:
    """Refuse `--steps` beside a log that marks its steps.

    Raises:
        InputError: It does.
    """
    if asked is not None and steps.whole:
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
    """Of the whole step; None where the log does not tell what else is in it."""
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
    """Seconds and images a second of a step, at each speed.

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

    found = [speed("as measured", efficiency.measured_ms)]
    if efficiency.problems:
        found.append(speed("at the hot replay's speed", total_ms(efficiency, hot)))
    if efficiency.total.cold_ms is not None:
        found.append(speed("at the cold replay's speed", total_ms(efficiency, cold_or_hot)))
    bounded = [one for one in efficiency.problems if one.roofline_ms is not None]
    if bounded:
        found.append(speed("at the roofline", total_ms(efficiency, roofline_or_measured)))
    bounded_ms = sum(one.measured_ms for one in bounded)
    return Projection(
        speeds=tuple(found),
        elsewhere_s=elsewhere,
        images=images,
        roofline_share=bounded_ms / efficiency.measured_ms if efficiency.measured_ms else 0.0,
    )


def total_ms(efficiency: Efficiency, milliseconds: Callable[[ProblemEfficiency], float]) -> float:
    """All replayed problems by some measure, and the measured time of the others."""
    return sum(map(milliseconds, efficiency.problems)) + efficiency.not_replayed_ms


def hot(one: ProblemEfficiency) -> float:
    """All calls at the hot replay's speed."""
    return one.hot_ms


def cold_or_hot(one: ProblemEfficiency) -> float:
    """All calls at the cold replay's speed; what is too small to be run cold, at the hot one's."""
    return one.hot_ms if one.cold_ms is None else one.cold_ms


def roofline_or_measured(one: ProblemEfficiency) -> float:
    """All calls at the roofline; as measured where there is none, or where caches beat it."""
    if one.roofline_ms is None:
        return one.measured_ms
    return min(one.measured_ms, one.roofline_ms * one.calls)


RUNNERS = ("auto", "benchdnn", "torch")


def chosen_benchdnn(runner: str, benchdnn: Path | None) -> Path | None:
    """The benchdnn to replay with; None: torch does it.

    Raises:
        InputError: It is asked for and not there, or torch is asked for beside it.
    """
    if runner == "torch":
        if benchdnn is not None:
            raise InputError("--benchdnn: --runner torch runs none; leave one of them out")
        return None
    found = find_benchdnn(benchdnn)
    if found is None and runner == "benchdnn":
        raise InputError(
            "--runner benchdnn: there is none on PATH; name it with --benchdnn, or use torch"
        )
    return found


def replay_now(
    log: OneDnnLog,
    *,
    benchdnn: Path | None,
    threads: int | None,
    repeats: int,
    cold: bool,
    console: Console,
) -> Replay:
    """Run the log's problems again.

    Raises:
        InputError: They cannot be run under such conditions.
    """

    def say(text: str) -> None:
        console.print(f"note: {text}", markup=False, soft_wrap=True)

    conditions = conditions_of(log, threads=threads, cpus=None, say=say)
    calls = log.calls(steps_of(log).holds)
    name = f"benchdnn ({benchdnn})" if benchdnn else "torch's oneDNN"
    with (
        background_load() as others,
        progress(console, f"replaying through {name}, problems", total=len(calls)) as advance,
    ):

        def show(done: int, _of: int) -> None:
            advance(done, "")

        if benchdnn is not None:
            replay = replay_with_benchdnn(
                calls,
                benchdnn=benchdnn,
                conditions=conditions,
                repeats=repeats,
                cold=cold,
                progress=show,
            )
        else:
            replay = replay_with_torch(
                calls,
                conditions=conditions,
                repeats=repeats,
                cold=cold,
                progress=show,
                say=say,
            )
    return replace(replay, other_cores=others.cores)


AXES = "dhw"


def readable(problem: Problem) -> str:
    """Kind, direction, sizes, type; oneDNN's own shape where it is of no known form."""
    return ", ".join([kind_and_direction(problem.kind, problem.direction), *sizes_of(problem)])


def kind_and_direction(kind: str, direction: str) -> str:
    """Such as `convolution backward data`; training and inference are kept apart."""
    words = "" if direction == "undef" else f" {direction}"
    return f"{kind}{words}".replace("_", " ")


def sizes_of(problem: Problem) -> list[str]:
    """What there is to say of sizes and types."""
    return [
        *(window_words(problem) or [problem.shape.replace("x", "×").replace(":", " by ")]),
        *type_words(problem),
    ]


def window_words(problem: Problem) -> list[str]:
    """Of what slides a window over pictures; nothing for other kinds."""
    if problem.shape[:1].isdigit():
        return []
    sizes = named_sizes(problem.shape)
    if not {"mb", "ic"} <= sizes.keys() or not any(f"k{axis}" in sizes for axis in AXES):
        return []
    kernel, stride, dilation = (product(sizes, letter) for letter in ("k", "s", "d"))
    words = [kernel]
    if set(stride.split("×")) != {"1"}:
        words[0] += f" stride {stride}"
    if set(dilation.split("×")) - {"0", ""}:
        words[0] += f" dilation {dilation}"
    channels = f"{sizes['ic']} → {sizes['oc']}" if "oc" in sizes else str(sizes["ic"])
    words.append(f"{channels} in {sizes['g']} groups" if sizes.get("g", 1) > 1 else channels)
    words.append(f"{sizes['mb']} × {product(sizes, 'i')}")
    return words


def product(sizes: dict[str, int], letter: str) -> str:
    """One size for each axis that is there: `3×3`."""
    return "×".join(str(sizes[letter + axis]) for axis in AXES if letter + axis in sizes)


def type_words(problem: Problem) -> list[str]:
    """The types, once each; for a reorder the way between layouts."""
    there = [memory for memory in problem.memories if memory.is_there]
    if problem.kind == "reorder" and len(there) == 2:
        source, target = there
        return [f"{source.type} {source.layout} to {target.type} {target.layout}"]
    return ["/".join(dict.fromkeys(memory.type for memory in there))]
