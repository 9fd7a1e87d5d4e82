"""What a recipe gives its worker: the thing to time, ready to run.

A recipe is a module with `prepare(workload: Workload, **options) -> Prepared`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class PhaseName(Protocol):
    """Has the name of the phase that runs."""

    @property
    def name(self) -> str:
        """Such as `forward`; empty outside of all phases."""


@dataclass(frozen=True)
class Prepared:
    """Something that can be run again and again."""

    run: Callable[[], Mapping[str, float]]
    """Does the thing once; returns what is worth keeping of it beside its time."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers that hold for every run."""
    phase: PhaseName | None = None
    """Knows which phase of a run is going on, where it has several."""
    compiled_bytes: Callable[[], int] | None = None
    """Bytes that the compiled graphs of a run move, where it has such graphs: no operator is called
    in them that could be counted."""
