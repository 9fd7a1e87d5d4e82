"""What perf counted in a run's steps, as `profile.perf` writes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinanet.errors import InputError
from retinanet.json_objects import read_json_object

ADVICE = "expected what profile.perf=true writes to runs/NAME/perf"


@dataclass(frozen=True)
class Counters:
    """Of one rank."""

    rank: int
    steps: int
    """How many the counts are of."""
    seconds: float
    counts: dict[str, float]
    """Of all steps together; times in milliseconds."""
    not_counted: tuple[str, ...]
    """Events that the machine has no counters for."""

    def a_step(self, name: str) -> float | None:
        """Of a mean step, None where it was not counted."""
        return self.counts[name] / self.steps if name in self.counts else None


def load_counters(file: Path) -> Counters:
    """Read `perf/rank<N>.json`.

    Raises:
        InputError: It cannot be read, or is no such file.
    """
    content = read_json_object(file, advice=ADVICE)
    try:
        return counters_of(content)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: {type(error).__name__}: {error}; {ADVICE}") from error


def counters_of(content: Any) -> Counters:
    """Raises KeyError, TypeError or ValueError where it is something else."""
    steps = len(content["steps"])
    if not steps:
        raise ValueError("steps: none were counted")
    return Counters(
        rank=int(content["rank"]),
        steps=steps,
        seconds=float(content["seconds"]),
        counts={str(name): float(one["value"]) for name, one in content["counters"].items()},
        not_counted=tuple(map(str, content["not_counted"])),
    )
