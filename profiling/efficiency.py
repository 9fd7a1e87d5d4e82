"""`retinanet profile efficiency`: a run's primitives against the same primitives alone.

"benchDNN.sh runs each primitive operation multiple times and takes the average; efficiency.py takes
a weighted sum of all operations' time by the number of calls and produces an efficiency ratio"
(Fu et al. 2023, section 2.3). If a log marks its steps, only whole steps count. The ratios give
what a step would take if oneDNN's primitives ran at another speed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from common import charts
from common.charts import Bar, Column, Piece, Table, chart_files, chart_names, text_column
from common.cli import add_command, positive
from common.console import make_console, print_cautions, print_line, significant
from common.errors import FINISHED, InputError, printable
from common.files import write_atomically
from common.options import Outputs, included, option
from common.wording import counted
from profiling.onednn_log import log as onednn_logs
from profiling.onednn_log.log import LogPosition, OneDnnLog
from profiling.onednn_log.work import (
    DIRECTION_COLOURS,
    Problem,
    direction_name,
    kind_and_direction,
    readable,
)
from profiling.peaks import Peaks, cautions_of_peaks, choose_peaks, peaks_option, roofline_ms
from profiling.replay.benchdnn import find_benchdnn, probe_benchdnn
from profiling.replay.replay import (
    Replay,
    ReplayedCalls,
    ReplayOptions,
    Work,
    beside_replay,
    load_replay,
    mismatches,
    replay_conditions,
)
from profiling.replay.run import run_again
from profiling.sums import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = """\
Compare the oneDNN primitives of a run with the same primitives in isolation.

