"""Running problems again with what there is, benchdnn or torch's oneDNN; nothing done is lost.

TODO-DOC What makes a replay differ from the run that wrote a log, other than running alone.

TODO-DOC What is run how often, and about how long that takes.

TODO-DOC A log's problems through benchdnn, one process for each.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from common.console import progress, say
from launch.topology import format_cpu_list
from profiling.bench.results import disturbance
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.work import Problem, gbyte
from profiling.replay.benchdnn import (
    TEMPLATE,
    Benchdnn,
    Ended,
    ask_benchdnn,
    memory_note,
    read_timed,
    refusal,
    run_benchdnn,
)
from profiling.replay.benchdnn_fields import Dialect, Layouts, ProblemLine
from profiling.replay.benchdnn_problems import ProblemFiles, express
from profiling.replay.replay import Conditions, Replay, ReplayTime, save_replay
from profiling.replay.torch_replay import replay_with_torch

NOT_REACHED = "interrupted before its turn"
SECONDS_BETWEEN_SAVES = 10.0


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be run, and how."""

    calls: Mapping[Problem, Calls]
    conditions: Conditions
    repeats: int
    cold: bool
    file: Path
    """Where the replay goes."""


def run_with_benchdnn(
    console: Console, benchdnn: Benchdnn, files: ProblemFiles, work: Work
) -> Replay:
    """Run the problem files' lines; what is done is saved now and then, and on Ctrl-C."""
    announce(console, benchdnn, work)
    replay = empty_replay(benchdnn, work.conditions)
    replay.not_replayed.update(files.not_expressible)
    expected = expected_seconds(files.lines, work.calls, repeats=work.repeats, cold=work.cold)
    spent = [0.0, *accumulate(expected)]
    whole = int(spent[-1]) + 1
    saved = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal saved
        seconds = int(spent[done]) if done < total else whole
        advance(seconds, f"{done} of {total} problems")
        if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
            save_part(replay, work)
            saved = time.monotonic()

    # The costliest come first, so that a plain count of problems would promise a long wait.
    with progress(console, "seconds, about", total=whole) as advance:
        try:
            run_lines(
                files.lines,
                work.calls,
                replay,
                benchdnn=benchdnn,
                repeats=work.repeats,
                cold=work.cold,
                progress=show,
            )
        except KeyboardInterrupt:
            save_part(replay, work)
            count = f"{len(replay.times):,} of {len(work.calls):,} problems"
            say(console, f"interrupted: times of {count} are kept in {work.file}")
            raise
    return replay


def announce(console: Console, benchdnn: Benchdnn, work: Work) -> None:
    """Say who runs the problems, where, and what cannot be had."""
    where = placed(work.conditions)
    say(console, f"runner: benchdnn of oneDNN {benchdnn.version}, {benchdnn.path}; {where}")
    if work.cold and not benchdnn.has_cold_cache:
        say(console, "note: this benchdnn cannot empty caches between runs; no cold times")
    if note := memory_note(work.conditions):
        say(console, f"note: {note}")


def save_part(replay: Replay, work: Work) -> None:
    """Save what a replay has so far; the others are told as not reached."""
    reached = replay.times.keys() | replay.not_replayed.keys()
    left = {problem: NOT_REACHED for problem in work.calls if problem not in reached}
    save_replay(replace(replay, not_replayed={**replay.not_replayed, **left}), work.file)


def run_with_torch(console: Console, work: Work) -> Replay:
    """Run problems through the oneDNN of torch, where there is no benchdnn."""
    why = "no benchdnn is on PATH, and --benchdnn names none"
    say(console, f"runner: torch's own oneDNN ({why}); {placed(work.conditions)}")
    with progress(console, "problems", total=len(work.calls)) as advance:
        return replay_with_torch(
            work.calls,
            conditions=work.conditions,
            repeats=work.repeats,
            cold=work.cold,
            progress=lambda done, _: advance(done, ""),
        )


def placed(conditions: Conditions) -> str:
    """How many threads, and where."""
    count = "1 thread" if conditions.threads == 1 else f"{conditions.threads} threads"
    return f"{count} on CPUs {format_cpu_list(conditions.cpus)}" if conditions.cpus else count


