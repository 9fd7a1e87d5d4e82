"""`python -m profiling efficiency`: its command line, and from logs to files."""

import argparse
import json
from dataclasses import astuple
from pathlib import Path

from common.cli import add_json_option, positive
from common.console import make_console, print_cautions, say
from common.errors import FINISHED, InputError
from common.files import as_csv, require_free_json, require_free_outputs, write_whole
from profiling.efficiency.analysis import (
    RUNNERS,
    Efficiency,
    Projection,
    chosen_benchdnn,
    efficiency_of,
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
    from common.charts import write_picture  # noqa: PLC0415
    from profiling.efficiency.charts import draw_efficiency  # noqa: PLC0415

    write_whole(folder / "efficiency.csv", as_csv(COLUMNS, map(astuple, rows_of(found))))
    name = ", ".join(Path(file).name for file in files[:3])
    name += f" and {len(files) - 3} more" if len(files) > 3 else ""
    title = f"efficiency of {name}, replayed through {found.replay.runner}"
    write_picture(draw_efficiency(found, projection, title=title), folder / "efficiency")
