"""A measurement that was stopped: what it has come to, for the command that goes on with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from launch.tune.network import AllReduceTime
from launch.tune.step_time import Shape
from profiling.bench.rank_steps import RankSteps
from retinanet.errors import InputError
from retinanet.regular_files import read_bytes

MAY_DIFFER = ("code", "kernel")
"""Between the jobs of one measurement, as between the rounds of an ablation."""


@dataclass(frozen=True, kw_only=True)
class JobsOfShape:
    """The jobs that have run of a shape."""

    shape: Shape
    jobs: tuple[tuple[RankSteps, ...], ...]
    """One of each round, in order."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What has been measured of a host until now."""

    command: str
    environment: Mapping[str, Any]
    """Processor, cores, packages."""
    data: str
    """As `--data` names it."""
    overrides: tuple[str, ...]
    """On top of its configuration."""
    question: Mapping[str, Any]
    """All else that the numbers depend on, but for the machine."""
    measured: tuple[Shape, ...]
    """What there is to measure."""
    shapes: tuple[Shape, ...]
    """That the host has the cores and the memory for."""
    jobs: tuple[JobsOfShape, ...] = ()
    all_reduces: tuple[AllReduceTime, ...] | None = None
    all_reduces_over: str = ""
    evaluation_seconds: float | None = None
    metric_seconds: float | None = None
    update_seconds: float | None = None
    unfinished: Literal[True] = True
    """Marks the file."""

    @property
    def done(self) -> int:
        """Jobs that have run."""
        return sum(len(one.jobs) for one in self.jobs)


def is_unfinished(file: Path) -> bool:
    """Whether a file says of itself that it is; whatever else is wrong with it shows later."""
    try:
        content = json.loads(read_bytes(file))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("unfinished") is True


def require_same(file: Path, found: Unfinished, fresh: Unfinished) -> None:
    """Refuse to go on with what was measured of something else.

    Args:
        file: Where it was read from, for the message.
        found: What was measured until now.
        fresh: What would be measured here and now.

    Raises:
        InputError: Names the first thing that differs, as it was and as it is.
    """
    for before, now in (
        (found.environment, fresh.environment),
        (found.question, fresh.question),
    ):
        for name in {**before, **now}:
            if name not in MAY_DIFFER and before.get(name) != now.get(name):
                raise InputError(
                    f"{file}: its measurement was begun with {name} {before.get(name)}, here it is "
                    f"{now.get(name)}; go on where it began, move the file away, or give another "
                    "--plan"
                )