def mismatches(log: OneDnnLog, replay: Replay) -> list[str]:
    """Other work beside it; instruction set, threads and version where they differ. Lines."""
    found = []
    if disturbed := disturbance(replay.other_cores):
        found.append(f"the replay was {disturbed}")
    if log.instruction_sets and replay.instruction_set not in log.instruction_sets:
        found.append(
            f"instruction set: {' and '.join(log.instruction_sets)} in the log, "
            f"{replay.instruction_set or 'unknown'} in the replay"
        )
    threads = log.run_threads
    if threads and replay.conditions.threads not in threads:
        counts = " and ".join(map(str, threads))
        found.append(f"threads: {counts} in the log, {replay.conditions.threads} in the replay")
    if log.versions and replay.version not in log.versions:
        found.append(
            f"oneDNN: {' and '.join(log.versions)} in the log, "
            f"{replay.version or 'unknown'} in the replay"
        )
    return found


LONGEST_MS = 2_000.0
"""That the runs of a problem may take, as far as its time in the log tells."""

FEWEST_RUNS = 3

LEAST_COLD_GB = 32_768 / 1e9
"""Tensors below this are not run cold: to fill the caches three times over, as benchdnn does, it
would prepare so many copies of them that it takes minutes and gigabytes."""

START_SECONDS = 0.3
"""That a process takes beside the runs, about."""


def told_alike(lines: Mapping[Problem, ProblemLine]) -> list[list[Problem]]:
    """Problems for which benchdnn is told the same, together; in the order of the first."""
    alike: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem, line in lines.items():
        alike[line.driver, line.text].append(problem)
    return list(alike.values())


def longest_ms(problems: Sequence[Problem], calls: Mapping[Problem, Calls]) -> float:
    """What a run will take, as far as the log tells."""
    return max(calls[problem].mean_ms for problem in problems)


def runs_that_count(mean_ms: float, repeats: int) -> int:
    """As many as are asked for, fewer where they would take long."""
    return max(min(repeats, FEWEST_RUNS), min(repeats, int(LONGEST_MS / max(mean_ms, 1e-6))))


def expected_seconds(
    lines: Mapping[Problem, ProblemLine],
    calls: Mapping[Problem, Calls],
    *,
    repeats: int,
    cold: bool,
) -> list[float]:
    """What `run_lines` will take about for each problem, in its order."""
    expected = []
    for problems in told_alike(lines):
        mean_ms = longest_ms(problems, calls)
        runs = (1 + runs_that_count(mean_ms, repeats)) * (2 if cold else 1)
        expected.append(START_SECONDS + runs * mean_ms / 1000)
    return expected


def is_worth_cold(problem: Problem) -> bool:
    """Whether its tensors are large enough; where their size is not known, they are."""
    size = gbyte(problem)
    return size is None or size >= LEAST_COLD_GB


FINE_MS = 0.01
"""From here on the steps of the log's clock do not matter."""

PATIENCE = 120.0
"""Seconds that filling tensors and making the primitive may take, beside the runs."""


def replay_with_benchdnn(
    calls: Mapping[Problem, Calls],
    *,
    benchdnn: Path,
    conditions: Conditions,
    repeats: int,
    cold: bool,
    progress: Callable[[int, int], None],
    layouts: Layouts = "log",
) -> Replay:
    """Run a log's problems again with benchdnn, each alone.

    Args:
        calls: The problems, with their calls in the log.
        benchdnn: The program.
        conditions: Threads, cores and memory nodes.
        repeats: Runs of each that count, fewer where they would take long.
        cold: Also with data that is not in the caches.
        progress: Told how many problems are done, and of how many.
        layouts: Those of the log, or the library's choice.

    Returns:
        A replay in which every problem has a time or a reason why it has none.

    Raises:
        InputError: benchdnn does not run.
    """
    asked = ask_benchdnn(benchdnn, conditions)
    dialect = Dialect(2 if asked.major < 3 else 3, layouts)
    lines, refused = express(calls, dialect)
    replay = empty_replay(asked, conditions)
    replay.not_replayed.update(refused)
    run_lines(lines, calls, replay, benchdnn=asked, repeats=repeats, cold=cold, progress=progress)
    return replay