Each problem of the log is run again by itself, on the same number of threads, and its time is
multiplied by its calls. This sum divided by the time in the run is the efficiency: near 1,
primitives ran in training as fast as in isolation; below 1, training lost time to cold caches, to
memory bandwidth used by other cores, or to shared cores. Then the time of a step is projected: as
measured, at the replay's speed, and at the machine's peaks."""

FILES = """\
files in --out DIR:
  efficiency.csv      a row for each problem, the largest loss first, not replayed ones last
  efficiency.png      ratios by kind and direction, and projected step times; also .svg
  replay.json         the replay, if this command ran it; reuse it with --replay
  peaks.json          the peaks, if this command measured them"""

EXAMPLES = """\
examples:
  retinanet train profile.onednn.steps=20-22               # writes runs/demo/onednn/rank0.log
  retinanet profile efficiency runs/demo/onednn/rank0.log --out efficiency
  retinanet profile efficiency onednn.log --steps 100 --images-a-step 32
  retinanet profile efficiency onednn.log --benchdnn ~/oneDNN/build/tests/benchdnn/benchdnn
  retinanet profile efficiency onednn.log --replay replay.json --peaks peaks.json"""

OUTPUTS = ("efficiency.csv", *chart_names("efficiency"))
MEASURED = ("replay.json", "peaks.json")
"""Written to `--out`, those that are measured unless they are given."""


@dataclass(frozen=True, kw_only=True)
class EfficiencyOptions:
    """The options of `retinanet profile efficiency`."""

    logs: list[Path] = onednn_logs.logs_argument()
    replay: Path | None = option(
        "use this replay.json; run nothing", default=None, metavar="FILE", group="replay"
    )
    runner: Literal["auto", "benchdnn", "torch"] = option(
        "program that runs the problems (default: benchdnn if available, otherwise torch)",
        default="auto",
        group="replay",
    )
    benchdnn: Path | None = option(
        "oneDNN's benchmark program (default: benchdnn on PATH)",
        default=None,
        metavar="FILE",
        group="replay",
    )
    runs: ReplayOptions = included(ReplayOptions)
    peaks: str = peaks_option()
    steps: int | None = option(
        "training steps in the log, if it has no marks", default=None, parse=positive, metavar="N"
    )
    images_a_step: int | None = option(
        "images per step of all ranks in the log, if it does not record them",
        default=None,
        parse=positive,
        metavar="N",
    )
    outputs: Outputs = included(Outputs, writes=OUTPUTS, unless_given=MEASURED)


def run_efficiency(options: EfficiencyOptions) -> int:
    """Read, replay, compare, print and write; return the exit code.

    Raises:
        InputError: A file cannot be read or written, or problems cannot be run again here.
    """
    console, out, steps = make_console(), options.outputs.out, options.steps
    # All options are checked before the log is read and problems run, which takes minutes.
    replayed = None if options.replay is None else load_replay(options.replay)
    runs_nothing = options.runner == "auto" and not options.benchdnn and not options.runs.threads
    if replayed is not None and not runs_nothing:
        raise InputError("--replay: runs nothing; remove --runner, --benchdnn and --threads")
    program = None if replayed else chosen_benchdnn(options.runner, options.benchdnn)
    log = onednn_logs.read_with_progress(options.logs, console)
    if steps is not None and (marked := marked_steps(log).whole):
        raise InputError(f"--steps: the log already marks its {len(marked)} steps; remove --steps")
    onednn_logs.describe_log(console, log)
    machine = choose_peaks(options.peaks, log, console=console, folder=out)
    if replayed is None:
        replayed = replay_now(log, program, options, console)
    efficiency = analyze_efficiency(log, replayed, peaks=machine)
    projection = project(efficiency, steps=steps, images_a_step=options.images_a_step)
    print_cautions(console, efficiency.cautions)
    print_efficiency(console, efficiency)
    print_projection(console, efficiency, projection)
    if options.outputs.json is not None:
        content = as_json(efficiency, projection, files=log.files)
        write_atomically(options.outputs.json, json.dumps(content, indent=1))
    if out is not None:
        write_atomically(out / "efficiency.csv", problem_table(efficiency).csv())
        name = onednn_logs.name_files(log.files)
        title = f"efficiency of {name}, replayed through {replayed.runner}"
        figure = draw_efficiency(efficiency, projection, title=title)
        charts.save_chart(figure, *chart_files(out, "efficiency"))
        print_line(console, f"table and chart: {out}")
    return FINISHED


def chosen_benchdnn(runner: str, benchdnn: Path | None) -> Path | None:
    """Return the benchdnn to replay with; None: torch does it.

    Raises:
        InputError: benchdnn is not there, or is named beside `--runner torch`.
    """
    if runner == "torch":
        if benchdnn is not None:
            raise InputError("--benchdnn: not used by --runner torch; remove one of them")
        return None
    program = find_benchdnn(benchdnn)
    if program is None and runner == "benchdnn":
        reason = "benchdnn is not on PATH; give its path with --benchdnn, or use --runner torch"
        raise InputError(f"--runner benchdnn: {reason}")
    return program


def replay_now(
    log: OneDnnLog, benchdnn: Path | None, options: EfficiencyOptions, console: Console
) -> Replay:
    """Replay the log's problems, and save it in `--out`; `benchdnn` of None: torch does it.

    Raises:
        InputError: They cannot be run under such conditions.
    """
    conditions = replay_conditions(log, threads=options.runs.threads, cpus=None, console=console)
    program = None if benchdnn is None else probe_benchdnn(benchdnn, conditions)
    out = options.outputs.out
    work = Work(
        calls=log.calls(marked_steps(log).holds),
        conditions=conditions,
        options=options.runs,
        file=None if out is None else out / "replay.json",
    )
    return run_again(work, program, console)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The sum of replayed problems of a kind and direction, of all, or of one. [milliseconds]"""

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

    @property
    def hot_ratio(self) -> float | None:
        """Hot replay over measured time: 1 if the run was as fast; None if it took no time."""
        return self.hot_ms / self.measured_ms if self.measured_ms else None

    @property
    def cold_ratio(self) -> float | None:
        """Cold replay over the measured time of the same problems; None if there is none."""
        if self.cold_ms is None or not self.cold_measured_ms:
            return None
        return self.cold_ms / self.cold_measured_ms


@dataclass(frozen=True)
class Steps:
    """The facts that a log has on its steps."""

    whole: frozenset[LogPosition]
    """Each step whose begin and end are marked; none: the log has no marks."""
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
        return not self.whole or where.whole_step in self.whole


