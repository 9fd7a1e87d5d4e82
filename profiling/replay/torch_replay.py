"""A log's problems, run again through the oneDNN of torch, in a worker process.

The worker (`prepare`, a `common.processes.JsonWorker`) is started when needed, and again after it
has died, so that a crash costs one problem. oneDNN logs all that runs into the file that a question
names; the times of whatever ran count for every problem that is the same work (`Observations`).
"""

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from common.console import print_line, progress
from common.errors import InputError, WorkerDiedError
from common.processes import Answering, JsonWorker, serve
from launch.environment import prefer_memory
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from launch.shares import Share
from profiling.onednn_log.log import read_logs
from profiling.onednn_log.work import Problem
from profiling.peaks import parse_share
from profiling.replay.replay import (
    NotReplayed,
    Replay,
    ReplayOptions,
    ReplayTime,
    SameWork,
    Work,
    difference,
    normalize_work,
    same_layouts,
)

MODULE = "profiling.replay.torch_replay"


class TorchWorker:
    """A process that runs problems, alive until `close`."""

    def __init__(self, share: Share) -> None:
        """`share` has the cores that it computes on."""
        self.share = share
        self.notes: list[str] = []
        """Its notes on cores and memory when it was last started."""
        self.process: JsonWorker | None = None

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        """Run a problem; return how often, `{"hot": 20, "cold": 20}`, or `{"why_not": "…"}`.

        Raises:
            WorkerDiedError: It died; the next call starts another.
            InputError: No worker can be started.
        """
        # A worker that has died is replaced for the next problem.
        process = self.process or self._start()
        question = {"problem": asdict(problem), "log": str(log), "repeats": repeats, "cold": cold}
        try:
            return process.ask(question)
        except WorkerDiedError:
            self.close()
            raise

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def _start(self) -> JsonWorker:
        try:
            self.process = JsonWorker(MODULE, asdict(self.share))
        except WorkerDiedError as error:
            raise InputError(f"problems cannot be run again through torch: {error}") from error
        self.notes = self.process.facts["notes"]
        return self.process


def run_with_torch(
    work: Work, console: Console, *, make_worker: Callable[[Share], TorchWorker] = TorchWorker
) -> Replay:
    """Run each problem alone, and take its time from oneDNN's log of that run.

    torch's own work around a primitive does not count, nor do reorders that it adds: each line of
    the log is a separate problem, also those of reorders inside an operator. A run with another
    shape, type or layout than requested is not a replay.

    Each problem runs as often as requested, fewer times where two seconds do not do, but at least
    3; cold: as often again with nothing of it in the caches. A line is printed for each condition
    that could not be met.

    Raises:
        InputError: torch is not installed, or there are fewer cores than threads.
    """
    if find_spec("torch") is None:
        raise InputError(
            "problems cannot be run again: torch is not installed in this environment; "
            "give --benchdnn, or --replay with a file made where it is"
        )
    conditions, options = work.conditions, work.options
    print_line(console, f"runner: torch's oneDNN; {conditions.place}")
    share = choose_cores(threads=conditions.threads, cpus=conditions.cpus)
    if conditions.memory_nodes:
        share = replace(share, nodes=conditions.memory_nodes)
    observed = Observations()
    reasons: dict[Problem, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="replay-") as folder,
        closing(make_worker(share)) as worker,
        progress(console, "problems", total=len(work.calls)) as advance,
    ):
        # Reorders last: most come back with the operators that make them on their way.
        ordered = sorted(work.calls, key=lambda problem: problem.kind == "reorder")
        for done, problem in enumerate(ordered):
            advance(done, "")
            log = Path(folder, f"{done}.log")
            reasons[problem] = run_again(problem, worker, observed, log=log, options=options)
        for note in worker.notes:
            print_line(console, f"note: {note}")
        advance(len(work.calls), "")
    # Also what ran with another problem after its own run had failed.
    runnable = (problem for problem in work.calls if not unsupported_reason(problem))
    found = map(observed.find_time, runnable)
    times = [time for time in found if time is not None]
    timed = {time.problem for time in times}
    missing = [NotReplayed(*reason) for reason in reasons.items() if reason[0] not in timed]
    versions, instruction_sets = map(", ".join, (observed.versions, observed.instruction_sets))
    return Replay("torch", versions, instruction_sets, conditions, times, missing)


