"""Run a log's problems again, alone: with benchdnn, or through torch's oneDNN where there is none.

Results of benchdnn are saved every few seconds and on Ctrl-C, where a file for them is given.
"""

import time
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate

from rich.console import Console

from common.console import print_line, progress
from common.files import write_json
from profiling.bench.results import background_load
from profiling.replay.benchdnn import Benchdnn, make_batches, memory_note, run_batch
from profiling.replay.benchdnn_fields import Dialect
from profiling.replay.benchdnn_problems import express
from profiling.replay.replay import NotReplayed, Replay, ReplayTime, Work
from profiling.replay.torch_replay import run_with_torch


def run_again(work: Work, benchdnn: Benchdnn | None, console: Console) -> Replay:
    """Run the problems with benchdnn, or without it through torch, and save the replay.

    Raises:
        InputError: torch is not installed, there are fewer cores than threads, or the replay
            cannot be saved.
    """
    run = run_with_torch if benchdnn is None else partial(run_with_benchdnn, benchdnn)
    with background_load() as others:
        replay = run(work, console)
    replay = replace(replay, other_cores=others.cores)
    if work.file is not None:
        write_json(work.file, asdict(replay))
    return replay


SECONDS_BETWEEN_SAVES = 10.0


def run_with_benchdnn(benchdnn: Benchdnn, work: Work, console: Console) -> Replay:
    """Run the problems' lines; partial results are saved periodically and on Ctrl-C."""
    cold, where = work.options.cold, work.conditions.place
    print_line(console, f"runner: benchdnn of oneDNN {benchdnn.version}, {benchdnn.path}; {where}")
    if cold and not benchdnn.has_cold_cache:
        print_line(
            console, "note: this benchdnn cannot clear the caches between runs: no cold times"
        )
    if note := memory_note(work.conditions):
        print_line(console, f"note: {note}")
    lines, refused = express(work.calls, Dialect(benchdnn.dialect, work.layouts))
    replay = Replay("benchdnn", benchdnn.version, benchdnn.instruction_set, work.conditions, [], [])
    replay.not_replayed.extend(NotReplayed(problem, why) for problem, why in refused.items())
    batches = make_batches(lines, work.calls, repeats=work.options.repeats)
    spent = [0.0, *accumulate(batch.expected_seconds(cold=cold) for batch in batches)]
    # Progress counts whole seconds, at least one.
    whole = int(spent[-1]) + 1
    saved = time.monotonic()

    def save_part() -> None:
        """Save the partial results; the remaining problems are marked as interrupted."""
        if work.file is not None:
            done = {each.problem for each in replay.times}
            done |= {each.problem for each in replay.not_replayed}
            left = (problem for problem in work.calls if problem not in done)
            reasons = [NotReplayed(problem, "not run: interrupted") for problem in left]
            part = replace(replay, not_replayed=[*replay.not_replayed, *reasons])
            write_json(work.file, asdict(part))

    # The costliest problems run first, so a plain count of problems would overestimate the wait.
    with progress(console, "seconds, about", total=whole) as advance:
        try:
            for done, batch in enumerate(batches, start=1):
                result = run_batch(batch, benchdnn=benchdnn, conditions=work.conditions, cold=cold)
                for problem in batch.problems:
                    if isinstance(result, ReplayTime):
                        replay.times.append(replace(result, problem=problem))
                    else:
                        replay.not_replayed.append(NotReplayed(problem, result))
                seconds = int(spent[done]) if done < len(batches) else whole
                advance(seconds, f"{done} of {len(batches)} problems")
                if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                    save_part()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            save_part()
            count = f"{len(replay.times):,} of {len(work.calls):,} problems"
            if work.file is not None:
                print_line(console, f"interrupted: times of {count} are saved in {work.file}")
            raise
    return replay