@dataclass(frozen=True)
class Efficiency:
    """A run against its replay."""

    replay: Replay
    steps: Steps
    problems: Sequence[ReplayedCalls]  # Those that were replayed, the largest losses first
    not_replayed: Sequence[ReplayedCalls]  # In neither side of any ratio; the costliest first
    roofline_ms: Mapping[Problem, float]
    """The time of one call at the machine's peaks, where they and the work are known."""
    parts: Sequence[Part]  # By kind and direction, the costliest first
    total: Part  # The sum of all replayed problems
    outside_ms: float  # oneDNN's time outside of whole steps, which counts nowhere
    cautions: Sequence[str]
    """Differences between replay and run, other than running alone; reasons against the peaks."""

    @property
    def not_replayed_ms(self) -> float:
        """The measured time of problems without a replay."""
        return sum(problem.total_ms for problem in self.not_replayed)

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
    rows = beside_replay(log.calls(steps.holds), replay)
    problems = [row for row in rows if row.alone]
    bounds = {row.problem: roofline_ms(row.problem, peaks) for row in problems if peaks}
    outside = log.calls(lambda where: not steps.holds(where))
    kinds = grouped(problems, lambda row: (row.problem.kind, row.problem.direction))
    parts = [sum_up(*kind, group) for kind, group in kinds.items()]
    return Efficiency(
        replay=replay,
        steps=steps,
        problems=sorted(problems, key=lambda problem: -problem.lost_ms),
        not_replayed=sorted(
            (row for row in rows if not row.alone), key=lambda problem: -problem.total_ms
        ),
        roofline_ms={problem: bound for problem, bound in bounds.items() if bound is not None},
        parts=sorted(parts, key=lambda part: -part.measured_ms),
        total=sum_up("", "", problems),
        outside_ms=sum(calls.total_ms for calls in outside.values()),
        cautions=[*mismatches(log, replay), *cautions_of_peaks(peaks, log)],
    )


def sum_up(kind: str, direction: str, problems: Sequence[ReplayedCalls]) -> Part:
    """Return the sums of some problems that were replayed."""
    cold = [row for row in problems if row.alone and row.alone.cold_ms is not None]
    return Part(
        kind=kind,
        direction=direction,
        calls=sum(row.calls for row in problems),
        measured_ms=sum(row.total_ms for row in problems),
        hot_ms=sum(map(hot_ms, problems)),
        cold_ms=sum(map(cold_or_hot_ms, cold)) if cold else None,
        cold_measured_ms=sum((row.total_ms for row in cold), 0.0),
    )


def hot_ms(row: ReplayedCalls) -> float:
    """Return the time of all calls at the hot replay's speed; as measured without a replay."""
    return row.alone.hot_ms * row.calls if row.alone else row.total_ms


def cold_or_hot_ms(row: ReplayedCalls) -> float:
    """Return the time of all calls at the cold replay's speed; at the hot one's without it."""
    cold = row.alone.cold_ms if row.alone else None
    return hot_ms(row) if cold is None else cold * row.calls


def marked_steps(log: OneDnnLog) -> Steps:
    """Return what the marks and facts of a log have on its steps."""
    walls = log.step_ms
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
    problems, bounds, speeds = efficiency.problems, efficiency.roofline_ms, []

    def add_speed(name: str, onednn_ms: float) -> None:
        onednn_s = onednn_ms / count / 1000
        step_s = None if elsewhere is None else onednn_s + elsewhere
        speeds.append(Speed(name, onednn_s, step_s, images / step_s if images and step_s else None))

    def at_roofline(row: ReplayedCalls) -> float:
        # Data in caches can be faster than the roofline: such problems keep their measured time.
        bound = bounds.get(row.problem)
        return row.total_ms if bound is None else min(row.total_ms, bound * row.calls)

    others_ms = efficiency.not_replayed_ms
    add_speed("as measured", efficiency.measured_ms)
    if problems:
        add_speed("at the hot replay's speed", sum(map(hot_ms, problems)) + others_ms)
    if efficiency.total.cold_ms is not None:
        add_speed("at the cold replay's speed", sum(map(cold_or_hot_ms, problems)) + others_ms)
    if bounds:
        add_speed("at the roofline", sum(map(at_roofline, problems)) + others_ms)
    bounded_ms = sum(row.total_ms for row in problems if row.problem in bounds)
    return Projection(
        speeds=tuple(speeds),
        elsewhere_s=elsewhere,
        images=images,
        roofline_share=bounded_ms / efficiency.measured_ms if efficiency.measured_ms else 0.0,
    )


