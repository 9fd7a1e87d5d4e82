"""A log's problems through benchdnn, one process for each."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.replay.benchdnn.output import TEMPLATE, read_timed, refusal
from profiling.replay.benchdnn.plan import (
    is_worth_cold,
    longest_ms,
    runs_that_count,
    told_alike,
)
from profiling.replay.benchdnn.process import Ended, run_benchdnn
from profiling.replay.benchdnn.program import Benchdnn, ask_benchdnn
from profiling.replay.problem_files.problem_line import Dialect, Layouts, ProblemLine
from profiling.replay.problem_files.write import express
from profiling.replay.replay import Conditions, Replay, ReplayTime

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
