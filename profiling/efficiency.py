"""`python -m profiling efficiency`: from logs to tables, `efficiency.csv`, JSON and a chart."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    BLUE,
    PALE,
    RED,
    Bar,
    Column,
    Piece,
    Table,
    chart_files,
    colour_legend,
    horizontal_bars,
    new_figure,
    save_chart,
    text_column,
    write_in_place_of_chart,
)
from common.cli import add_command, add_output_options, positive
from common.console import make_console, print_cautions, progress, say, significant
from common.errors import FINISHED, InputError, printable
from common.files import require_free_json, require_free_outputs, write_whole
from profiling.bench.results import background_load
from profiling.efficiency_analysis import (
    Efficiency,
    NotReplayed,
    Part,
    ProblemEfficiency,
    Projection,
    cold_ratio,
    efficiency_of,
    hot_ratio,
    project,
    require_fitting,
    steps_of,
)
from profiling.onednn_log.log import (
    OneDnnLog,
    add_logs,
    describe_log,
    name_files,
    read_with_progress,
)
from profiling.onednn_log.work import (
    DIRECTION_COLOURS,
    direction_name,
    kind_and_direction,
    readable,
)
from profiling.peaks import add_peaks_option, choose_peaks
from profiling.replay.benchdnn import find_benchdnn, replay_with_benchdnn
from profiling.replay.replay import Replay, conditions_of, load_replay, save_replay
from profiling.replay.torch_replay import replay_with_torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = """\
Were a run's oneDNN primitives as fast as they are alone?

Each problem of the log is run again by itself, on the same number of threads, and its time is
multiplied by its calls. The sum over the run's own time is the efficiency: near 1, primitives ran
in training as fast as alone; below 1, training lost time to cold caches, to neighbours on the
memory bus, or to cores that were not its own. Then a step is projected: as measured, at the
replay's speed, and at the machine's peaks."""

FILES = """\
--out DIR gets:
  efficiency.csv      a row for each problem; those that lose most first, not replayed ones last
  efficiency.png      ratios by kind and direction, and a step at each speed; also as .svg
  replay.json         the replay, if it was made now: --replay takes it the next time
  peaks.json          the peaks, if they were measured now"""

EXAMPLES = """\
examples:
  python train.py profile.onednn.steps=20-22               # writes runs/demo/onednn/rank0.log
  python -m profiling efficiency runs/demo/onednn/rank0.log --out efficiency
  python -m profiling efficiency onednn.log --steps 100 --images-a-step 32
  python -m profiling efficiency onednn.log --benchdnn ~/oneDNN/build/tests/benchdnn/benchdnn
  python -m profiling efficiency onednn.log --replay replay.json --peaks peaks.json"""

RUNNERS = ("auto", "benchdnn", "torch")
REPEATS = 20


def add_efficiency(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `efficiency` to the commands of a command line."""
    parser = add_command(commands, "efficiency", about=ABOUT, examples=f"{FILES}\n\n{EXAMPLES}")
    add_logs(parser)
    add_replay_options(parser)
    add_peaks_option(parser)
    for name, what in (
        ("--steps", "training steps that the log is of, where it marks none"),
        ("--images-a-step", "images of all its ranks in a step, where it does not say"),
    ):
        parser.add_argument(name, type=positive, metavar="N", help=what)
    add_output_options(parser, "write table and chart here")
    parser.set_defaults(run=efficiency_command)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add options for where the replay comes from, and how it is made."""
    group = parser.add_argument_group("replay")
    group.add_argument("--replay", type=Path, metavar="FILE", help="a replay.json made before")
    group.add_argument(
        "--runner",
        choices=RUNNERS,
        default="auto",
        help="who runs problems now (default: benchdnn where there is one, else torch)",
    )
    group.add_argument(
        "--benchdnn", type=Path, metavar="FILE", help="oneDNN's own benchmark (default: on PATH)"
    )
    group.add_argument(
        "--repeats",
        type=positive,
        default=REPEATS,
        metavar="N",
        help=f"runs of each problem, fewer of slow ones (default: {REPEATS})",
    )
    group.add_argument(
        "--no-cold", dest="cold", action="store_false", help="leave out runs with empty caches"
    )
    group.add_argument(
        "--threads", type=positive, metavar="N", help="compute threads (default: as in the log)"
    )


def efficiency_command(
    logs: list[Path],
    *,
    replay: Path | None,
    runner: str,
    benchdnn: Path | None,
    repeats: int,
    cold: bool,
    threads: int | None,
    peaks: str,
    steps: int | None,
    images_a_step: int | None,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Read, replay, compare, print and write; return the exit code.

    Raises:
        InputError: A file cannot be read or written, or problems cannot be run again here.
    """
    console = make_console()
    require_free_json(json_file)
    if out is not None:
        if out.exists() and not out.is_dir():
            raise InputError(f"--out: {out} is a file; name a folder")
        require_free_outputs(outputs(out), overwrite=overwrite)
    made = None if replay is None else load_replay(replay)
    if made is not None and (runner != "auto" or benchdnn or threads):
        raise InputError("--replay: is made already; leave --runner, --benchdnn, --threads out")
    program = None if made else chosen_benchdnn(runner, benchdnn)
    log = read_with_progress(logs, console)
    require_fitting(steps_of(log), steps)
    describe_log(console, log)
    machine = choose_peaks(peaks, log, console=console, folder=out)
    if made is None:
        made = replay_now(
            log, benchdnn=program, threads=threads, repeats=repeats, cold=cold, console=console
        )
        if out is not None:
            save_replay(made, out / "replay.json")
    efficiency = efficiency_of(log, made, peaks=machine)
    projection = project(efficiency, steps=steps, images_a_step=images_a_step)
    print_cautions(console, efficiency.cautions)
    print_efficiency(console, efficiency)
    print_projection(console, efficiency, projection)
    if json_file is not None:
        content = as_json(efficiency, projection, files=log.files)
        write_whole(json_file, json.dumps(content, indent=1))
    if out is not None:
        write_whole(out / "efficiency.csv", problem_table(efficiency).csv())
        title = f"efficiency of {name_files(log.files)}, replayed through {made.runner}"
        figure = draw_efficiency(efficiency, projection, title=title)
        save_chart(figure, *chart_files(out, "efficiency"))
        say(console, f"table and chart: {out}")
    return FINISHED