WORST = 3
REASONS = 5
ALMOST_ALL = 0.9995  # More is shown as 100.0%
FASTER_THAN_ALONE = 1.1
ABOVE_1 = (
    "a ratio above 1 means that the replay ran under worse conditions than the run: other load, "
    "other threads or cores, another version of oneDNN, or remote memory"
)

MEANING = """\
ratio: replayed time / measured time; 1.00: primitives ran in training as fast as in isolation
  hot: run repeatedly, with data in the caches; cold: with caches emptied before each run
lost: measured time minus hot replayed time. Ratios and losses cover replayed problems only."""


def print_efficiency(console: Console, efficiency: Efficiency) -> None:
    """Print the replay, the ratio, its parts, what was not replayed, what loses most."""
    say = partial(print_line, console)
    replay, total = efficiency.replay, efficiency.total
    threads, done = replay.conditions.threads, len(efficiency.problems)
    say(
        f"replayed {done} of {done + len(efficiency.not_replayed)} problems through "
        f"{replay.runner}, oneDNN {replay.version or 'of unknown version'}, "
        f"{counted(threads, 'thread')}"
    )
    if efficiency.outside_ms > 0:
        say(f"not included: {efficiency.outside_ms:,.1f} ms outside of complete steps")
    if total.hot_ratio is None:
        say("no ratio: no problem could be replayed")
    else:
        cold = total.cold_ratio
        ratios = f"{total.hot_ratio:.2f} hot" + ("" if cold is None else f", {cold:.2f} cold")
        share = f"{1 - efficiency.not_replayed_share:.1%} of oneDNN's time was replayed"
        say(f"efficiency: {ratios}; {share}")
        *rows, last = part_rows(efficiency)
        columns = (text_column("kind and direction"), *MEASURES)
        console.print(Table("efficiency by kind", columns, rows, totals=[last]).for_console())
        say(MEANING)
        cold_share = total.cold_measured_ms / total.measured_ms
        if total.hot_ratio > FASTER_THAN_ALONE:
            say(ABOVE_1)
        if 0 < cold_share < ALMOST_ALL:
            say(f"cold ratios cover {cold_share:.1%} of the time: the problems with cold runs")
    print_not_replayed(console, efficiency)
    worst = [problem for problem in efficiency.problems if problem.lost_ms > 0][:WORST]
    if worst:
        rows = [make_row(readable(row.problem), sum_up("", "", [row])) for row in worst]
        several = f"the {len(worst)} problems that lose most time"
        title = several if len(worst) > 1 else "the problem that loses most time"
        table = Table(title, (text_column("problem"), *MEASURES), rows)
        console.print(table.for_console(show_lines=True))


TIMES = ("measured ms", "hot ms", "cold ms")
MEASURES = (
    Column("calls", ","),
    *(Column(name, ",.1f") for name in TIMES),
    *(Column(name, ".2f") for name in ("hot", "cold")),
    Column("lost ms", ",.1f"),
)


def make_row(name: str, timed: Part, *, divisor: float = 1) -> list[object]:
    """Return name, calls, times, ratios and the loss; calls and times over `divisor`."""
    calls = timed.calls if divisor == 1 else timed.calls / divisor
    times = (timed.measured_ms, timed.hot_ms, timed.cold_ms)
    times_a_step = [None if ms is None else ms / divisor for ms in times]
    ratios = (timed.hot_ratio, timed.cold_ratio)
    return [name, calls, *times_a_step, *ratios, timed.lost_ms / divisor]


def part_rows(efficiency: Efficiency, *, divisor: float = 1) -> list[list[object]]:
    """Return a row of `make_row` for each kind and direction, and a last one for all."""
    named = [(kind_and_direction(part.kind, part.direction), part) for part in efficiency.parts]
    named.append(("all", efficiency.total))
    return [make_row(name, part, divisor=divisor) for name, part in named]


def print_not_replayed(console: Console, efficiency: Efficiency) -> None:
    """Print the time without a replay, and the reasons, grouped by kind and reason."""
    say = partial(print_line, console)
    count = len(efficiency.not_replayed)
    if not count:
        return
    say(
        f"not replayed: {counted(count, 'problem')}, "
        f"{efficiency.not_replayed_ms:,.1f} ms, "
        f"{efficiency.not_replayed_share:.1%} of the time; not included in any ratio"
    )
    reasons = grouped(efficiency.not_replayed, lambda row: (row.problem.kind, row.why_not))
    groups = [(sum(row.total_ms for row in group), group) for group in reasons.values()]
    groups.sort(key=lambda group: -group[0])
    for milliseconds, group in groups[:REASONS]:
        example = printable(readable(group[0].problem))
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        say(f"  {milliseconds:,.1f} ms: {example}{others}: {printable(group[0].why_not)}")
    if len(groups) > REASONS:
        say(f"  and {len(groups) - REASONS} other reasons; --out and --json list all")


