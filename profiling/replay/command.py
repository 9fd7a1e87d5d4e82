"""`retinanet profile benchdnn`: a log's problems as problem files, and run again alone.

The runner is benchdnn if it is installed, else torch's oneDNN. Results are printed beside the log,
and saved in `replay.json`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common.charts import Column, Table, table_rows, text_column
from common.cli import add_command, positive
from common.console import make_console, print_cautions, print_line, three_digits
from common.errors import FINISHED, InputError, printable
from common.files import write_json
from common.options import flag, included, json_option, option, overwrite_option
from common.wording import counted
from profiling.onednn_log.log import Calls, logs_argument, read_with_progress
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn import Benchdnn, find_benchdnn, probe_benchdnn
from profiling.replay.benchdnn_fields import Dialect, Layouts
from profiling.replay.benchdnn_problems import PROBLEM_FILES, ProblemFiles, write_problem_files
from profiling.replay.replay import (
    Replay,
    ReplayedCalls,
    ReplayOptions,
    Work,
    beside_replay,
    mismatches,
    replay_conditions,
)
from profiling.replay.run import run_again
from profiling.sums import grouped

REPLAY = "replay.json"

ABOUT = """\
Write the problems of a oneDNN log as problem files for benchdnn, oneDNN's own benchmark, and run
each problem again, alone, on the log's cores and with its number of threads. Without benchdnn,
torch's oneDNN runs them; the output shows which runner was used."""

FILES = """\
--out DIR gets:
  conv.txt matmul.txt …  a file for each driver: benchdnn --mode=P --conv --batch=conv.txt
  not-expressible.txt    problems that benchdnn cannot run, with the reasons, if there are any
  replay.json            times of all problems, for `retinanet profile efficiency --replay`"""

EXAMPLES = """\
examples:
  retinanet profile benchdnn onednn.log --out replay
  retinanet profile benchdnn runs/coco/onednn/rank0.log --out replay --top 30
  retinanet profile benchdnn onednn.log --out best --layout any   # with free layouts
  retinanet profile benchdnn onednn.log --out files --write-only  # to run elsewhere"""


@dataclass(frozen=True, kw_only=True)
class BenchdnnOptions:
    """The options of `retinanet profile benchdnn`."""

    logs: list[Path] = logs_argument()
    out: Path = option("write files here", metavar="DIR", writes=(REPLAY, *PROBLEM_FILES))
    overwrite: bool = overwrite_option("replace files of an earlier call in DIR")
    json: Path | None = json_option()
    benchdnn: Path | None = option(
        "path of benchdnn (default: the one on PATH)", default=None, metavar="PATH"
    )
    write_only: bool = flag("write problem files and run nothing")
    dialect: int | None = option(
        "benchdnn's major version (default: the version that runs, else 3)",
        default=None,
        choices=(2, 3),
    )
    layout: Layouts = option(
        "log: as in the log, with the library's choice where the log has it; any: the library's "
        "choice wherever benchdnn permits it",
        default="log",
    )
    top: int | None = option(
        "only the N costliest problems (default: all)", default=None, parse=positive, metavar="N"
    )
    cpus: str | None = option(
        "CPUs such as 0-3 (default: the log's, if it has them)", default=None, metavar="LIST"
    )
    runs: ReplayOptions = included(ReplayOptions)


