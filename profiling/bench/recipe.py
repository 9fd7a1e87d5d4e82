"""What a recipe gives its worker: the thing to time, ready to run.

A recipe is a module with `prepare(workload: Workload, **options) -> Prepared`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Prepared:
    """Something that can be run again and again."""

    run: Callable[[], Mapping[str, float]]
    """Does the thing once; returns what is worth keeping of it beside its time."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers that hold for every run."""
