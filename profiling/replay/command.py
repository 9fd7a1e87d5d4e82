"""`python -m profiling benchdnn`: a log's problems as problem files, and run again alone.

The runner is benchdnn if it is installed, else torch's oneDNN. Results are printed beside the log,
and saved in `replay.json`; with benchdnn also every few seconds, and on Ctrl-C.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

from rich.console import Console

from common.charts import Column, Table, text_column
from common.cli import add_command, add_json_option, positive
from common.console import make_console, print_cautions, print_line, progress
from common.errors import FINISHED, InputError, printable
from common.files import require_free_json, require_free_outputs, write_atomically
from launch.topology import format_cpu_list
from profiling.bench.results import background_load
from profiling.onednn_log.log import Calls, add_logs, read_with_progress
from profiling.onednn_log.work import Problem
from profiling.replay.benchdnn import (
    Benchdnn,
    empty_replay,
    find_benchdnn,
    make_batches,
    memory_note,
    probe_benchdnn,
    run_batches,
)
from profiling.replay.benchdnn_fields import Dialect, Layouts
from profiling.replay.benchdnn_problems import ProblemFiles, write_problem_files
from profiling.replay.replay import Conditions, Replay, mismatches, replay_conditions, save_replay
from profiling.replay.torch_replay import replay_with_torch

REPLAY = "replay.json"

ABOUT = """\
Write the problems of a oneDNN log as problem files for benchdnn, oneDNN's own benchmark, and run
each problem again, alone, on the log's cores and with its number of threads. Without benchdnn,
torch's oneDNN runs them; the output shows which runner was used."""

FILES = """\
--out DIR gets:
  conv.txt matmul.txt …  a file for each driver: benchdnn --mode=P --conv --batch=conv.txt
  not-expressible.txt    problems that benchdnn cannot run, with the reasons, if there are any
  replay.json            times of all problems, for `python -m profiling efficiency --replay`"""

EXAMPLES = """\
examples:
  python -m profiling benchdnn onednn.log --out replay
  python -m profiling benchdnn runs/coco/onednn/rank0.log --out replay --top 30
  python -m profiling benchdnn onednn.log --out best --layout any   # with free layouts
  python -m profiling benchdnn onednn.log --out files --write-only  # to run elsewhere"""