def outputs(folder: Path) -> list[Path]:
    """Return all files that are written to `--out`."""
    made = [folder / "replay.json", folder / "peaks.json"]
    return [folder / "efficiency.csv", *chart_files(folder, "efficiency"), *made]


def chosen_benchdnn(runner: str, benchdnn: Path | None) -> Path | None:
    """Return the benchdnn to replay with; None: torch does it.

    Raises:
        InputError: It is asked for and not there, or torch is asked for beside it.
    """
    if runner == "torch":
        if benchdnn is not None:
            raise InputError("--benchdnn: --runner torch runs none; leave one of them out")
        return None
    program = find_benchdnn(benchdnn)
    if program is None and runner == "benchdnn":
        raise InputError(
            "--runner benchdnn: there is none on PATH; name it with --benchdnn, or use torch"
        )
    return program


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

    def note(text: str) -> None:
        say(console, f"note: {text}")

    conditions = conditions_of(log, threads=threads, cpus=None, say=note)
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
                say=note,
            )
    return replace(replay, other_cores=others.cores)


WORST = 3
REASONS = 5
ALMOST_ALL = 0.9995
"""More is shown as 100.0%."""
FASTER_THAN_ALONE = 1.1
ABOVE_1 = (
    "well above 1: the replay ran under worse conditions than the run: other work beside it, other "
    "threads or cores, another oneDNN, or memory from elsewhere"
)

MEANING = """\
ratio: the replay's time over the measured, 1.00 where primitives ran in training as fast as alone
  hot: run again and again, with data in the caches; cold: with caches emptied before each run
lost: measured time beyond the hot replay's; only what was replayed is in ratios and lost times"""