def print_projection(
    console: Console, efficiency: Efficiency, projection: Projection | None
) -> None:
    """Print the projected step times, and what they exclude."""
    say = partial(print_line, console)
    if projection is None:
        say("no projection: the log has no marks of steps; give --steps N")
        return
    elsewhere = projection.elsewhere_s
    columns = [text_column("")]
    columns += [Column(name, significant, unit=" s") for name in ("in oneDNN", "elsewhere", "step")]
    columns += [Column("images/s", ".3g"), Column("speedup", ".2f")]
    before = projection.speeds[0].step_s or projection.speeds[0].onednn_s
    rows = []
    for speed in projection.speeds:
        after = speed.onednn_s if speed.step_s is None else speed.step_s
        rates = (speed.images_per_s or None, before / after if after else "")
        rows.append((speed.name, speed.onednn_s, elsewhere, speed.step_s, *rates))
    title = "oneDNN's time per step" if elsewhere is None else "projected time of a step"
    # Columns without any value are not shown.
    console.print(Table(title, columns, rows).without_empty_columns().for_console())
    if elsewhere is None:
        say("only oneDNN's time is projected: the log does not record the rest of a step")
    else:
        say("elsewhere: time outside oneDNN's primitives, kept as measured")
        if projection.images is None:
            say("images/s: not known; give the images per step with --images-a-step N")
    if 0 < projection.roofline_share < ALMOST_ALL:
        share = f"{projection.roofline_share:.1%} of oneDNN's time"
        say(f"at the roofline: {share} has a roofline; the remaining time is as measured")
    steps = efficiency.steps
    if steps.ranks_of_run is not None and steps.ranks_of_run > steps.ranks:
        say(f"images/s: sum of {steps.ranks} of the run's {steps.ranks_of_run} ranks")


COLUMNS = (
    *("kind", "direction", "types", "layouts", "attributes", "auxiliary", "shape"),
    *("implementation", "replay_implementation", "calls", "measured_ms"),
    *("measured_a_call_ms", "hot_a_call_ms", "cold_a_call_ms", "roofline_a_call_ms"),
    *("hot_ratio", "cold_ratio", "lost_ms", "replays", "why_not_replayed"),
)
"""The columns of `efficiency.csv`. `measured_ms` is of all calls; `replays` are runs of which the
replay's times are medians; a time that was not measured is empty."""


def problem_table(efficiency: Efficiency) -> Table:
    """Return replayed problems, those that lose most first, then the others."""
    rows = []
    for row in (*efficiency.problems, *efficiency.not_replayed):
        identity = [getattr(row.problem, name) for name in COLUMNS[:8]]
        measured, alone = (row.calls, row.total_ms, row.mean_ms), row.alone
        if alone is None:
            rows.append((*identity, "", *measured, *[None] * 7, row.why_not))
        else:
            times = (alone.hot_ms, alone.cold_ms, efficiency.roofline_ms.get(row.problem))
            part = sum_up("", "", [row])
            ratios = (part.hot_ratio, part.cold_ratio, part.lost_ms)
            rows.append(
                (*identity, alone.implementation, *measured, *times, *ratios, alone.runs, "")
            )
    return Table("", [Column(name) for name in COLUMNS], rows)