class Observations:
    """All problems in the worker's logs so far, by their work."""

    def __init__(self) -> None:
        self.versions: list[str] = []
        self.instruction_sets: list[str] = []
        self._by_work: dict[SameWork, dict[Problem, tuple[list[float], list[float]]]] = {}
        """The milliseconds of each hot and of each cold run of a problem."""

    def read(self, file: Path, *, hot_runs: int) -> list[Problem]:
        """Add a log in which each run is a step, first hot ones, then cold; return its problems."""
        if b",exec," not in file.read_bytes():
            # torch has not called oneDNN at all.
            return []
        log = read_logs([file])
        self.versions = self.versions or log.versions
        self.instruction_sets = self.instruction_sets or log.instruction_sets
        for where, problems in log.executions.items():
            if where.step is None:
                continue
            for problem, calls in problems.items():
                runs = self._by_work.setdefault(normalize_work(problem), {})
                hot_ms, cold_ms = runs.setdefault(problem, ([], []))
                # Each run is a step; a problem that occurs twice in a run counts with its mean.
                (hot_ms if where.step < hot_runs else cold_ms).append(calls.mean_ms)
        return list(log.calls(lambda where: where.step is not None))

    def find_time(self, wanted: Problem) -> ReplayTime | None:
        """Return medians of the same work with the same layouts; None if there are none."""
        for problem, (hot_ms, cold_ms) in self._by_work.get(normalize_work(wanted), {}).items():
            if hot_ms and same_layouts(wanted, problem):
                return ReplayTime(
                    wanted,
                    hot_ms=median(hot_ms),
                    cold_ms=median(cold_ms) if cold_ms else None,
                    runs=min(len(times) for times in (hot_ms, cold_ms) if times),
                    implementation=problem.implementation,
                )
        return None


def run_again(
    problem: Problem,
    worker: TorchWorker,
    observed: Observations,
    *,
    log: Path,
    options: ReplayOptions,
) -> str:
    """Run one problem and add its log; return why there is no time, else an empty text."""
    if observed.find_time(problem) is not None or unsupported_reason(problem):
        return unsupported_reason(problem)
    log.touch()
    try:
        answer = worker.run(problem, log, repeats=options.repeats, cold=options.cold)
    except WorkerDiedError as error:
        return str(error)
    if "why_not" in answer:
        return answer["why_not"]
    executed = observed.read(log, hot_runs=answer["hot"])
    if observed.find_time(problem) is not None:
        return ""
    alike = [other for other in executed if other.kind == problem.kind]
    if not alike:
        return f"torch does not call oneDNN's {problem.kind} for it"
    return difference(problem, alike[0])


def unsupported_reason(problem: Problem) -> str:
    """Return why torch's oneDNN on a CPU cannot run it; empty if it can."""
    if problem.component != "primitive":
        return f"it belongs to {problem.component}, not a primitive"
    return "" if problem.engine == "cpu" else f"it ran on {problem.engine}"


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Set cores and memory before torch is loaded; return notes and the problem runner."""
    share = parse_share(specification)
    notes = take_cores(share)
    lost = prefer_memory(share.nodes, allowed=read_allowance().memory_nodes)
    notes += [lost] if lost else []
    notes += check_cores(share)
    # torch had to wait for the cores.
    from profiling.replay.torch_runs import answer, flusher  # noqa: PLC0415

    flush = flusher()
    return {"notes": notes}, lambda question: answer(question, flush)


if __name__ == "__main__":
    serve(prepare)
