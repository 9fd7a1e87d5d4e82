"""Running problems again with what there is, benchdnn or torch's oneDNN; nothing done is lost."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from rich.console import Console

from launch.host.cpu_lists import format_cpu_list
from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.replay.benchdnn.plan import expected_seconds
from profiling.replay.benchdnn.process import memory_note
from profiling.replay.benchdnn.program import Benchdnn
from profiling.replay.benchdnn.run import empty_replay, run_lines
from profiling.replay.problem_files.write import ProblemFiles
from profiling.replay.replay import Conditions, Replay
from profiling.replay.replay_file import save_replay
from profiling.replay.torch_runner.run import replay_with_torch
from profiling.terminal import say
from retinanet.progress import progress

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
