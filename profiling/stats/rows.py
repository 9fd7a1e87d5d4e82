"""A log as one table: a row for each distinct problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from profiling.onednn_log.log import Calls
from profiling.onednn_log.problem import Problem
from profiling.onednn_log.work import gbyte, gflop


@dataclass(frozen=True, slots=True)
class Row:
    """One problem of a log, which may have very many: what follows from others is not stored."""

    kind: str
    implementation: str
    direction: str
    types: str
    layouts: str
    attributes: str
    algorithm: str
    shape: str
    calls: int
    total_ms: float
    share: float
    """Of the time of all executions, 0 to 1."""
    gflop: float | None
    """Of one call; None where not counted, see `profiling.onednn_log.work`."""
    gbyte: float | None
    """Of one call's tensors, each once."""

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call."""
        return self.total_ms / self.calls

    @property
    def gflop_per_s(self) -> float | None:
        """The rate of a call; None where its arithmetic is not counted."""
        seconds = self.mean_ms / 1000
        return self.gflop / seconds if self.gflop is not None and seconds else None

    @property
    def flop_per_byte(self) -> float | None:
        """The arithmetic intensity; None where arithmetic or bytes are not counted."""
        return self.gflop / self.gbyte if self.gflop is not None and self.gbyte else None


COLUMNS = (
    *("kind", "implementation", "direction", "types", "layouts", "attributes", "algorithm"),
    *("shape", "calls", "total_ms", "mean_ms", "share"),
    *("gflop", "gbyte", "gflop_per_s", "flop_per_byte"),
)
"""Of `primitives.csv`."""


def rows_of(calls: Mapping[Problem, Calls]) -> list[Row]:
    """A row for each problem, the costliest first. Problems that no column tells apart are one."""
    total_ms = sum(one.total_ms for one in calls.values())
    rows = [row_of(problem, one, total_ms=total_ms) for problem, one in told_apart(calls).items()]
    return sorted(rows, key=lambda row: -row.total_ms)


def told_apart(calls: Mapping[Problem, Calls]) -> Mapping[Problem, Calls]:
    """The calls of problems that a column tells apart, each with the first such problem."""
    first: dict[tuple[str, ...], Problem] = {}
    for problem in calls:
        first.setdefault(identity(problem), problem)
    if len(first) == len(calls):
        return calls  # as nearly always: a log of many problems is not kept a second time
    merged = {problem: Calls() for problem in first.values()}  # the log's calls stay as they are
    for problem, one in calls.items():
        merged[first[identity(problem)]].add(one)
    return merged


def identity(problem: Problem) -> tuple[str, ...]:
    """What tells a problem's row apart: the columns before `calls`."""
    return (
        problem.kind,
        problem.implementation,
        problem.direction,
        problem.types,
        problem.layouts,
        problem.attributes,
        algorithm_of(problem),
        problem.shape,
    )


def algorithm_of(problem: Problem) -> str:
    """The algorithm, and whatever else the log says of it, such as `axis:1` or `flags:GR`."""
    return intern(problem.auxiliary.removeprefix("alg:"))


def row_of(problem: Problem, calls: Calls, *, total_ms: float) -> Row:
    """The numbers of one problem."""
    kind, implementation, direction, types, layouts, attributes, algorithm, shape = identity(
        problem
    )
    return Row(
        kind=kind,
        implementation=implementation,
        direction=direction,
        types=types,
        layouts=layouts,
        attributes=attributes,
        algorithm=algorithm,
        shape=shape,
        calls=calls.count,
        total_ms=calls.total_ms,
        share=calls.total_ms / total_ms if total_ms else 0.0,
        gflop=gflop(problem),
        gbyte=gbyte(problem),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """All problems of one kind and direction."""

    kind: str
    direction: str
    calls: int
    total_ms: float
    share: float
    gflop: float
    """Of all calls whose arithmetic is counted."""
    gflop_per_s: float | None


def parts_of(rows: Sequence[Row]) -> list[Part]:
    """The distribution by kind and direction, the costliest first."""
    by_part: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_part.setdefault((row.kind, row.direction), []).append(row)
    parts = [part_of(kind, direction, some) for (kind, direction), some in by_part.items()]
    return sorted(parts, key=lambda part: -part.total_ms)


def part_of(kind: str, direction: str, rows: Sequence[Row]) -> Part:
    """The sum of some rows."""
    counted = [row for row in rows if row.gflop is not None]
    gflop_of_all = sum((row.gflop or 0.0) * row.calls for row in counted)
    seconds = sum(row.total_ms for row in counted) / 1000
    return Part(
        kind=kind,
        direction=direction,
        calls=sum(row.calls for row in rows),
        total_ms=sum(row.total_ms for row in rows),
        share=sum(row.share for row in rows),
        gflop=gflop_of_all,
        gflop_per_s=gflop_of_all / seconds if seconds and counted else None,
    )
