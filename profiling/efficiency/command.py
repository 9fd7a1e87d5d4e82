"""`python -m profiling efficiency`: its command line, and from logs to files.

TODO-DOC The chart of a run's efficiency.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.charts import new_figure
from common.cli import add_json_option, positive
from common.console import make_console, print_cautions, say
from common.errors import FINISHED, InputError
from common.files import as_csv, require_free_json, require_free_outputs, write_whole
from profiling.efficiency.analysis import (
    RUNNERS,
    Efficiency,
    Part,
    Projection,
    chosen_benchdnn,
    cold_ratio,
    efficiency_of,
    hot_ratio,
    kind_and_direction,
    project,
    replay_now,
    require_fitting,
    steps_of,
)
from profiling.efficiency.report import (
    COLUMNS,
    as_json,
    print_efficiency,
    print_projection,
    rows_of,
)
from profiling.onednn_log.log import add_logs, read_with_progress
from profiling.onednn_log.work import DIRECTION_COLOURS, direction_name
from profiling.peaks.command import add_peaks_option, peaks_as_asked
from profiling.replay.replay import load_replay, save_replay
from profiling.stats.command import describe_log

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

REPEATS = 20


def add_efficiency(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `efficiency` to the commands of a command line."""
    parser = commands.add_parser(
        "efficiency",
        description=ABOUT,
        epilog=f"{FILES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_logs(parser)
    add_replay_options(parser)
    add_peaks_option(parser)
    for name, what in (
        ("--steps", "training steps that the log is of, where it marks none"),
        ("--images-a-step", "images of all its ranks in a step, where it does not say"),
    ):
        parser.add_argument(name, type=positive, metavar="N", help=what)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write table and chart here")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )
    add_json_option(parser)
    parser.set_defaults(run=efficiency_command)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Where the replay comes from, and how it is made."""
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
    """Read, replay, compare, print, write; returns the exit code.

    Raises:
        InputError: A file cannot be read or written, or problems cannot be run again here.
    """
    console = make_console()
    require_writable(out, json_file, overwrite=overwrite)
    kept = None if replay is None else load_replay(replay)
    if kept is not None and (runner != "auto" or benchdnn or threads):
        raise InputError("--replay: is made already; leave --runner, --benchdnn, --threads out")
    program = None if kept else chosen_benchdnn(runner, benchdnn)
    log = read_with_progress(logs, console)
    require_fitting(steps_of(log), steps)
    describe_log(console, log)
    measured_peaks = peaks_as_asked(peaks, log, console=console, folder=out)
    if kept is None:
        kept = replay_now(
            log, benchdnn=program, threads=threads, repeats=repeats, cold=cold, console=console
        )
        if out is not None:
            save_replay(kept, out / "replay.json")
    found = efficiency_of(log, kept, peaks=measured_peaks)
    projection = project(found, steps=steps, images_a_step=images_a_step)
    print_cautions(console, found.cautions)
    print_efficiency(console, found)
    print_projection(console, found, projection)
    if json_file is not None:
        write_whole(json_file, json.dumps(as_json(found, projection, files=log.files), indent=1))
    if out is not None:
        write_out(found, projection, files=log.files, folder=out)
        say(console, f"table and chart: {out}")
    return FINISHED


def require_writable(out: Path | None, json_file: Path | None, *, overwrite: bool) -> None:
    """Refuse what cannot be written, before the work that fills it.

    Raises:
        InputError: A file is there already, or a folder is a file.
    """
    require_free_json(json_file)
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file; name a folder")
    require_free_outputs(outputs(out), overwrite=overwrite)


def outputs(folder: Path) -> list[Path]:
    """All that is written to `--out`."""
    names = ("efficiency.csv", "efficiency.png", "efficiency.svg", "replay.json", "peaks.json")
    return [folder / name for name in names]


def write_out(
    found: Efficiency, projection: Projection | None, *, files: list[str], folder: Path
) -> None:
    """The table and the chart.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from common.charts import chart_files, save_chart  # noqa: PLC0415

    pass  # DROPPED

    write_whole(folder / "efficiency.csv", as_csv(COLUMNS, map(astuple, rows_of(found))))
    name = ", ".join(Path(file).name for file in files[:3])
    name += f" and {len(files) - 3} more" if len(files) > 3 else ""
    title = f"efficiency of {name}, replayed through {found.replay.runner}"
    figure = draw_efficiency(found, projection, title=title)
    save_chart(figure, *chart_files(folder, "efficiency"))


MOST = 12
"""Kinds and directions that are shown, the costliest."""
BAR = 0.38
ONEDNN, ELSEWHERE = "#3c8ddc", "#ced4da"
COLD_ALPHA = 0.45


def draw_efficiency(found: Efficiency, projection: Projection | None, *, title: str) -> Figure:
    """Left: ratios by kind and direction. Right: a step as measured and as it could be."""
    parts = found.parts[:MOST]
    figure = new_figure(width=13, height=2.6 + 0.42 * max(5, len(parts)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_ratios(left, parts, found.total)
    draw_projection(right, projection)
    figure.suptitle(title)
    return figure


def draw_ratios(axes: Axes, parts: Sequence[Part], total: Part) -> None:
    """Two bars for each part: hot above, cold below and paler."""
    axes.set_title("speed in the run, of the speed alone")
    if not parts:
        axes.text(0.5, 0.5, "nothing was replayed", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, part in enumerate(parts):
        colour = DIRECTION_COLOURS.get(direction_name(part.direction), DIRECTION_COLOURS[""])
        hot, cold = hot_ratio(part), cold_ratio(part)
        for ratio, shift, alpha in ((hot, -BAR / 2, 1.0), (cold, BAR / 2, COLD_ALPHA)):
            if ratio is not None:
                axes.barh(place + shift, ratio, height=BAR, color=colour, alpha=alpha)
                axes.text(ratio, place + shift, f" {ratio:.2f}", va="center", fontsize=8)
    shares = [part.measured_ms / total.measured_ms if total.measured_ms else 0 for part in parts]
    names = [
        f"{kind_and_direction(part.kind, part.direction)}\n{share:.1%} of the time"
        for part, share in zip(parts, shares, strict=True)
    ]
    axes.set_yticks(range(len(parts)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    overall = hot_ratio(total)
    if overall is not None:
        axes.axvline(
            overall, color="#e6194b", linestyle="--", linewidth=1, label=f"all, hot: {overall:.2f}"
        )
    axes.set_xlim(0, 1.08 * max(1.0, axes.get_xlim()[1]))
    axes.set_xlabel("replayed time / measured time: 1 is as fast as alone, less is slower")
    axes.barh(0, 0, color=DIRECTION_COLOURS[""], label="hot replay")
    axes.barh(0, 0, color=DIRECTION_COLOURS[""], alpha=COLD_ALPHA, label="cold replay (paler)")
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(axes)


def draw_projection(axes: Axes, projection: Projection | None) -> None:
    """A bar for each speed: oneDNN's primitives, and all else."""
    if projection is None:
        axes.text(0.5, 0.5, "the log marks no steps", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    whole = projection.elsewhere_s is not None
    axes.set_title("seconds a step" if whole else "oneDNN's seconds a step")
    longest = max(speed.step_s or speed.onednn_s for speed in projection.speeds)
    for place, speed in enumerate(projection.speeds):
        axes.barh(place, speed.onednn_s, color=ONEDNN, height=0.6)
        if projection.elsewhere_s is not None:
            axes.barh(place, projection.elsewhere_s, left=speed.onednn_s, color=ELSEWHERE,
                      height=0.6)  # fmt: skip
        end = speed.step_s or speed.onednn_s
        images = f", {speed.images_per_s:.3g} images/s" if speed.images_per_s else ""
        axes.text(end, place, f" {end:.3g} s{images}", va="center", fontsize=8)
    axes.set_yticks(range(len(projection.speeds)), [speed.name for speed in projection.speeds])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * longest)
    axes.set_xlabel("seconds")
    axes.barh(0, 0, color=ONEDNN, label="oneDNN's primitives")
    if whole:
        axes.barh(0, 0, color=ELSEWHERE, label="everything else, as measured")
    axes.spines[["top", "right"]].set_visible(False)
    legend_below(axes)


def legend_below(axes: Axes) -> None:
    """What colours mean, where no bar is."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3, fontsize=8)
