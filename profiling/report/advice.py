"""What to look at next: each finding with how much time it would save at most.

What two findings would save may be the same time, so the numbers do not add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.report.measured import Measured
from profiling.report.words import three


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding."""

    title: str
    evidence: str
    """The numbers that it rests on."""
    todo: str
    section: str
    """Of the page, where it shows."""
    saves_ms: float | None = None
    """At most, of a step, or of a log without steps; None: not known."""


def ordered(found: Sequence[Advice]) -> list[Advice]:
    """What saves most first; what is not known last."""
    return sorted(found, key=lambda one: (one.saves_ms is None, -(one.saves_ms or 0.0)))


def saving(one: Advice, measured: Measured) -> str:
    """How much it would save, in words."""
    if one.saves_ms is None:
        return "How much it would save is not known."
    whole, of = (
        (measured.wall_ms, "of it") if measured.wall_ms else (measured.ms, "of oneDNN's time")
    )
    share = f", {one.saves_ms / whole:.1%} {of}" if whole else ""
    return f"At most {three(one.saves_ms)} ms {measured.unit}{share}."