def print_efficiency(console: Console, efficiency: Efficiency) -> None:
    """Print the replay, the ratio, its parts, what was not replayed, what loses most."""
    describe_replay(console, efficiency)
    if not efficiency.total.measured_ms:
        say(console, "nothing could be replayed: there is no ratio")
    else:
        say(console, headline(efficiency))
        console.print(parts_table(efficiency).for_console())
        say(console, MEANING)
        share = efficiency.total.cold_measured_ms / efficiency.total.measured_ms
        if (hot_ratio(efficiency.total) or 0) > FASTER_THAN_ALONE:
            say(console, ABOVE_1)
        if 0 < share < ALMOST_ALL:
            say(console, f"cold ratios are of the {share:.1%} of the time that were run cold")
    print_not_replayed(console, efficiency)
    worst = [problem for problem in efficiency.problems if problem.lost_ms > 0][:WORST]
    if worst:
        several = f"the {len(worst)} problems that lose most"
        rows = [row_of(readable(problem.problem), problem) for problem in worst]
        title = several if len(worst) > 1 else "what loses most"
        table = Table(title, (text_column("problem"), *MEASURES), rows)
        console.print(table.for_console(show_lines=True))


def describe_replay(console: Console, efficiency: Efficiency) -> None:
    """Print who replayed what, and what was otherwise than in the run."""
    replay = efficiency.replay
    threads, done = replay.conditions.threads, len(efficiency.problems)
    say(
        console,
        f"replayed {done} of {done + len(efficiency.not_replayed)} problems through "
        f"{replay.runner}, oneDNN {replay.version or 'of unknown version'}, "
        f"{threads} thread{'s' if threads > 1 else ''}",
    )
    if efficiency.outside_ms > 0:
        say(console, f"left out: {efficiency.outside_ms:,.1f} ms that ran outside of whole steps")


def headline(efficiency: Efficiency) -> str:
    """Return the ratio of the run, and of how much of it."""
    cold = cold_ratio(efficiency.total)
    also = "" if cold is None else f", {cold:.2f} cold"
    share = 1 - efficiency.not_replayed_share
    return (
        f"efficiency: {hot_ratio(efficiency.total):.2f} hot{also}; "
        f"{share:.1%} of oneDNN's time was replayed"
    )


MEASURES = (
    *(Column("calls", ","), Column("measured ms", ",.1f"), Column("hot ms", ",.1f")),
    *(Column("cold ms", ",.1f"), Column("hot", ".2f"), Column("cold", ".2f")),
    Column("lost ms", ",.1f"),
)


def row_of(name: str, timed: Part | ProblemEfficiency, *, divisor: float = 1) -> list[object]:
    """Return name, calls, times, ratios and the loss; calls and times over `divisor`."""
    cold_ms = None if timed.cold_ms is None else timed.cold_ms / divisor
    calls = timed.calls if divisor == 1 else timed.calls / divisor
    return [name, calls, timed.measured_ms / divisor, timed.hot_ms / divisor, cold_ms,
            hot_ratio(timed), cold_ratio(timed), timed.lost_ms / divisor]  # fmt: skip


def part_rows(efficiency: Efficiency, *, divisor: float = 1) -> list[list[object]]:
    """Return such a row for each kind and direction, and last one for all."""
    rows = [
        row_of(kind_and_direction(part.kind, part.direction), part, divisor=divisor)
        for part in efficiency.parts
    ]
    return [*rows, row_of("all", efficiency.total, divisor=divisor)]


def parts_table(efficiency: Efficiency) -> Table:
    """Return the table of kinds and directions for the console."""
    *rows, total = part_rows(efficiency)
    columns = (text_column("kind and direction"), *MEASURES)
    return Table("efficiency by kind", columns, rows, totals=[total])


def print_not_replayed(console: Console, efficiency: Efficiency) -> None:
    """Print how much has no replay, and why."""
    count = len(efficiency.not_replayed)
    if not count:
        return
    say(
        console,
        f"not replayed: {count} problem{'s' if count > 1 else ''}, "
        f"{efficiency.not_replayed_ms:,.1f} ms, "
        f"{efficiency.not_replayed_share:.1%} of the time; left out of both sides of every ratio",
    )
    for why, some in by_reason(efficiency.not_replayed)[:REASONS]:
        milliseconds = sum(one.measured_ms for one in some)
        example = printable(readable(some[0].problem))
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        say(console, f"  {milliseconds:,.1f} ms: {example}{more}: {printable(why)}")
    rest = len(by_reason(efficiency.not_replayed)) - REASONS
    if rest > 0:
        say(console, f"  and for {rest} other reasons; --out and --json have them all")


