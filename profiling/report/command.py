"""`python -m profiling report`: its command line, and from logs to a page.

TODO-DOC Reading all that a report is made from.

TODO-DOC The files that a report is made from, found beside the logs that it is asked for.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from common.console import make_console, progress_in_bytes, say
from common.errors import FINISHED, InputError, printable
from common.files import read_json_object, require_free_outputs, write_whole
from profiling.compare.command import names_of
from profiling.compare.comparison import Comparison, compare, files_of, marked_steps, side_of
from profiling.efficiency.analysis import efficiency_of
from profiling.onednn_log.log import OneDnnLog, read_with_progress
from profiling.peaks.command import add_peaks_option, peaks_as_asked
from profiling.replay.replay import load_replay
from profiling.report.material import Material, Traced, load_counters, measured_of
from profiling.trace.analysis import BesideLog, analyze, lay_beside
from profiling.trace.trace import read_trace

ABOUT = """\
Everything that is known of a run on one page for a browser: what ran on what, where a step's time
goes, what it could be, and what to look at next. The page is one file that loads nothing from
anywhere; its tables sort and filter; it prints. LOG is a log of oneDNN, a folder of logs, or a
run's folder, of which the logs, the trace, the counters and environment.json are taken."""

EXAMPLES = """\
A section whose input is missing says which command makes it.

examples:
  python train.py profile.onednn.steps=20-22 profile.trace.steps=20-22 profile.perf=true
  python -m profiling report runs/demo
  python -m profiling report runs/demo --peaks peaks.json --replay replay/replay.json --overwrite
  python -m profiling report runs/coco --reference runs/baseline --out coco.html
  python -m profiling report onednn.log --peaks none --title 'the model of Monday'"""


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `report` to the commands of a command line."""
    parser = commands.add_parser(
        "report",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG", help="a log, a folder of logs, or runs/NAME"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    add_peaks_option(parser)
    for name, metavar, what in (
        ("--replay", "FILE", "replay.json of `python -m profiling benchdnn` or `efficiency`"),
        ("--reference", "LOG", "what to compare with: a log, a folder of logs, or runs/NAME"),
        ("--trace", "FILE", "torch.profiler's trace (default: the run's, of its first rank)"),
        ("--environment", "FILE", "environment.json of the run (default: beside the log)"),
    ):
        parser.add_argument(name, type=Path, metavar=metavar, help=what)
    parser.add_argument("--title", metavar="TEXT", help="the page's heading")
    parser.add_argument("--overwrite", action="store_true", help="replace a page of that name")
    parser.set_defaults(run=report_command)


def report_command(
    logs: list[Path],
    *,
    out: Path,
    peaks: str,
    replay: Path | None,
    reference: Path | None,
    trace: Path | None,
    environment: Path | None,
    title: str | None,
    overwrite: bool,
) -> int:
    """Read, compute, draw, write; returns the exit code.

    Raises:
        InputError: A file cannot be read or written, or holds something else.
    """
    require_free_outputs([out], overwrite=overwrite)
    # Here, because matplotlib and the trace's numpy are slow to load, and --help needs none.
    from profiling.report.sections import compose  # noqa: PLC0415

    console = make_console()
    material = gather(
        logs,
        peaks=peaks,
        replay=replay,
        reference=reference,
        trace=trace,
        environment=environment,
        console=console,
    )
    page = compose(material, title=title)
    write_whole(out, page.html)
    for sentence in page.summary:
        say(console, printable(sentence))
    say(console, f"page: {out}, {len(page.html.encode()) / 1e6:.1f} MB; open it in a browser")
    return FINISHED


def gather(
    logs: list[Path],
    *,
    peaks: str,
    replay: Path | None,
    reference: Path | None,
    trace: Path | None,
    environment: Path | None,
    console: Console,
) -> Material:
    """Read everything; what is small or may be wrong first.

    Raises:
        InputError: A file is missing, damaged, or something else.
    """
    found = find_inputs(logs, trace=trace, environment=environment)
    loaded = load_replay(replay) if replay else None
    facts = load_environment(found.environment) if found.environment else None
    counters = tuple(map(load_counters, found.counters))
    log = read_with_progress(list(found.logs), console)
    comparison = compare_with(reference, log, logs[0], console) if reference else None
    traced = read_traced(found.trace, log, console) if found.trace else None
    measured_peaks = peaks_as_asked(peaks, log, console=console, folder=None)
    return Material(
        log=log,
        measured=measured_of(log, measured_peaks),
        peaks=measured_peaks,
        environment=facts,
        counters=counters,
        efficiency=efficiency_of(log, loaded, peaks=measured_peaks) if loaded else None,
        comparison=comparison,
        traced=traced,
    )


def load_environment(file: Path) -> Mapping[str, Any]:
    """Read a run's environment.json.

    Raises:
        InputError: It cannot be read, or is no object of JSON.
    """
    return read_json_object(file, advice="expected a run's environment.json")


def compare_with(reference: Path, log: OneDnnLog, first: Path, console: Console) -> Comparison:
    """The log against another: a step against a step where both have them.

    Raises:
        InputError: The reference cannot be read.
    """
    other = read_with_progress(logs_of(reference), console)
    by_step = bool(marked_steps(log) and marked_steps(other))
    names = names_of(None, first, reference)
    sides = [
        side_of(name, one, by_step=by_step) for name, one in zip(names, (log, other), strict=True)
    ]
    return compare(*sides, with_types=True, is_by_step=by_step)


def read_traced(file: Path, log: OneDnnLog, console: Console) -> Traced:
    """A trace, with the log's part of the same steps and rank where they fit.

    Raises:
        InputError: It is no trace.
    """
    size = file.stat().st_size if file.is_file() else 0
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        trace = read_trace(file, advance)
    analysis = analyze(trace)
    rank = rank_of(file)
    of_rank = {where: one for where, one in log.executions.items() if where.rank in (rank, None)}
    beside: BesideLog | None
    try:
        beside = lay_beside(analysis, replace(log, executions=of_rank))
    except InputError:
        beside = None  # other steps, or another rank: each stands for itself then
    return Traced(trace, analysis, beside)


LOGS, TRACES, COUNTERS, ENVIRONMENT = "onednn", "trace", "perf", "environment.json"
OF_A_RUN = ("config.yaml", "metrics.jsonl", LOGS)
"""Any of these in a folder: a run of ours."""
RANK = re.compile(r"rank(\d+)\.")


@dataclass(frozen=True)
class Inputs:
    """Paths; None or empty where there is nothing."""

    logs: tuple[Path, ...]
    trace: Path | None
    environment: Path | None
    counters: tuple[Path, ...]


def find_inputs(asked: Sequence[Path], *, trace: Path | None, environment: Path | None) -> Inputs:
    """What there is for a report.

    Args:
        asked: Logs, folders of logs, and folders of runs.
        trace: As it was given; None: as it is found.
        environment: The same.

    Raises:
        InputError: A folder has no log.
    """
    environments, traces, counters = [], [], []
    for path in asked:
        if run := run_of(path):
            environments.append(run / ENVIRONMENT)
            traces += of_same_rank(path, files_by_rank(run / TRACES, (".json", ".json.gz")))
            counters += of_same_rank(path, files_by_rank(run / COUNTERS, (".json",)))
        elif not path.is_dir():
            environments.append(path.parent / ENVIRONMENT)
    found = next((file for file in environments if file.is_file()), None)
    return Inputs(
        logs=tuple(log for path in asked for log in logs_of(path)),
        trace=trace or next(iter(traces), None),
        environment=environment or found,
        counters=tuple(dict.fromkeys(counters)),
    )


def of_same_rank(path: Path, files: list[Path]) -> list[Path]:
    """All of them for a folder; for one rank's log that rank's."""
    return files if path.is_dir() else [file for file in files if rank_of(file) == rank_of(path)]


def run_of(path: Path) -> Path | None:
    """The run's folder that a path is, or is the folder of logs of."""
    if not path.is_dir():
        return (
            path.parent.parent if path.parent.name == LOGS and is_run(path.parent.parent) else None
        )
    if is_run(path):
        return path
    return path.parent if path.name == LOGS and is_run(path.parent) else None


def is_run(folder: Path) -> bool:
    """Whether a training wrote it."""
    return any((folder / name).exists() for name in OF_A_RUN)


def logs_of(path: Path) -> list[Path]:
    """A log as it is, or a folder's.

    Raises:
        InputError: There is none.
    """
    if not path.is_dir() or not is_run(path):
        return files_of(path)
    logs = files_by_rank(path / LOGS, (".log", ".log.gz"))
    if not logs:
        raise InputError(
            f"{path}: this run has written no log of oneDNN; train with profile.onednn.steps=20-22"
        )
    return logs


def files_by_rank(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """`rank<N>` files of a folder, in order of N; others after them."""
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.name.endswith(endings)]
    files = [file for file in files if not file.name.startswith(".")]
    return sorted(files, key=lambda file: (rank_of(file) is None, rank_of(file) or 0, file.name))


def rank_of(file: Path) -> int | None:
    """The rank in a file's name."""
    found = RANK.match(file.name)
    return int(found[1]) if found else None
