"""How far a training had come at what time, from its `metrics.jsonl`: losses, and evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

LAST_SHARE = 0.25
"""Of the time, over which losses are averaged: single steps scatter."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step."""

    seconds: float
    """When it was done, since the first step that counts began."""
    loss: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation."""

    epoch: float
    seconds: float
    """When it was done: of all steps before, and of evaluations with this one."""
    map: float
    map_50: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Mean over the last steps until some time."""

    mean: float
    error: float
    """Standard error of the mean, from the scatter of the steps."""


def points_of(records: Sequence[Mapping[str, Any]], *, after_step: int = 0) -> list[Point]:
    """Steps in order of time. Groups work side by side, from the last step that was everybody's.

    Args:
        records: Of `metrics.jsonl`.
        after_step: The last step that does not count.
    """
    together = 0.0
    apart: dict[int, float] = {}
    points = []
    for one in records:
        if not counts(one, after_step) or one["loss"] is None:
            continue
        if "group" in one:
            at = apart.get(one["group"], together) + one["seconds"]
            apart[one["group"]] = at
        else:
            at = together = max([together, *apart.values()]) + one["seconds"]
            apart = {}
        points.append(Point(seconds=at, loss=one["loss"], images=images_of(one)))
    return sorted(points, key=lambda point: point.seconds)


def map_curve(records: Sequence[Mapping[str, Any]]) -> list[Evaluated]:
    """The evaluations of a run, in order; a metric that does not exist counts as none."""
    found, evaluating = [], 0.0
    for place, one in enumerate(records):
        if one["kind"] != "evaluation":
            continue
        evaluating += one["seconds"]
        points = points_of(records[:place])
        found.append(
            Evaluated(
                epoch=one["epoch"],
                seconds=(points[-1].seconds if points else 0.0) + evaluating,
                map=one["map"] or 0.0,
                map_50=one["map_50"] or 0.0,
            )
        )
    return found


def images_of(step: Mapping[str, Any]) -> int:
    """The images of a step, of its own group."""
    images: int = step["images"]
    return images


def mean_staleness(records: Sequence[Mapping[str, Any]], *, after_step: int = 0) -> float:
    """Of the steps of groups; 0 where all ranks have taken each together."""
    found = [one["staleness"] for one in records if counts(one, after_step) and "staleness" in one]
    return fmean(found) if found else 0.0


def counts(record: Mapping[str, Any], after_step: int) -> bool:
    """Whether it is a step after another."""
    return record["kind"] == "step" and record["step"] > after_step


def loss_at(points: Sequence[Point], seconds: float) -> Loss:
    """The mean loss over the last quarter of the time until then; infinite where it is none."""
    late = [one.loss for one in points if (1 - LAST_SHARE) * seconds < one.seconds <= seconds]
    if not late:
        return Loss(mean=math.inf, error=math.inf)
    return Loss(mean=fmean(late), error=stdev(late) / len(late) ** 0.5 if late[1:] else math.inf)


def images_per_second(points: Sequence[Point]) -> float:
    """Of all groups together."""
    return sum(one.images for one in points) / points[-1].seconds if points else 0.0