def by_reason(not_replayed: Sequence[NotReplayed]) -> list[tuple[str, list[NotReplayed]]]:
    """Return problems of the same kind and reason together, the costliest first."""
    reasons: dict[tuple[str, str], list[NotReplayed]] = {}
    for one in not_replayed:
        reasons.setdefault((one.problem.kind, one.why), []).append(one)
    groups = [(why, some) for (_, why), some in reasons.items()]
    return sorted(groups, key=lambda group: -sum(one.measured_ms for one in group[1]))


def print_projection(
    console: Console, efficiency: Efficiency, projection: Projection | None
) -> None:
    """Print a step at each speed, and what the numbers leave out."""
    if projection is None:
        say(console, "no projection: the log marks no steps; --steps N says how many it is of")
        return
    console.print(projection_table(projection).for_console())
    if projection.elsewhere_s is None:
        say(console, "only oneDNN's time is projected: the log does not tell what else a step does")
    else:
        say(console, "elsewhere: all but oneDNN's primitives, our own kernels too; kept as it was")
        if projection.images is None:
            say(console, "images/s: the log does not tell; --images-a-step N says how many")
    if 0 < projection.roofline_share < ALMOST_ALL:
        say(
            console,
            f"at the roofline: {projection.roofline_share:.1%} of oneDNN's time; the rest as "
            "measured",
        )
    steps = efficiency.steps
    if steps.ranks_of_run is not None and steps.ranks_of_run > steps.ranks:
        say(console, f"images/s are of {steps.ranks} of the run's {steps.ranks_of_run} ranks")


def projection_table(projection: Projection) -> Table:
    """Return a row for each speed; columns without values are left out."""
    elsewhere = projection.elsewhere_s
    columns = (
        text_column(""),
        *(Column(name, significant, unit=" s") for name in ("in oneDNN", "elsewhere", "step")),
        Column("images/s", ".3g"),
        Column("times as fast", ".2f"),
    )
    before = projection.measured.step_s or projection.measured.onednn_s
    rows = []
    for speed in projection.speeds:
        after = speed.onednn_s if speed.step_s is None else speed.step_s
        times = (speed.onednn_s, elsewhere, speed.step_s)
        fast = before / after if after else ""
        rows.append((speed.name, *times, speed.images_per_s or None, fast))
    title = "oneDNN's part of a step" if elsewhere is None else "a step"
    return Table(title, columns, rows).without_empty_columns()


COLUMNS = tuple(
    map(
        Column,
        (
            *("kind", "direction", "types", "layouts", "attributes", "auxiliary", "shape"),
            *("implementation", "replay_implementation", "calls", "measured_ms"),
            *("measured_a_call_ms", "hot_a_call_ms", "cold_a_call_ms", "roofline_a_call_ms"),
            *("hot_ratio", "cold_ratio", "lost_ms", "replays", "why_not_replayed"),
        ),
    )
)
"""Of `efficiency.csv`. `measured_ms` is of all calls; `replays` are runs of which the replay's
times are medians; what was not measured is empty."""


def problem_table(efficiency: Efficiency) -> Table:
    """Return replayed problems, those that lose most first, then the others."""
    problems: list[ProblemEfficiency | NotReplayed] = [*efficiency.problems]
    rows = [problem_row(problem) for problem in (*problems, *efficiency.not_replayed)]
    return Table("", COLUMNS, rows)


