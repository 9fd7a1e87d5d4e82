"""A log's problems, run again through the oneDNN that torch brings.

TODO-DOC The caller's side of the worker: started when needed, started again after it has died.

TODO-DOC What the worker's logs tell: times of all that ran, whatever it was run for.

TODO-DOC Runs problems in a process of its own, a `common.processes.JsonWorker`.

Its specification is a `Share`. Each question is a problem to run; the answer is how often it ran, or
why it did not. oneDNN's log of it is in the file that the question names.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from common.errors import InputError
from common.processes import Answering, JsonWorker, WorkerDiedError, serve
from launch.environment import prefer_memory
from launch.limits import read_allowance
from launch.pinning import check_cores, choose_cores, take_cores
from launch.shares import Share
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.work import Problem
from profiling.peaks.peaks import share_of
from profiling.replay.replay import (
    Conditions,
    Replay,
    ReplayTime,
    Work,
    difference,
    same_layouts,
    work_of,
)


class TorchWorker:
    """A process that runs problems; leaving the context ends it."""

    def __init__(self, share: Share) -> None:
        """`share`: the cores that it computes on."""
        self.share = share
        self.notes: list[str] = []
        """What it said of its cores when it was last started."""
        self.process: JsonWorker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, problem: Problem, log: Path, *, repeats: int, cold: bool) -> dict[str, Any]:
        """Run a problem: `{"hot": 20, "cold": 20}`, or `{"why_not": "…"}`.

        Raises:
            WorkerDiedError: It did not survive that; the next call starts another.
            InputError: No worker can be started.
        """
        process = self.process or self._start()
        question = {
            "problem": asdict(problem),
            "log": str(log),
            "repeats": repeats,
            "cold": cold,
        }
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
        worker_of(core_share(conditions)) as worker,
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


class Observations:
    """All that was logged so far, by the work that it is."""

    def __init__(self) -> None:
        self.versions: list[str] = []
        self.instruction_sets: list[str] = []
        self._by_work: dict[Work, dict[Problem, Observation]] = {}

    def read(self, file: Path, *, hot_runs: int) -> list[Problem]:
        """Take in a log in which each run is a step: first the hot ones, then the cold.

        Returns:
            The problems of this log.
        """
        if not holds_executions(file):
            return []
        log = read_logs([file])
        self.versions = self.versions or log.versions
        self.instruction_sets = self.instruction_sets or log.instruction_sets
        for where, problems in log.executions.items():
            if where.step is not None:
                self._take(problems, is_hot=where.step < hot_runs)
        return list(log.calls(lambda where: where.step is not None))

    def time_of(self, asked: Problem) -> ReplayTime | None:
        """Times of the same work with the same layouts; None where there are none."""
        for problem, observation in self._by_work.get(work_of(asked), {}).items():
            if observation.hot_ms and same_layouts(asked, problem):
                return observation.time()
        return None

    def _take(self, problems: Mapping[Problem, Calls], *, is_hot: bool) -> None:
        for problem, calls in problems.items():
            same = self._by_work.setdefault(work_of(problem), {})
            observation = same.setdefault(problem, Observation(problem))
            (observation.hot_ms if is_hot else observation.cold_ms).append(calls.mean_ms)


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


def core_share(conditions: Conditions) -> Share:
    """The cores to run on.

    Raises:
        InputError: There are fewer than threads, or they may not be used.
    """
    share = choose_cores(threads=conditions.threads, cpus=conditions.cpus)
    return replace(share, nodes=conditions.memory_nodes) if conditions.memory_nodes else share


MODULE = "profiling.replay.torch_replay"


@dataclass
class Observation:
    """One problem as the worker's oneDNN logged it: milliseconds of each run."""

    problem: Problem
    hot_ms: list[float] = field(default_factory=list)
    cold_ms: list[float] = field(default_factory=list)

    def time(self) -> ReplayTime:
        """Medians."""
        counts = [len(times) for times in (self.hot_ms, self.cold_ms) if times]
        return ReplayTime(
            hot_ms=median(self.hot_ms),
            cold_ms=median(self.cold_ms) if self.cold_ms else None,
            runs=min(counts),
            implementation=self.problem.implementation,
        )


def holds_executions(file: Path) -> bool:
    """Whether torch has called oneDNN at all."""
    return b",exec," in file.read_bytes()


def why_not(asked: Problem, ran: Sequence[Problem]) -> str:
    """Why what ran is not what was asked for, in one line."""
    alike = [problem for problem in ran if problem.kind == asked.kind]
    if not alike:
        return f"torch does not reach oneDNN's {asked.kind} with it"
    return difference(asked, alike[0])


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Take cores and memory before torch is loaded; return notes and what runs a problem."""
    share = share_of(specification)
    notes = take_cores(share)
    lost = prefer_memory(share.nodes, allowed=read_allowance().memory_nodes)
    notes += [lost] if lost else []
    notes += check_cores(share)
    # torch had to wait for the cores.
    from profiling.replay.torch_operators import answer, flusher  # noqa: PLC0415

    flush = flusher()
    return {"notes": notes}, lambda question: answer(question, flush)


if __name__ == "__main__":
    serve(prepare)
