"""oneDNN's calls summed up by problem, and by kind and direction, with their rates.

Tables and charts of `stats` and `report` read these records. Calls and times are those of a whole
log, or of its mean step.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import TypeVar

from profiling.onednn_log.log import Calls
from profiling.onednn_log.work import Problem, gbyte, gflop, kind_and_direction
from profiling.peaks import Peaks, matrix_peak, roofline_ms

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, keys and items in the order of appearance."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


@dataclass(frozen=True, slots=True)
class ProblemCalls:
    """All calls of one problem."""

    problem: Problem
    calls: float
    total_ms: float
    mean_ms: float  # Of a call
    share: float  # Of all of oneDNN's time, 0 to 1
    gflop: float | None
    """10⁹ operations of a call; None where not counted, see `profiling.onednn_log.work`."""
    gbyte: float | None  # 10⁹ bytes of a call's tensors, each once
    bound_ms: float | None = None  # Of a call at the machine's peaks; None where not known
    peak_gflop_per_s: float | None = None  # Of its type of number

    @property
    def gflop_per_s(self) -> float | None:
        """The rate of a call; None where its arithmetic is not counted."""
        return self._rate(self.gflop)

    @property
    def gbyte_per_s(self) -> float | None:
        """The bandwidth of a call; None where its bytes are not counted."""
        return self._rate(self.gbyte)

    def _rate(self, amount: float | None) -> float | None:
        return None if amount is None or not self.mean_ms else amount / (self.mean_ms / 1000)

    @property
    def flop_per_byte(self) -> float | None:
        """The arithmetic intensity; None where arithmetic or bytes are not counted."""
        return self.gflop / self.gbyte if self.gflop is not None and self.gbyte else None

    @property
    def peak_share(self) -> float | None:
        """The rate over the peak rate of its type of number; None where not known."""
        rate, peak = self.gflop_per_s, self.peak_gflop_per_s
        return rate / peak if rate is not None and peak else None

    @property
    def roofline_ms(self) -> float | None:
        """The time of all calls at the machine's peaks; None where not known."""
        return None if self.bound_ms is None else self.bound_ms * self.calls

    @property
    def lost_ms(self) -> float | None:
        """The time above the roofline; 0 if caches made it faster."""
        return None if self.roofline_ms is None else max(0.0, self.total_ms - self.roofline_ms)


def sum_by_problem(
    calls: Mapping[Problem, Calls], *, steps: int | None = None, peaks: Peaks | None = None
) -> list[ProblemCalls]:
    """Return the calls of each problem, the costliest first; problems of equal columns are one.

    Calls and times are those of a mean step if the number of `steps` is given.
    """
    whole_ms = sum(counted.total_ms for counted in calls.values())
    problems = [
        ProblemCalls(
            problem,
            calls=counted.count / steps if steps else counted.count,
            total_ms=counted.total_ms / (steps or 1),
            mean_ms=counted.mean_ms,
            share=counted.total_ms / whole_ms if whole_ms else 0.0,
            gflop=gflop(problem),
            gbyte=gbyte(problem),
            bound_ms=roofline_ms(problem, peaks) if peaks else None,
            peak_gflop_per_s=matrix_peak(problem, peaks) if peaks else None,
        )
        for problem, counted in merge_equal(calls).items()
    ]
    return sorted(problems, key=lambda item: -item.total_ms)


def merge_equal(calls: Mapping[Problem, Calls]) -> Mapping[Problem, Calls]:
    """Return the calls with problems of equal columns summed, each under the first such problem."""
    first: dict[tuple[str, ...], Problem] = {}
    merged: dict[Problem, Calls] = {}
    for problem, counted in calls.items():
        kept = first.setdefault(identity(problem), problem)
        merged.setdefault(kept, Calls()).merge(counted)
    return merged


def identity(problem: Problem) -> tuple[str, str, str, str, str, str, str, str]:
    """Return what a table shows of a problem.

    Kind, implementation, direction, types, layouts, attributes, algorithm and shape. The algorithm
    includes the log's other terms, such as `axis:1` or `flags:GR`.
    """
    work = (problem.kind, problem.implementation, problem.direction, problem.types)
    # Many problems have the same text, which is then in memory once.
    algorithm = intern(problem.auxiliary.removeprefix("alg:"))
    return *work, problem.layouts, problem.attributes, algorithm, problem.shape


@dataclass(frozen=True, slots=True)
class Part:
    """The sum of some problems: of one kind and direction, or of all."""

    kind: str
    direction: str
    calls: float
    total_ms: float
    share: float  # Of all of oneDNN's time
    gflop: float  # 10⁹ operations of all calls whose arithmetic is counted
    gflop_per_s: float | None  # Of the same calls
    bounded_ms: float  # Time of the problems that have a roofline
    lost_ms: float  # Time of these problems beyond their roofline
    problems: Sequence[ProblemCalls]

    @property
    def name(self) -> str:
        """The kind and direction, such as `convolution backward data`."""
        return kind_and_direction(self.kind, self.direction)


def sum_up(problems: Sequence[ProblemCalls], kind: str = "", direction: str = "") -> Part:
    """Return the sum of some problems under a name."""
    counted = [item for item in problems if item.gflop is not None]
    operations = sum((item.gflop or 0.0) * item.calls for item in counted)
    seconds = sum(item.total_ms for item in counted) / 1000
    return Part(
        kind,
        direction,
        calls=sum(item.calls for item in problems),
        total_ms=sum(item.total_ms for item in problems),
        share=sum(item.share for item in problems),
        gflop=operations,
        gflop_per_s=operations / seconds if seconds and counted else None,
        bounded_ms=sum(item.total_ms for item in problems if item.bound_ms is not None),
        lost_ms=sum(item.lost_ms or 0.0 for item in problems),
        problems=problems,
    )


def sum_by_kind(problems: Iterable[ProblemCalls]) -> list[Part]:
    """Return the sums by kind and direction, the costliest first."""
    groups = grouped(problems, lambda item: (item.problem.kind, item.problem.direction))
    parts = [sum_up(group, *key) for key, group in groups.items()]
    return sorted(parts, key=lambda part: -part.total_ms)