def as_json(
    efficiency: Efficiency, projection: Projection | None, *, files: Sequence[str]
) -> dict[str, Any]:
    """Return the results as JSON values: times of all calls in milliseconds, shares from 0 to 1."""
    replay = efficiency.replay

    def with_ratios(part: Part) -> dict[str, Any]:
        names = ("hot_ratio", "cold_ratio", "lost_ms")
        return asdict(part) | {name: getattr(part, name) for name in names}

    return {
        "files": list(files),
        "replay": {
            "runner": replay.runner,
            "onednn": replay.version,
            "instruction_set": replay.instruction_set,
            "conditions": asdict(replay.conditions),
        },
        "not_as_in_the_run": list(efficiency.cautions),
        "efficiency": with_ratios(efficiency.total),
        "measured_ms": efficiency.measured_ms,
        "not_replayed_ms": efficiency.not_replayed_ms,
        "not_replayed_share": efficiency.not_replayed_share,
        "outside_of_steps_ms": efficiency.outside_ms,
        "parts": [with_ratios(part) for part in efficiency.parts],
        "projection": None if projection is None else asdict(projection),
        "problems": problem_table(efficiency).records(),
    }


MOST = 12  # Kinds and directions that are shown, the costliest
PALER = 0.45


BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "fontsize": 8}


def draw_efficiency(
    efficiency: Efficiency, projection: Projection | None, *, title: str
) -> "Figure":
    """Draw ratios by kind and direction (left), and the measured and projected step (right)."""
    parts = efficiency.parts[:MOST]
    figure = charts.new_figure(width=13, height=2.6 + 0.42 * max(5, len(parts)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(title)
    draw_ratios(left, parts, efficiency.total)
    if projection is None:
        charts.write_in_place_of_chart(right, "the log has no marks of steps")
        return figure
    elsewhere = projection.elsewhere_s
    right.set_title("oneDNN's time per step" if elsewhere is None else "time of a step")
    colours = {"oneDNN's primitives": charts.BLUE}
    if elsewhere is not None:
        colours["everything else, as measured"] = charts.PALE
    bars = []
    for speed in projection.speeds:
        images = f", {speed.images_per_s:.3g} images/s" if speed.images_per_s else ""
        times = (speed.onednn_s, elsewhere or 0.0)
        # Without the rest of a step there is one colour, and so one piece.
        pieces = [Piece(*piece) for piece in zip(times, colours.values(), strict=False)]
        bars.append(Bar(speed.name, pieces, f"{speed.step_s or speed.onednn_s:.3g} s{images}"))
    charts.horizontal_bars(right, bars, thickness=0.6, fontsize=8, room=1.45)
    right.set_xlabel("time [s]")
    charts.colour_legend(right, colours, columns=3, **BELOW)
    return figure


def draw_ratios(axes: "Axes", parts: Sequence[Part], total: Part) -> None:
    """Draw two bars for each part: the hot ratio, and below it the cold ratio in a paler colour."""
    axes.set_title("speed in the run, relative to isolation")
    if not parts:
        charts.write_in_place_of_chart(axes, "nothing was replayed")
        return
    grey = DIRECTION_COLOURS[""]
    bars = []
    for part in parts:
        colour = DIRECTION_COLOURS.get(direction_name(part.direction), grey)
        share = part.measured_ms / total.measured_ms if total.measured_ms else 0
        name = f"{kind_and_direction(part.kind, part.direction)}\n{share:.1%} of the time"
        for ratio, opacity in ((part.hot_ratio, 1.0), (part.cold_ratio, PALER)):
            pieces = [] if ratio is None else [Piece(ratio, (colour, opacity))]
            bars.append(Bar(name, pieces, "" if ratio is None else f"{ratio:.2f}"))
    sizes: dict[str, Any] = {"thickness": 0.76, "fontsize": 8, "name_size": 8, "room": 1.05}
    charts.horizontal_bars(axes, bars, bars_a_row=2, **sizes)
    axes.set_xlim(0, 1.08 * max(1.0, axes.get_xlim()[1]))
    axes.axvline(1, color="black", linewidth=0.8)
    overall = total.hot_ratio
    if overall is not None:
        label = f"all, hot: {overall:.2f}"
        axes.axvline(overall, color=charts.RED, linestyle="--", linewidth=1, label=label)
    axes.set_xlabel("replayed time / measured time; 1: as fast as in isolation, below 1: slower")
    # Bars without length: only entries of the legend.
    axes.barh(0, 0, color=grey, label="hot replay")
    axes.barh(0, 0, color=(grey, PALER), label="cold replay (paler)")
    axes.legend(ncols=3, **BELOW)


add_efficiency = partial(
    add_command,
    name="efficiency",
    about=ABOUT,
    examples=f"{FILES}\n\n{EXAMPLES}",
    options=EfficiencyOptions,
    run=run_efficiency,
)