def add_benchdnn(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `benchdnn` to a command line."""
    add_command(
        commands,
        "benchdnn",
        about=ABOUT,
        examples=f"{FILES}\n\n{EXAMPLES}",
        options=BenchdnnOptions,
        run=run_benchdnn,
    )


def run_benchdnn(options: BenchdnnOptions) -> int:
    """Read the log, write problem files, replay, print; return the exit code.

    Raises:
        InputError: A log, an option or a file is not as it should be.
    """
    console = make_console()
    if options.write_only and options.json is not None:
        raise InputError("--json: there are no numbers to write with --write-only; leave one out")
    replay_file = options.out / REPLAY
    path = None if options.write_only else find_benchdnn(options.benchdnn)
    log = read_with_progress(options.logs, console)
    calls = costliest(log.calls(), options.top, console)
    program = None
    if not options.write_only:
        conditions = replay_conditions(
            log, threads=options.runs.threads, cpus=options.cpus, console=console
        )
        program = probe_benchdnn(path, conditions) if path else None
    dialect = Dialect(choose_major(program, options.dialect), options.layout)
    if options.overwrite:
        # An interrupted replay must not leave the times of another log behind.
        replay_file.unlink(missing_ok=True)
    files = write_problem_files(calls, options.out, dialect=dialect, overwrite=options.overwrite)
    print_files(console, files, calls)
    if options.write_only:
        return FINISHED
    work = Work(
        calls=calls,
        conditions=conditions,
        options=options.runs,
        layouts=options.layout,
        file=replay_file,
    )
    replay = run_again(work, program, console)
    rows, notes = beside_replay(calls, replay), mismatches(log, replay)
    print_cautions(console, notes)
    print_replay(console, rows)
    if options.json is not None:
        write_numbers(options.json, rows, replay, notes)
    print_line(console, f"times of all problems: {replay_file}")
    return FINISHED


def choose_major(program: Benchdnn | None, dialect: int | None) -> int:
    """Return the major version of the options to write, which must be that of what runs."""
    if program is None:
        return dialect or 3
    if dialect not in (None, program.dialect):
        raise InputError(
            f"--dialect {dialect}: {program.path} of oneDNN {program.version} takes dialect "
            f"{program.dialect}; leave the option out, or add --write-only"
        )
    return program.dialect


def costliest(
    calls: dict[Problem, Calls], top: int | None, console: Console
) -> dict[Problem, Calls]:
    """Return the `top` costliest problems, and print their share of the log's time."""
    chosen = sorted(calls, key=lambda problem: -calls[problem].total_ms)[:top]
    total = sum(problem_calls.total_ms for problem_calls in calls.values())
    if len(chosen) < len(calls) and total:
        share = sum(calls[problem].total_ms for problem in chosen) / total
        count = f"the {len(chosen)} costliest of {len(calls):,} problems"
        print_line(console, f"{count}: {share:.1%} of the time")
    return {problem: calls[problem] for problem in chosen}


def print_files(console: Console, files: ProblemFiles, calls: Mapping[Problem, Calls]) -> None:
    """Print what was written, and what benchdnn cannot run."""
    for driver, file in files.files.items():
        count = sum(line.driver == driver for line in files.lines.values())
        print_line(console, f"{file}: {counted(count, 'problem')}")
    if refused := files.not_expressible:
        total = sum(problem_calls.total_ms for problem_calls in calls.values())
        part = format_share(sum(calls[problem].total_ms for problem in refused), total)
        print_line(console, f"{files.refused}: {len(refused):,} that benchdnn cannot run, {part}")


def format_share(part: float, total: float) -> str:
    """Return a time as a share of the log's."""
    return f"{part / total:.2%} of the time" if total else "no time"


COLUMNS = (
    text_column("problem", name="description"),
    Column("calls", ",d"),
    Column("log ms\nall", ",.1f", name="total_ms"),
    Column("\neach", three_digits, name="mean_ms"),
    Column("alone ms\nhot", three_digits, name="alone.hot_ms"),
    Column("\ncold", three_digits, name="alone.cold_ms"),
    Column("log /\nhot", ",.2f", name="log_over_hot"),
)
SHOWN = 20  # Rows that are printed; the files have all

MEANING = """\
each: mean time of a call in the log; hot: median time alone, one run right after the other; cold:
the same with the data removed from the caches before each run, for problems that are large enough;
log / hot: how many times longer a call took in the log than alone"""


def print_replay(console: Console, rows: Sequence[ReplayedCalls]) -> None:
    """Print the table, its sum, and what was not replayed with the reasons."""
    replayed = [row for row in rows if row.alone]
    if replayed:
        console.print(replay_table(replayed).for_console(show_lines=True, vertical="bottom"))
        print_line(console, MEANING)
    total = sum(row.total_ms for row in rows)
    covered = sum(row.total_ms for row in replayed)
    share = f", {covered / total:.1%} of their time" if total else ""
    print_line(console, f"replayed: {len(replayed):,} of {len(rows):,} problems{share}")
    left_out = (row for row in rows if row.why_not)
    for reason, affected in grouped(left_out, lambda row: row.why_not).items():
        part = format_share(sum(row.total_ms for row in affected), total)
        kinds = ", ".join(dict.fromkeys(row.problem.kind for row in affected))
        print_line(
            console, printable(f"not replayed: {len(affected):,} ({kinds}), {part}: {reason}")
        )


def replay_table(rows: Sequence[ReplayedCalls]) -> Table:
    """Return a row for each of the costliest problems, and the sum of all."""
    count = f"the {SHOWN} costliest of {len(rows):,}" if len(rows) > SHOWN else f"{len(rows)}"
    hot = sum(row.calls * row.alone.hot_ms for row in rows if row.alone)
    log = sum(row.total_ms for row in rows)
    calls = sum(row.calls for row in rows)
    total = ("all, times calls", calls, log, None, f"{hot:,.1f}", None, log / hot if hot else None)
    shown = table_rows(COLUMNS, rows[:SHOWN])
    return Table(f"problems run again, {count}", COLUMNS, [*shown, total])


def write_numbers(
    json_file: Path, rows: Sequence[ReplayedCalls], replay: Replay, notes: Sequence[str]
) -> None:
    """Write all numbers for programs."""
    content = {
        "runner": replay.runner,
        "version": replay.version,
        "instruction_set": replay.instruction_set,
        "conditions": asdict(replay.conditions),
        "other_cores": replay.other_cores,
        "notes": notes,
        "problems": list(map(as_record, rows)),
    }
    write_json(json_file, content)


def as_record(row: ReplayedCalls) -> dict[str, Any]:
    """Return one problem for programs. Times are of one call but for `total_ms`."""
    alone = row.alone
    return {
        "problem": asdict(row.problem),
        "calls": row.calls,
        "log_ms": row.mean_ms,
        "hot_ms": alone and alone.hot_ms,
        "cold_ms": alone and alone.cold_ms,
        "implementation": alone.implementation if alone else "",
        "why_not": row.why_not,
        "total_ms": row.total_ms,
        "log_over_hot": row.log_over_hot,
    }
