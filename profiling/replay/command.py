"""`python -m profiling benchdnn`: a log's problems as problem files, and run again alone.

TODO-DOC Options of `python -m profiling benchdnn`.

TODO-DOC A replay beside its log: rows, a table, JSON.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.cli import add_json_option, positive
from common.console import make_console, print_cautions, say
from common.errors import FINISHED, InputError, printable
from common.files import require_free_json, require_free_outputs, write_whole
from profiling.bench.results import background_load
from profiling.onednn_log.log import Calls, OneDnnLog, add_logs, read_with_progress
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn import Benchdnn, ask_benchdnn, find_benchdnn
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import ProblemFiles, write_problem_files
from profiling.replay.replay import Replay, ReplayTime, conditions_of, save_replay
from profiling.replay.runners import Work, mismatches, run_with_benchdnn, run_with_torch

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
    with background_load() as others:
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


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """What is written, for which benchdnn, and of which problems."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write files here")
    parser.add_argument(
        "--benchdnn", type=Path, metavar="PATH", help="the program (default: the one on PATH)"
    )
    parser.add_argument(
        "--write-only", action="store_true", help="write problem files and run nothing"
    )
    parser.add_argument(
        "--dialect",
        type=int,
        choices=(2, 3),
        help="benchdnn's major version (default: that of the one that runs, else 3)",
    )
    parser.add_argument(
        "--layout",
        choices=("log", "any"),
        default="log",
        help="log: as in the log, and the library's choice where it was so there; any: the "
        "library's choice wherever benchdnn lets it choose (default: log)",
    )
    parser.add_argument(
        "--top", type=positive, metavar="N", help="only the N costliest problems (default: all)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """How problems are run."""
    parser.add_argument(
        "--repeats",
        type=positive,
        default=20,
        metavar="N",
        help="runs of each problem that count, fewer where they take seconds (default: 20)",
    )
    parser.add_argument(
        "--cold",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also run with data driven out of the caches",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads (default: as in the log)"
    )
    parser.add_argument(
        "--cpus", metavar="LIST", help="CPUs such as 0-3 (default: those of the log, if it says)"
    )


SHOWN = 20
"""Rows that are printed; the files have all."""


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One problem in the log and alone. Times are those of one call."""

    problem: Problem
    calls: int
    log_ms: float
    hot_ms: float | None
    cold_ms: float | None
    implementation: str
    """Of the replay."""
    why_not: str
    """Why it has no time; empty where it has."""

    @property
    def total_ms(self) -> float:
        """Of all its calls in the log."""
        return self.calls * self.log_ms

    @property
    def ratio(self) -> float | None:
        """How many times longer it took in the log than alone with its data in the caches."""
        return self.log_ms / self.hot_ms if self.hot_ms else None


def rows_of(calls: Mapping[Problem, Calls], replay: Replay) -> list[ReplayedRow]:
    """Costliest first."""
    rows = [row_of(problem, one, replay) for problem, one in calls.items()]
    return sorted(rows, key=lambda row: -row.total_ms)


def row_of(problem: Problem, calls: Calls, replay: Replay) -> ReplayedRow:
    """One of them."""
    time: ReplayTime | None = replay.times.get(problem)
    return ReplayedRow(
        problem=problem,
        calls=calls.count,
        log_ms=calls.mean_ms,
        hot_ms=time.hot_ms if time else None,
        cold_ms=time.cold_ms if time else None,
        implementation=time.implementation if time else "",
        why_not="" if time else replay.not_replayed.get(problem, "was not reached"),
    )


def print_replay(console: Console, rows: Sequence[ReplayedRow]) -> None:
    """The table, its sum, and what was not replayed with the reasons."""
    replayed = [row for row in rows if row.hot_ms is not None]
    if replayed:
        console.print(replay_table(replayed))
        say(console, MEANING)
    total = sum(row.total_ms for row in rows)
    covered = sum(row.total_ms for row in replayed)
    share = f", {covered / total:.1%} of their time" if total else ""
    say(console, f"replayed: {len(replayed):,} of {len(rows):,} problems{share}")
    for reason, same in reasons(rows).items():
        lost = sum(row.total_ms for row in same)
        kinds = ", ".join(dict.fromkeys(row.problem.kind for row in same))
        part = f"{lost / total:.2%} of the time" if total else "no time"
        say(console, printable(f"not replayed: {len(same):,} ({kinds}), {part}: {reason}"))


MEANING = """\
each: of a call in the log, mean; hot: of a run alone, one right after the other, median; cold: the
same with its data driven out of the caches, where it is large enough to matter; log / hot: how
many times longer it took in the log than alone"""


def replay_table(rows: Sequence[ReplayedRow]) -> Table:
    """A row for each of the costliest problems, and the sum of all."""
    count = f"the {SHOWN} costliest of {len(rows):,}" if len(rows) > SHOWN else f"{len(rows)}"
    table = Table("problem", title=f"problems run again, {count}", title_justify="left",
                  show_lines=True)  # fmt: skip
    for heading in ("calls", "log ms\nall", "\neach", "alone ms\nhot", "\ncold", "log /\nhot"):
        table.add_column(heading, justify="right", vertical="bottom")
    for row in rows[:SHOWN]:
        table.add_row(
            Text(described(row), overflow="fold"),
            f"{row.calls:,}",
            f"{row.total_ms:,.1f}",
            milliseconds(row.log_ms),
            milliseconds(row.hot_ms),
            milliseconds(row.cold_ms),
            "" if row.ratio is None else f"{row.ratio:,.2f}",
        )
    hot = sum(row.calls * row.hot_ms for row in rows if row.hot_ms is not None)
    log = sum(row.total_ms for row in rows)
    table.add_row("all, times calls", f"{sum(row.calls for row in rows):,}", f"{log:,.1f}", "",
                  f"{hot:,.1f}", "",
                  f"{log / hot:,.2f}" if hot else "")  # fmt: skip
    return table


def described(row: ReplayedRow) -> str:
    """What it is, and how it was done: once where log and replay do it alike."""
    problem = row.problem
    direction = "" if problem.direction == "undef" else f" {problem.direction}"
    ways = dict.fromkeys((problem.implementation, row.implementation))
    ran = " → ".join(ways)
    lines = (f"{problem.kind}{direction}", problem.shape, problem.types, ran)
    return "\n".join(printable(line) for line in lines if line)


def milliseconds(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def reasons(rows: Sequence[ReplayedRow]) -> dict[str, list[ReplayedRow]]:
    """Problems without a time, by reason."""
    found: dict[str, list[ReplayedRow]] = defaultdict(list)
    for row in rows:
        if row.why_not:
            found[row.why_not].append(row)
    return found


def as_json(rows: Sequence[ReplayedRow], replay: Replay, notes: Sequence[str]) -> dict[str, Any]:
    """All numbers."""
    return {
        "runner": replay.runner,
        "version": replay.version,
        "instruction_set": replay.instruction_set,
        "conditions": asdict(replay.conditions),
        "other_cores": replay.other_cores,
        "notes": list(notes),
        "problems": [
            {**asdict(row), "total_ms": row.total_ms, "log_over_hot": row.ratio} for row in rows
        ],
    }
