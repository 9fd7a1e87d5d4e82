"""The operators of an analysis as rows of tables."""

from collections import defaultdict
from dataclasses import dataclass

from profiling.trace.analysis import Analysis
from profiling.trace.categories import Category


@dataclass(frozen=True)
class Row:
    """A row of operators.csv: means over the steps."""

    operator: str
    phase: str
    module: str
    calls: float
    self_ms: float
    share: float
    """Of the wall time of a step; 0 to 1."""
    category: str


@dataclass(frozen=True)
class Costly:
    """An operator in a phase, over all modules that call it."""

    operator: str
    phase: str
    category: str
    calls: float
    self_ms: float
    share: float
    modules: tuple[tuple[str, float], ...]
    """Names and their shares of the time, the costliest first; an empty name: not known."""


def rows_of(analysis: Analysis) -> list[Row]:
    """All operators, the costliest first."""
    rows = [
        Row(
            operator=one.name,
            phase=one.phase,
            module=one.module,
            calls=cost.calls / analysis.count,
            self_ms=cost.own_ns / 1e6 / analysis.count,
            share=cost.own_ns / analysis.wall_ns,
            category=one.category.value,
        )
        for one, cost in analysis.operators.items()
    ]
    return sorted(rows, key=lambda row: (-row.self_ms, row.operator, row.phase, row.module))


def costliest_outside_onednn(rows: list[Row]) -> list[Costly]:
    """By operator and phase, the costliest first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.category != Category.ONEDNN.value:
            groups.setdefault((row.operator, row.phase, row.category), []).append(row)
    found = [
        Costly(
            operator=operator,
            phase=phase,
            category=category,
            calls=sum(row.calls for row in group),
            self_ms=sum(row.self_ms for row in group),
            share=sum(row.share for row in group),
            modules=modules_of(group),
        )
        for (operator, phase, category), group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.self_ms, one.operator))


def modules_of(group: list[Row]) -> tuple[tuple[str, float], ...]:
    """The modules of an operator by their share of its time."""
    times: defaultdict[str, float] = defaultdict(float)
    for row in group:
        times[row.module] += row.self_ms
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda item: -item[1])
    return tuple((name, time / total if total else 0.0) for name, time in ordered)
