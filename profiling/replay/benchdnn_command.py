"""`python -m profiling benchdnn`: a log's problems as problem files, and run again alone."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from profiling.bench.other_load import other_load
from profiling.log_option import add_logs, read_with_progress
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.problem import Problem
from profiling.replay.benchdnn.program import Benchdnn, ask_benchdnn, find_benchdnn
from profiling.replay.benchdnn_options import add_file_options, add_run_options
from profiling.replay.benchdnn_report import as_json, print_replay, rows_of
from profiling.replay.conditions import conditions_of
from profiling.replay.mismatches import mismatches
from profiling.replay.problem_files.problem_line import Dialect
from profiling.replay.problem_files.write import ProblemFiles, write_problem_files
from profiling.replay.replay import Replay
from profiling.replay.replay_file import save_replay
from profiling.replay.runners import Work, run_with_benchdnn, run_with_torch
from profiling.terminal import print_cautions, say
from retinanet.command_line import add_json_option
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, require_free_outputs, write_whole
from retinanet.terminal import make_console

REPLAY = "replay.json"

ABOUT = """\
Writes a oneDNN log's problems in the language of benchdnn, oneDNN's own benchmark, and runs each
of them again, alone: on the log's cores, with its number of threads. Where there is no benchdnn,
the oneDNN that torch brings runs them; the output says which it was."""

FILES = """\
--out DIR gets:
  conv.txt matmul.txt …  a file for each driver: benchdnn --mode=P --conv --batch=conv.txt
  not-expressible.txt    problems that benchdnn has no words for, with the reasons, if there are any
  replay.json            times of all problems, for `python -m profiling efficiency --replay`"""

EXAMPLES = """\
examples:
  python -m profiling benchdnn onednn.log --out replay
  python -m profiling benchdnn runs/coco/onednn/rank0.log --out replay --top 30
  python -m profiling benchdnn onednn.log --out best --layout any   # if layouts were free
  python -m profiling benchdnn onednn.log --out files --write-only  # to run elsewhere"""


def add_benchdnn(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `benchdnn` to the commands of a command line."""
    parser = commands.add_parser(
        "benchdnn",
        help="run a log's problems again, each alone",
        description=ABOUT,
        epilog=f"{FILES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_logs(parser)
    add_file_options(parser)
    add_run_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=benchdnn_command)


def benchdnn_command(
    logs: list[Path],
    *,
    out: Path,
    benchdnn: Path | None,
    write_only: bool,
    dialect: int | None,
    layout: str,
    top: int | None,
    overwrite: bool,
    json_file: Path | None,
    **how: Any,
) -> int:
    """Read, write, run, print; returns the exit code.

    Raises:
        InputError: A log, an option or a file is not as it should be.
    """
    console = make_console()
    require_possible(out, json_file, write_only=write_only, overwrite=overwrite)
    path = None if write_only else find_benchdnn(benchdnn)
    log = read_with_progress(logs, console)
    calls = costliest(log.calls(), top, console)
    work = None if write_only else work_of(log, calls, out / REPLAY, console=console, **how)
    asked = ask_benchdnn(path, work.conditions) if path and work else None
    if overwrite:
        (out / REPLAY).unlink(missing_ok=True)
    language = Dialect(major_of(asked, dialect), "any" if layout == "any" else "log")
    files = write_problem_files(calls, out, dialect=language, overwrite=overwrite)
    print_files(console, files, calls)
    if work is None:
        return FINISHED
    with other_load() as others:
        if asked is not None:
            replay = run_with_benchdnn(console, asked, files, work)
        else:
            replay = run_with_torch(console, work)
    replay = replace(replay, other_cores=others.cores)
    save_replay(replay, work.file)
    finish(console, log, calls, replay, json_file=json_file)
    say(console, f"times of all problems: {work.file}")
    return FINISHED


def require_possible(
    out: Path, json_file: Path | None, *, write_only: bool, overwrite: bool
) -> None:
    """Look at where results go before the work begins.

    Raises:
        InputError: A file exists, or numbers are asked for where there will be none.
    """
    require_free_json(json_file)
    if write_only and json_file is not None:
        raise InputError("--json: there are no numbers to write with --write-only; leave one out")
    require_free_outputs([out / REPLAY], overwrite=overwrite)


def work_of(
    log: OneDnnLog,
    calls: Mapping[Problem, Calls],
    file: Path,
    *,
    console: Console,
    threads: int | None,
    cpus: str | None,
    repeats: int,
    cold: bool,
) -> Work:
    """What is to be run, under the log's conditions as far as they can be had.

    Raises:
        InputError: `cpus` cannot be used.
    """
    conditions = conditions_of(
        log, threads=threads, cpus=cpus, say=lambda line: say(console, f"note: {line}")
    )
    return Work(calls, conditions, repeats, cold, file)


def finish(
    console: Console,
    log: OneDnnLog,
    calls: Mapping[Problem, Calls],
    replay: Replay,
    *,
    json_file: Path | None,
) -> None:
    """Print a replay beside its log, and write its numbers where they are wanted."""
    rows = rows_of(calls, replay)
    notes = mismatches(log, replay)
    print_cautions(console, notes)
    print_replay(console, rows)
    if json_file is not None:
        content = as_json(rows, replay, notes)
        write_whole(json_file, json.dumps(content, indent=1, ensure_ascii=False))


def costliest(
    calls: dict[Problem, Calls], top: int | None, console: Console
) -> dict[Problem, Calls]:
    """The problems that are asked for, and how much of the log's time they are."""
    chosen = sorted(calls, key=lambda one: -calls[one].total_ms)[:top]
    total = sum(one.total_ms for one in calls.values())
    if len(chosen) < len(calls) and total:
        share = sum(calls[one].total_ms for one in chosen) / total
        say(
            console,
            f"the {len(chosen)} costliest of {len(calls):,} problems: {share:.1%} of the time",
        )
    return {problem: calls[problem] for problem in chosen}


def major_of(asked: Benchdnn | None, dialect: int | None) -> int:
    """The version of the language.

    Raises:
        InputError: Another is asked for than the benchdnn that runs speaks.
    """
    if asked is None:
        return dialect or 3
    major = 2 if asked.major < 3 else 3
    if dialect not in (None, major):
        raise InputError(
            f"--dialect {dialect}: {asked.path} is of oneDNN {asked.version} and speaks {major}; "
            "leave the option out, or add --write-only"
        )
    return major


def print_files(console: Console, files: ProblemFiles, calls: Mapping[Problem, Calls]) -> None:
    """What was written, and what has no words."""
    for driver, file in files.files.items():
        count = sum(line.driver == driver for line in files.lines.values())
        say(console, f"{file}: {count:,} {'problem' if count == 1 else 'problems'}")
    if files.not_expressible:
        total = sum(one.total_ms for one in calls.values())
        lost = sum(calls[problem].total_ms for problem in files.not_expressible)
        share = f"{lost / total:.2%} of the time" if total else "no time"
        count = len(files.not_expressible)
        say(console, f"{files.refused}: {count:,} that benchdnn has no words for, {share}")
