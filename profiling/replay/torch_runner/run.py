"""A log's problems, run again through the oneDNN that torch brings."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from launch.placement.share import Share
from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.peaks.cores import choose_cores
from profiling.replay.replay import Conditions, Replay
from profiling.replay.torch_runner.observed import Observations, why_not
from profiling.replay.torch_runner.worker_process import TorchWorker, WorkerDiedError
from retinanet.errors import InputError


def replay_with_torch(
    calls: Mapping[Problem, Calls],
    *,
    conditions: Conditions,
    repeats: int,
    cold: bool,
    progress: Callable[[int, int], None],
    say: Callable[[str], None] = lambda _: None,
    worker_of: Callable[[Share], TorchWorker] = TorchWorker,
) -> Replay:
    """Run each problem alone, and take its time from oneDNN's log of that run.

    torch's own work around a primitive does not count, nor do reorders that it adds: each line of
    the log is its own problem, and reorders inside an operator are taken where they come. What
    comes back with another shape, type or layout than was asked for is not a replay.

    Args:
        calls: The problems, with how often they ran; more calls change nothing here.
        conditions: Threads, and where they run.
        repeats: Runs of each problem, fewer where two seconds do not do, but at least 3.
        cold: Whether to run each as often again with nothing of it in the caches.
        progress: Told how many problems are done, and of how many.
        say: Told, in one line each, what could not be as the conditions have it.
        worker_of: Makes the process that runs them.

    Raises:
        InputError: torch is not installed, or there are fewer cores than threads.
    """
    if find_spec("torch") is None:
        raise InputError(
            "problems cannot be run again: torch is not installed in this environment; "
            "give --benchdnn, or --replay with a file made where it is"
        )
    observed = Observations()
    not_replayed: dict[Problem, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="replay-") as folder,
        worker_of(share_of(conditions)) as worker,
    ):
        for done, problem in enumerate(in_order(calls)):
            progress(done, len(calls))
            log = Path(folder, f"{done}.log")
            reason = run_again(problem, worker, observed, log=log, repeats=repeats, cold=cold)
            if reason:
                not_replayed[problem] = reason
        for note in worker.notes:
            say(note)
    progress(len(calls), len(calls))
    return as_replay(calls, observed, not_replayed, conditions=conditions)


def as_replay(
    calls: Iterable[Problem],
    observed: Observations,
    not_replayed: Mapping[Problem, str],
    *,
    conditions: Conditions,
) -> Replay:
    """All times, also of what came back with another problem after its own run had failed."""
    times = {
        problem: time
        for problem in calls
        if not not_of_this_cpu(problem) and (time := observed.time_of(problem)) is not None
    }
    return Replay(
        runner="torch",
        version=", ".join(observed.versions),
        instruction_set=", ".join(observed.instruction_sets),
        conditions=conditions,
        times=times,
        not_replayed={
            problem: why for problem, why in not_replayed.items() if problem not in times
        },
    )


def run_again(
    problem: Problem,
    worker: TorchWorker,
    observed: Observations,
    *,
    log: Path,
    repeats: int,
    cold: bool,
) -> str:
    """Run one problem and note what oneDNN logs; why it has no time, or nothing if it has."""
    if observed.time_of(problem) is not None or not_of_this_cpu(problem):
        return not_of_this_cpu(problem)
    log.touch()
    try:
        answer = worker.run(problem, log, repeats=repeats, cold=cold)
    except WorkerDiedError as error:
        return str(error)
    if "why_not" in answer:
        return answer["why_not"]
    ran = observed.read(log, hot_runs=answer["hot"])
    return "" if observed.time_of(problem) is not None else why_not(problem, ran)


def in_order(calls: Iterable[Problem]) -> list[Problem]:
    """Reorders last: most come back with the operators that make them on their way."""
    return sorted(calls, key=lambda problem: problem.kind == "reorder")


def not_of_this_cpu(problem: Problem) -> str:
    """Why torch's oneDNN on a CPU has nothing like it; empty where it may."""
    if problem.component != "primitive":
        return f"it is a {problem.component}'s, not a primitive"
    return "" if problem.engine == "cpu" else f"it ran on {problem.engine}"


def share_of(conditions: Conditions) -> Share:
    """The cores to run on.

    Raises:
        InputError: There are fewer than threads, or they may not be used.
    """
    share = choose_cores(threads=conditions.threads, cpus=conditions.cpus)
    return replace(share, nodes=conditions.memory_nodes) if conditions.memory_nodes else share