def empty_replay(benchdnn: Benchdnn, conditions: Conditions) -> Replay:
    """One without problems."""
    return Replay(
        runner="benchdnn",
        version=benchdnn.version,
        instruction_set=benchdnn.instruction_set,
        conditions=conditions,
    )


def run_lines(
    lines: Mapping[Problem, ProblemLine],
    calls: Mapping[Problem, Calls],
    replay: Replay,
    *,
    benchdnn: Benchdnn,
    repeats: int,
    cold: bool,
    progress: Callable[[int, int], None],
) -> None:
    """Fill a replay, problem by problem in the order of `lines`.

    Problems that benchdnn is told alike run once. What is in the replay stays there when this is
    interrupted.
    """
    groups = told_alike(lines)
    cold = cold and benchdnn.has_cold_cache
    progress(0, len(groups))
    for done, problems in enumerate(groups, start=1):
        result = run_one(
            lines[problems[0]],
            mean_ms=longest_ms(problems, calls),
            benchdnn=benchdnn,
            conditions=replay.conditions,
            repeats=repeats,
            cold=cold and is_worth_cold(problems[0]),
        )
        for problem in problems:
            if isinstance(result, ReplayTime):
                replay.times[problem] = result
            else:
                replay.not_replayed[problem] = result
        progress(done, len(groups))


def run_one(
    line: ProblemLine,
    *,
    mean_ms: float,
    benchdnn: Benchdnn,
    conditions: Conditions,
    repeats: int,
    cold: bool,
) -> ReplayTime | str:
    """Measure one problem, hot and then cold; where it cannot be, say why in one line.

    Where benchdnn fails to fill a problem's tensors with numbers, as that of 3.7.2 does for layer
    normalization in inference, it is run again with one number in all of them.
    """
    runs = runs_that_count(mean_ms, repeats)
    # Running alone it is rarely slower than in the log; ten times that is a hang.
    patience = PATIENCE + 10 * (runs + 1) * 2 * mean_ms / 1000
    arguments = [
        f"--fix-times-per-prb={runs}",
        f"--{line.driver}",
        TEMPLATE,
        *line.words,
        *(["--cold-cache=all", *line.words] if cold else []),
    ]
    why = ""
    for mode in (("--mode=P",), ("--mode=P", "--mode-modifier=M")):
        ended, result = attempt(
            [*mode, *arguments],
            benchdnn=benchdnn,
            conditions=conditions,
            patience=patience,
            driver=line.driver,
            runs=runs,
        )
        if isinstance(result, ReplayTime):
            return result
        why = why or result
        if ended.status in (None, 0):
            break
    return why


def attempt(
    arguments: Sequence[str],
    *,
    benchdnn: Benchdnn,
    conditions: Conditions,
    patience: float,
    driver: str,
    runs: int,
) -> tuple[Ended, ReplayTime | str]:
    """Run benchdnn once: how it ended, and what it measured or why it did not."""
    with tempfile.TemporaryDirectory(prefix="benchdnn-") as folder:
        output = Path(folder, "output")
        ended = run_benchdnn(
            benchdnn.path, arguments, output, conditions=conditions, patience=patience
        )
        return ended, result_of(output, ended, driver=driver, runs=runs)


def result_of(output: Path, ended: Ended, *, driver: str, runs: int) -> ReplayTime | str:
    """What a process measured, or in one line why it did not."""
    try:
        timed = read_timed(output, driver=driver, runs=runs)
    except ValueError as error:
        return f"benchdnn's output is not understood: {error}"
    if not timed:
        return refusal(output) or f"benchdnn: {ended.why or 'measured nothing'}"
    return ReplayTime(
        hot_ms=typical(timed[0].milliseconds),
        cold_ms=typical(timed[1].milliseconds) if len(timed) > 1 else None,
        runs=runs,
        implementation=timed[0].problem.implementation,
    )


def typical(milliseconds: Sequence[float]) -> float:
    """The median; of runs so short that the log's clock shows steps, the mean of the middle half.

    oneDNN writes times as differences of milliseconds since 1970, whose last digit is about a
    microsecond.
    """
    middle = median(milliseconds)
    if middle >= FINE_MS or len(milliseconds) < 4:
        return middle
    quarter = len(milliseconds) // 4
    return fmean(sorted(milliseconds)[quarter : len(milliseconds) - quarter])