def add_benchdnn(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `benchdnn` to a command line."""
    parser = add_command(commands, "benchdnn", about=ABOUT, examples=f"{FILES}\n\n{EXAMPLES}")
    add_logs(parser)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="write files here")
    add("--benchdnn", type=Path, metavar="PATH", help="path of benchdnn (default: the one on PATH)")
    add("--write-only", action="store_true", help="write problem files and run nothing")
    add(
        "--dialect",
        type=int,
        choices=(2, 3),
        help="benchdnn's major version (default: the version that runs, else 3)",
    )
    add(
        "--layout",
        choices=("log", "any"),
        default="log",
        help="log: as in the log, with the library's choice where the log has it; any: the "
        "library's choice wherever benchdnn permits it (default: log)",
    )
    add("--top", type=positive, metavar="N", help="only the N costliest problems (default: all)")
    add("--overwrite", action="store_true", help="replace files of an earlier call in DIR")
    add(
        "--repeats",
        type=positive,
        default=20,
        metavar="N",
        help="measured runs of each problem, fewer if they take seconds (default: 20)",
    )
    add(
        "--cold",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure with the data removed from the caches",
    )
    add("--threads", type=positive, metavar="N", help="threads (default: as in the log)")
    add("--cpus", metavar="LIST", help="CPUs such as 0-3 (default: the log's, if it has them)")
    add_json_option(parser)
    parser.set_defaults(run=benchdnn_command)


@dataclass(frozen=True, slots=True)
class Work:
    """The problems to run, and how."""

    calls: Mapping[Problem, Calls]
    conditions: Conditions
    repeats: int
    cold: bool
    file: Path  # The file of the replay


def benchdnn_command(
    logs: list[Path],
    *,
    out: Path,
    benchdnn: Path | None,
    write_only: bool,
    dialect: int | None,
    layout: Layouts,
    top: int | None,
    overwrite: bool,
    json_file: Path | None,
    threads: int | None,
    cpus: str | None,
    repeats: int,
    cold: bool,
) -> int:
    """Read the log, write problem files, replay, print; return the exit code.

    Raises:
        InputError: A log, an option or a file is not as it should be.
    """
    console = make_console()
    require_free_json(json_file)
    if write_only and json_file is not None:
        raise InputError("--json: there are no numbers to write with --write-only; leave one out")
    replay_file = out / REPLAY
    require_free_outputs([replay_file], overwrite=overwrite)
    path = None if write_only else find_benchdnn(benchdnn)
    log = read_with_progress(logs, console)
    calls = costliest(log.calls(), top, console)
    program = None
    if not write_only:
        conditions = replay_conditions(
            log, threads=threads, cpus=cpus, warn=lambda line: print_line(console, f"note: {line}")
        )
        program = probe_benchdnn(path, conditions) if path else None
    major = choose_major(program, dialect)
    if overwrite:
        # An interrupted replay must not leave the times of another log behind.
        replay_file.unlink(missing_ok=True)
    files = write_problem_files(calls, out, dialect=Dialect(major, layout), overwrite=overwrite)
    print_files(console, files, calls)
    if write_only:
        return FINISHED
    work = Work(calls, conditions, repeats, cold, replay_file)
    with background_load() as others:
        if program is not None:
            replay = run_with_benchdnn(console, program, files, work)
        else:
            replay = run_with_torch(console, work)
    replay = replace(replay, other_cores=others.cores)
    save_replay(replay, replay_file)
    rows, notes = make_rows(calls, replay), mismatches(log, replay)
    print_cautions(console, notes)
    print_replay(console, rows)
    if json_file is not None:
        write_numbers(json_file, rows, replay, notes)
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
        print_line(console, f"{file}: {count:,} {'problem' if count == 1 else 'problems'}")
    if refused := files.not_expressible:
        total = sum(problem_calls.total_ms for problem_calls in calls.values())
        part = format_share(sum(calls[problem].total_ms for problem in refused), total)
        print_line(console, f"{files.refused}: {len(refused):,} that benchdnn cannot run, {part}")


def format_share(part: float, total: float) -> str:
    """Return a time as a share of the log's."""
    return f"{part / total:.2%} of the time" if total else "no time"


SECONDS_BETWEEN_SAVES = 10.0


def run_with_benchdnn(
    console: Console, benchdnn: Benchdnn, files: ProblemFiles, work: Work
) -> Replay:
    """Run the problem files' lines; partial results are saved periodically and on Ctrl-C."""
    where = describe_place(work.conditions)
    print_line(console, f"runner: benchdnn of oneDNN {benchdnn.version}, {benchdnn.path}; {where}")
    if work.cold and not benchdnn.has_cold_cache:
        print_line(
            console,
            "note: this benchdnn cannot clear the caches between runs: no cold times",
        )
    if note := memory_note(work.conditions):
        print_line(console, f"note: {note}")
    replay = empty_replay(benchdnn, work.conditions)
    replay.not_replayed.update(files.not_expressible)
    batches = make_batches(files.lines, work.calls, repeats=work.repeats)
    spent = [0.0, *accumulate(batch.expected_seconds(cold=work.cold) for batch in batches)]
    # Progress counts whole seconds, at least one.
    whole = int(spent[-1]) + 1
    saved = time.monotonic()

    def save_part() -> None:
        """Save the partial results; the remaining problems are marked as interrupted."""
        interrupted = dict.fromkeys(work.calls, "not run: interrupted")
        for problem in replay.times.keys() | replay.not_replayed.keys():
            interrupted.pop(problem, None)
        reasons = {**replay.not_replayed, **interrupted}
        save_replay(replace(replay, not_replayed=reasons), work.file)

    def show(done: int, total: int) -> None:
        nonlocal saved
        seconds = int(spent[done]) if done < total else whole
        advance(seconds, f"{done} of {total} problems")
        if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
            save_part()
            saved = time.monotonic()

    # The costliest problems run first, so a plain count of problems would overestimate the wait.
    with progress(console, "seconds, about", total=whole) as advance:
        try:
            run_batches(batches, replay, benchdnn=benchdnn, cold=work.cold, progress=show)
        except KeyboardInterrupt:
            save_part()
            count = f"{len(replay.times):,} of {len(work.calls):,} problems"
            print_line(console, f"interrupted: times of {count} are saved in {work.file}")
            raise
    return replay


def run_with_torch(console: Console, work: Work) -> Replay:
    """Run problems through the oneDNN of torch, where there is no benchdnn."""
    why = "benchdnn is not on PATH, and --benchdnn is not given"
    print_line(console, f"runner: torch's oneDNN ({why}); {describe_place(work.conditions)}")
    with progress(console, "problems", total=len(work.calls)) as advance:
        return replay_with_torch(
            work.calls,
            conditions=work.conditions,
            repeats=work.repeats,
            cold=work.cold,
            progress=lambda done, _: advance(done, ""),
        )


def describe_place(conditions: Conditions) -> str:
    """Describe the number of threads and their cores."""
    count = "1 thread" if conditions.threads == 1 else f"{conditions.threads} threads"
    return f"{count} on CPUs {format_cpu_list(conditions.cpus)}" if conditions.cpus else count


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One problem in the log and alone. Times are of one call."""

    problem: Problem
    calls: int
    log_ms: float
    hot_ms: float | None
    cold_ms: float | None
    implementation: str  # The replay's
    why_not: str  # Why it has no time; empty where it has

    @property
    def total_ms(self) -> float:
        """The time of all its calls in the log. [ms]"""
        return self.calls * self.log_ms

    @property
    def ratio(self) -> float | None:
        """The ratio of its time in the log to its time alone with data in the caches."""
        return self.log_ms / self.hot_ms if self.hot_ms else None


def make_rows(calls: Mapping[Problem, Calls], replay: Replay) -> list[ReplayedRow]:
    """Return a row for each problem, costliest first."""
    rows = []
    for problem, in_log in calls.items():
        in_both = (problem, in_log.count, in_log.mean_ms)
        if time := replay.times.get(problem):
            row = ReplayedRow(*in_both, time.hot_ms, time.cold_ms, time.implementation, "")
        else:
            reason = replay.not_replayed.get(problem, "not run")
            row = ReplayedRow(*in_both, None, None, "", reason)
        rows.append(row)
    return sorted(rows, key=lambda row: -row.total_ms)


SHOWN = 20  # Rows that are printed; the files have all

MEANING = """\
each: mean time of a call in the log; hot: median time alone, one run right after the other; cold:
the same with the data removed from the caches before each run, for problems that are large enough;
log / hot: how many times longer a call took in the log than alone"""


def print_replay(console: Console, rows: Sequence[ReplayedRow]) -> None:
    """Print the table, its sum, and what was not replayed with the reasons."""
    replayed = [row for row in rows if row.hot_ms is not None]
    if replayed:
        console.print(replay_table(replayed).for_console(show_lines=True, vertical="bottom"))
        print_line(console, MEANING)
    total = sum(row.total_ms for row in rows)
    covered = sum(row.total_ms for row in replayed)
    share = f", {covered / total:.1%} of their time" if total else ""
    print_line(console, f"replayed: {len(replayed):,} of {len(rows):,} problems{share}")
    by_reason: dict[str, list[ReplayedRow]] = defaultdict(list)
    for row in rows:
        if row.why_not:
            by_reason[row.why_not].append(row)
    for reason, affected in by_reason.items():
        part = format_share(sum(row.total_ms for row in affected), total)
        kinds = ", ".join(dict.fromkeys(row.problem.kind for row in affected))
        print_line(
            console, printable(f"not replayed: {len(affected):,} ({kinds}), {part}: {reason}")
        )


def replay_table(rows: Sequence[ReplayedRow]) -> Table:
    """Return a row for each of the costliest problems, and the sum of all."""
    count = f"the {SHOWN} costliest of {len(rows):,}" if len(rows) > SHOWN else f"{len(rows)}"
    columns = (
        text_column("problem"),
        Column("calls", ",d"),
        Column("log ms\nall", ",.1f"),
        Column("\neach", three_digits),
        Column("alone ms\nhot", three_digits),
        Column("\ncold", three_digits),
        Column("log /\nhot", ",.2f"),
    )
    shown = [
        (describe_row(row), row.calls, row.total_ms, row.log_ms, row.hot_ms, row.cold_ms, row.ratio)
        for row in rows[:SHOWN]
    ]
    hot = sum(row.calls * row.hot_ms for row in rows if row.hot_ms is not None)
    log = sum(row.total_ms for row in rows)
    calls = sum(row.calls for row in rows)
    total = ("all, times calls", calls, log, None, f"{hot:,.1f}", None, log / hot if hot else None)
    return Table(f"problems run again, {count}", columns, [*shown, total])


def describe_row(row: ReplayedRow) -> str:
    """Describe the problem and its implementation; once if log and replay agree."""
    problem = row.problem
    ways = " → ".join(dict.fromkeys((problem.implementation, row.implementation)))
    return "\n".join(filter(None, (problem.name, problem.shape, problem.types, ways)))


def three_digits(milliseconds: float) -> str:
    """Return a time with three significant digits, or all before the point."""
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.3g}"


def write_numbers(
    json_file: Path, rows: Sequence[ReplayedRow], replay: Replay, notes: Sequence[str]
) -> None:
    """Write all numbers for programs."""
    content = {
        "runner": replay.runner,
        "version": replay.version,
        "instruction_set": replay.instruction_set,
        "conditions": asdict(replay.conditions),
        "other_cores": replay.other_cores,
        "notes": notes,
        "problems": [
            {**asdict(row), "total_ms": row.total_ms, "log_over_hot": row.ratio} for row in rows
        ],
    }
    write_atomically(json_file, json.dumps(content, indent=1, ensure_ascii=False))
