"""`python -m profiling efficiency`: from logs to tables, `efficiency.csv`, JSON and a chart."""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from common import charts
from common.charts import Bar, Column, Piece, Table, chart_files, chart_names, text_column
from common.cli import add_command, positive
from common.console import make_console, print_cautions, print_line, significant
from common.errors import FINISHED, InputError, printable
from common.files import write_atomically
from common.options import Outputs, argument, included, option
from profiling.efficiency_analysis import (
    Efficiency,
    NotReplayed,
    Part,
    ProblemEfficiency,
    Projection,
    analyze_efficiency,
    cold_ratio,
    hot_ratio,
    marked_steps,
    project,
)
from profiling.onednn_log import log as onednn_logs
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.work import (
    DIRECTION_COLOURS,
    direction_name,
    kind_and_direction,
    readable,
)
from profiling.peaks import choose_peaks, peaks_option
from profiling.replay.benchdnn import find_benchdnn, probe_benchdnn
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import express
from profiling.replay.replay import Replay, load_replay, replay_conditions
from profiling.replay.run import ReplayOptions, Work, run_again

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
  python train.py profile.onednn.steps=20-22               # writes runs/demo/onednn/rank0.log
  python -m profiling efficiency runs/demo/onednn/rank0.log --out efficiency
  python -m profiling efficiency onednn.log --steps 100 --images-a-step 32
  python -m profiling efficiency onednn.log --benchdnn ~/oneDNN/build/tests/benchdnn/benchdnn
  python -m profiling efficiency onednn.log --replay replay.json --peaks peaks.json"""

OUTPUTS = ("efficiency.csv", *chart_names("efficiency"), "replay.json", "peaks.json")
"""Written to `--out`."""


@dataclass(frozen=True, kw_only=True)
class EfficiencyOptions:
    """The options of `python -m profiling efficiency`."""

    logs: list[Path] = argument(onednn_logs.LOGS_HELP, nargs="+", metavar="LOG")
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
    outputs: Outputs = included(Outputs)


def add_efficiency(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `efficiency` to the commands of a command line."""
    add_command(
        commands,
        "efficiency",
        about=ABOUT,
        examples=f"{FILES}\n\n{EXAMPLES}",
        options=EfficiencyOptions,
        run=run_efficiency,
    )


def run_efficiency(options: EfficiencyOptions) -> int:
    """Read, replay, compare, print and write; return the exit code.

    Raises:
        InputError: A file cannot be read or written, or problems cannot be run again here.
    """
    console, out, steps = make_console(), options.outputs.out, options.steps
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file; give a folder")
    options.outputs.require_free(*OUTPUTS)
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

    def note(text: str) -> None:
        print_line(console, f"note: {text}")

    conditions = replay_conditions(log, threads=options.runs.threads, cpus=None, warn=note)
    calls, out = log.calls(marked_steps(log).holds), options.outputs.out
    program = None if benchdnn is None else probe_benchdnn(benchdnn, conditions)
    lines, refused = express(calls, Dialect(program.dialect)) if program else ({}, {})
    work = Work(
        calls=calls,
        conditions=conditions,
        options=options.runs,
        lines=lines,
        refused=refused,
        file=None if out is None else out / "replay.json",
    )
    return run_again(work, program, console)


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
    replay, total = efficiency.replay, efficiency.total
    threads, done = replay.conditions.threads, len(efficiency.problems)
    print_line(
        console,
        f"replayed {done} of {done + len(efficiency.not_replayed)} problems through "
        f"{replay.runner}, oneDNN {replay.version or 'of unknown version'}, "
        f"{threads} thread{'s' if threads > 1 else ''}",
    )
    if efficiency.outside_ms > 0:
        print_line(
            console, f"not included: {efficiency.outside_ms:,.1f} ms outside of complete steps"
        )
    if not total.measured_ms:
        print_line(console, "no ratio: no problem could be replayed")
    else:
        cold = cold_ratio(total)
        ratios = f"{hot_ratio(total):.2f} hot" + ("" if cold is None else f", {cold:.2f} cold")
        share = f"{1 - efficiency.not_replayed_share:.1%} of oneDNN's time was replayed"
        print_line(console, f"efficiency: {ratios}; {share}")
        *rows, last = part_rows(efficiency)
        columns = (text_column("kind and direction"), *MEASURES)
        console.print(Table("efficiency by kind", columns, rows, totals=[last]).for_console())
        print_line(console, MEANING)
        cold_share = total.cold_measured_ms / total.measured_ms
        if (hot_ratio(total) or 0) > FASTER_THAN_ALONE:
            print_line(console, ABOVE_1)
        if 0 < cold_share < ALMOST_ALL:
            print_line(
                console,
                f"cold ratios cover {cold_share:.1%} of the time: the problems with cold runs",
            )
    print_not_replayed(console, efficiency)
    worst = [problem for problem in efficiency.problems if problem.lost_ms > 0][:WORST]
    if worst:
        rows = [make_row(readable(problem.problem), problem) for problem in worst]
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
    ratios = (hot_ratio(timed), cold_ratio(timed))
    return [name, calls, *times_a_step, *ratios, timed.lost_ms / divisor]


