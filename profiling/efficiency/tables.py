"""A run's efficiency for programs: rows of `efficiency.csv`, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from profiling.efficiency.efficiency import (
    Efficiency,
    NotReplayed,
    Part,
    ProblemEfficiency,
    cold_ratio,
    hot_ratio,
)
from profiling.efficiency.projection import Projection
from profiling.onednn_log.problem import Problem


@dataclass(frozen=True, slots=True)
class Row:
    """One problem; the names of the fields are the columns. Empty: not measured."""

    kind: str
    direction: str
    types: str
    layouts: str
    attributes: str
    auxiliary: str
    shape: str
    implementation: str
    """In the run."""
    replay_implementation: str
    calls: int
    measured_ms: float
    """Of all calls."""
    measured_a_call_ms: float
    hot_a_call_ms: float | None
    cold_a_call_ms: float | None
    roofline_a_call_ms: float | None
    hot_ratio: float | None
    cold_ratio: float | None
    lost_ms: float | None
    replays: int | None
    """Runs of which the replay's times are medians."""
    why_not_replayed: str


COLUMNS = tuple(field.name for field in fields(Row))


def rows_of(found: Efficiency) -> list[Row]:
    """Replayed problems, those that lose most first; then the others."""
    return [*map(replayed_row, found.problems), *map(not_replayed_row, found.not_replayed)]


def replayed_row(one: ProblemEfficiency) -> Row:
    """A problem with a replay."""
    return Row(
        **identity(one.problem),
        replay_implementation=one.replayed.implementation,
        calls=one.calls,
        measured_ms=one.measured_ms,
        measured_a_call_ms=one.measured_ms / one.calls,
        hot_a_call_ms=one.replayed.hot_ms,
        cold_a_call_ms=one.replayed.cold_ms,
        roofline_a_call_ms=one.roofline_ms,
        hot_ratio=hot_ratio(one),
        cold_ratio=cold_ratio(one),
        lost_ms=one.lost_ms,
        replays=one.replayed.runs,
        why_not_replayed="",
    )


def not_replayed_row(one: NotReplayed) -> Row:
    """A problem without."""
    return Row(
        **identity(one.problem),
        replay_implementation="",
        calls=one.calls,
        measured_ms=one.measured_ms,
        measured_a_call_ms=one.measured_ms / one.calls,
        hot_a_call_ms=None,
        cold_a_call_ms=None,
        roofline_a_call_ms=None,
        hot_ratio=None,
        cold_ratio=None,
        lost_ms=None,
        replays=None,
        why_not_replayed=one.why,
    )


def identity(problem: Problem) -> dict[str, Any]:
    """The columns that tell a problem from others."""
    return {
        "kind": problem.kind,
        "direction": problem.direction,
        "types": problem.types,
        "layouts": problem.layouts,
        "attributes": problem.attributes,
        "auxiliary": problem.auxiliary,
        "shape": problem.shape,
        "implementation": problem.implementation,
    }


def as_json(
    found: Efficiency, projection: Projection | None, *, files: Sequence[str]
) -> dict[str, Any]:
    """Everything; milliseconds of all calls unless a name says otherwise, shares 0 to 1."""
    replay = found.replay
    return {
        "files": list(files),
        "replay": {
            "runner": replay.runner,
            "onednn": replay.version,
            "instruction_set": replay.instruction_set,
            "conditions": asdict(replay.conditions),
        },
        "not_as_in_the_run": list(found.cautions),
        "efficiency": part_json(found.total),
        "measured_ms": found.measured_ms,
        "not_replayed_ms": found.not_replayed_ms,
        "not_replayed_share": found.not_replayed_share,
        "outside_of_steps_ms": found.outside_ms,
        "parts": [part_json(part) for part in found.parts],
        "projection": projection_json(projection),
        "problems": [asdict(row) for row in rows_of(found)],
    }


def part_json(part: Part) -> dict[str, Any]:
    """A part with its ratios."""
    return {
        **asdict(part),
        "hot_ratio": hot_ratio(part),
        "cold_ratio": cold_ratio(part),
        "lost_ms": part.lost_ms,
    }


def projection_json(projection: Projection | None) -> dict[str, Any] | None:
    """A step at each speed; None where steps are not known."""
    if projection is None:
        return None
    return asdict(projection)
