"""A step by its phases: what is oneDNN's, by kind of primitive, and what is not."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.efficiency.steps import steps_of
from profiling.onednn_log.log import OneDnnLog

BETWEEN = "between phases"


@dataclass(frozen=True)
class Phase:
    """One phase of a mean step. [milliseconds]"""

    name: str
    wall_ms: float
    kinds_ms: dict[str, float]
    """oneDNN's time by kind of primitive, the costliest first."""

    @property
    def onednn_ms(self) -> float:
        """oneDNN's time."""
        return sum(self.kinds_ms.values())

    @property
    def elsewhere_ms(self) -> float:
        """What is not oneDNN's."""
        return max(0.0, self.wall_ms - self.onednn_ms)


def phases_of(log: OneDnnLog) -> list[Phase]:
    """In the order of a step, and last what lies between them; nothing for a log without marks."""
    steps = steps_of(log)
    if not steps.count or steps.wall_ms is None:
        return []
    names = list(dict.fromkeys(
        where.phase for where in log.phase_ms if where.phase and steps.holds(where)
    ))  # fmt: skip
    found = [
        Phase(
            name,
            wall_ms=sum(
                ms for where, ms in log.phase_ms.items()
                if where.phase == name and steps.holds(where)
            ) / steps.count,
            kinds_ms=kinds_of(log, name),
        )
        for name in names
    ]  # fmt: skip
    rest = steps.wall_ms - sum(phase.wall_ms for phase in found)
    between = kinds_of(log, None)
    if found:
        found.append(Phase(BETWEEN, wall_ms=rest, kinds_ms=between))
    return found


def kinds_of(log: OneDnnLog, phase: str | None) -> dict[str, float]:
    """oneDNN's time in a phase of a mean step, by kind; the costliest first."""
    steps = steps_of(log)
    calls = log.calls(lambda where: steps.holds(where) and where.phase == phase)
    kinds: dict[str, float] = {}
    for problem, one in calls.items():
        kinds[problem.kind] = kinds.get(problem.kind, 0.0) + one.total_ms / (steps.count or 1)
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def largest_kinds(phases: Sequence[Phase], count: int) -> list[str]:
    """The kinds that cost most over all phases."""
    totals: dict[str, float] = {}
    for phase in phases:
        for kind, ms in phase.kinds_ms.items():
            totals[kind] = totals.get(kind, 0.0) + ms
    return sorted(totals, key=lambda kind: -totals[kind])[:count]