def part_rows(efficiency: Efficiency, *, divisor: float = 1) -> list[list[object]]:
    """Return a row of `make_row` for each kind and direction, and a last one for all."""
    rows = []
    for part in efficiency.parts:
        name = kind_and_direction(part.kind, part.direction)
        rows.append(make_row(name, part, divisor=divisor))
    return [*rows, make_row("all", efficiency.total, divisor=divisor)]


def print_not_replayed(console: Console, efficiency: Efficiency) -> None:
    """Print the time without a replay, and the reasons, grouped by kind and reason."""
    count = len(efficiency.not_replayed)
    if not count:
        return
    print_line(
        console,
        f"not replayed: {count} problem{'s' if count > 1 else ''}, "
        f"{efficiency.not_replayed_ms:,.1f} ms, "
        f"{efficiency.not_replayed_share:.1%} of the time; not included in any ratio",
    )
    reasons: dict[tuple[str, str], list[NotReplayed]] = defaultdict(list)
    for problem in efficiency.not_replayed:
        reasons[problem.problem.kind, problem.why].append(problem)
    groups = [(sum(p.measured_ms for p in group), group) for group in reasons.values()]
    groups.sort(key=lambda group: -group[0])
    for milliseconds, group in groups[:REASONS]:
        example = printable(readable(group[0].problem))
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        print_line(
            console, f"  {milliseconds:,.1f} ms: {example}{others}: {printable(group[0].why)}"
        )
    remaining = len(groups) - REASONS
    if remaining > 0:
        print_line(console, f"  and {remaining} other reasons; --out and --json list all")


def print_projection(
    console: Console, efficiency: Efficiency, projection: Projection | None
) -> None:
    """Print the projected step times, and what they exclude."""
    if projection is None:
        print_line(
            console,
            "no projection: the log has no marks of steps; give --steps N",
        )
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
        print_line(
            console, "only oneDNN's time is projected: the log does not record the rest of a step"
        )
    else:
        print_line(
            console,
            "elsewhere: time outside oneDNN's primitives, kept as measured",
        )
        if projection.images is None:
            print_line(
                console, "images/s: not known; give the images per step with --images-a-step N"
            )
    if 0 < projection.roofline_share < ALMOST_ALL:
        share = f"{projection.roofline_share:.1%} of oneDNN's time"
        print_line(
            console, f"at the roofline: {share} has a roofline; the remaining time is as measured"
        )
    steps = efficiency.steps
    if steps.ranks_of_run is not None and steps.ranks_of_run > steps.ranks:
        print_line(
            console, f"images/s: sum of {steps.ranks} of the run's {steps.ranks_of_run} ranks"
        )


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
    problems: list[ProblemEfficiency | NotReplayed] = [*efficiency.problems]
    for timed in (*problems, *efficiency.not_replayed):
        problem = timed.problem
        identity = [getattr(problem, name) for name in COLUMNS[:8]]
        measured = (timed.calls, timed.measured_ms, timed.measured_ms / timed.calls)
        if isinstance(timed, NotReplayed):
            rows.append((*identity, "", *measured, *[None] * 7, timed.why))
        else:
            alone = timed.replayed
            times = (alone.hot_ms, alone.cold_ms, timed.roofline_ms)
            ratios = (hot_ratio(timed), cold_ratio(timed), timed.lost_ms)
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
        ratios = {"hot_ratio": hot_ratio(part), "cold_ratio": cold_ratio(part)}
        return {**asdict(part), **ratios, "lost_ms": part.lost_ms}

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
        for ratio, opacity in ((hot_ratio(part), 1.0), (cold_ratio(part), PALER)):
            pieces = [] if ratio is None else [Piece(ratio, (colour, opacity))]
            bars.append(Bar(name, pieces, "" if ratio is None else f"{ratio:.2f}"))
    sizes: dict[str, Any] = {"thickness": 0.76, "fontsize": 8, "name_size": 8, "room": 1.05}
    charts.horizontal_bars(axes, bars, bars_a_row=2, **sizes)
    axes.set_xlim(0, 1.08 * max(1.0, axes.get_xlim()[1]))
    axes.axvline(1, color="black", linewidth=0.8)
    overall = hot_ratio(total)
    if overall is not None:
        label = f"all, hot: {overall:.2f}"
        axes.axvline(overall, color=charts.RED, linestyle="--", linewidth=1, label=label)
    axes.set_xlabel("replayed time / measured time; 1: as fast as in isolation, below 1: slower")
    # Bars without length: only entries of the legend.
    axes.barh(0, 0, color=grey, label="hot replay")
    axes.barh(0, 0, color=(grey, PALER), label="cold replay (paler)")
    axes.legend(ncols=3, **BELOW)
