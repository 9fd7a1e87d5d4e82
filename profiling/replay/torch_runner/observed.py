"""What the worker's logs tell: times of all that ran, whatever it was run for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.onednn_log.read import read_logs
from profiling.replay.replay import ReplayTime
from profiling.replay.torch_runner.sameness import Work, difference, same_layouts, work_of


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


def holds_executions(file: Path) -> bool:
    """Whether torch has called oneDNN at all."""
    return b",exec," in file.read_bytes()


def why_not(asked: Problem, ran: Sequence[Problem]) -> str:
    """Why what ran is not what was asked for, in one line."""
    alike = [problem for problem in ran if problem.kind == asked.kind]
    if not alike:
        return f"torch does not reach oneDNN's {asked.kind} with it"
    return difference(asked, alike[0])