def problem_row(item: ProblemEfficiency | NotReplayed) -> tuple[object, ...]:
    """Return a problem with its times in the run, and alone where it has a replay."""
    problem = item.problem
    identity = (problem.kind, problem.direction, problem.types, problem.layouts,
                problem.attributes, problem.auxiliary, problem.shape,
                problem.implementation)  # fmt: skip
    measured = (item.calls, item.measured_ms, item.measured_ms / item.calls)
    if isinstance(item, NotReplayed):
        return (*identity, "", *measured, *[None] * 7, item.why)
    alone = item.replayed
    times = (alone.hot_ms, alone.cold_ms, item.roofline_ms)
    ratios = (hot_ratio(item), cold_ratio(item), item.lost_ms)
    return (*identity, alone.implementation, *measured, *times, *ratios, alone.runs, "")


def as_json(
    efficiency: Efficiency, projection: Projection | None, *, files: Sequence[str]
) -> dict[str, Any]:
    """Return everything; milliseconds of all calls unless a name says otherwise, shares 0 to 1."""
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


MOST = 12
"""Kinds and directions that are shown, the costliest."""
PALER = 0.45


def draw_efficiency(
    efficiency: Efficiency, projection: Projection | None, *, title: str
) -> "Figure":
    """Draw ratios by kind and direction (left), and a step as measured and as it could be."""
    parts = efficiency.parts[:MOST]
    figure = new_figure(width=13, height=2.6 + 0.42 * max(5, len(parts)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_ratios(left, parts, efficiency.total)
    draw_projection(right, projection)
    figure.suptitle(title)
    return figure


BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "fontsize": 8}


def draw_ratios(axes: "Axes", parts: Sequence[Part], total: Part) -> None:
    """Draw two bars for each part: hot above, cold below and paler."""
    axes.set_title("speed in the run, of the speed alone")
    if not parts:
        write_in_place_of_chart(axes, "nothing was replayed")
        return
    bars = []
    for part in parts:
        colour = DIRECTION_COLOURS.get(direction_name(part.direction), DIRECTION_COLOURS[""])
        share = part.measured_ms / total.measured_ms if total.measured_ms else 0
        name = f"{kind_and_direction(part.kind, part.direction)}\n{share:.1%} of the time"
        for ratio, opacity in ((hot_ratio(part), 1.0), (cold_ratio(part), PALER)):
            pieces = [] if ratio is None else [Piece(ratio, (colour, opacity))]
            bars.append(Bar(name, pieces, "" if ratio is None else f"{ratio:.2f}"))
    horizontal_bars(axes, bars, bars_a_row=2, thickness=0.76, fontsize=8, name_size=8, room=1.05)
    axes.set_xlim(0, 1.08 * max(1.0, axes.get_xlim()[1]))
    axes.axvline(1, color="black", linewidth=0.8)
    overall = hot_ratio(total)
    if overall is not None:
        label = f"all, hot: {overall:.2f}"
        axes.axvline(overall, color=RED, linestyle="--", linewidth=1, label=label)
    axes.set_xlabel("replayed time / measured time: 1 is as fast as alone, less is slower")
    grey = DIRECTION_COLOURS[""]
    axes.barh(0, 0, color=grey, label="hot replay")
    axes.barh(0, 0, color=(grey, PALER), label="cold replay (paler)")
    axes.legend(ncols=3, **BELOW)


def draw_projection(axes: "Axes", projection: Projection | None) -> None:
    """Draw a bar for each speed: oneDNN's primitives, and all else."""
    if projection is None:
        write_in_place_of_chart(axes, "the log marks no steps")
        return
    elsewhere = projection.elsewhere_s
    axes.set_title("oneDNN's seconds a step" if elsewhere is None else "seconds a step")
    bars = []
    for speed in projection.speeds:
        images = f", {speed.images_per_s:.3g} images/s" if speed.images_per_s else ""
        pieces = [Piece(speed.onednn_s, BLUE)]
        if elsewhere is not None:
            pieces.append(Piece(elsewhere, PALE))
        bars.append(Bar(speed.name, pieces, f"{speed.step_s or speed.onednn_s:.3g} s{images}"))
    horizontal_bars(axes, bars, thickness=0.6, fontsize=8, room=1.45)
    axes.set_xlabel("seconds")
    colours = {"oneDNN's primitives": BLUE}
    if elsewhere is not None:
        colours["everything else, as measured"] = PALE
    colour_legend(axes, colours, columns=3, **BELOW)
