"""oneDNN's own time of the same steps, from its log, beside what the trace tells."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.onednn_log.log import OneDnnLog, Where
from profiling.trace.analysis import Analysis
from retinanet.errors import InputError


@dataclass
class BesideLog:
    """Means over the steps that count. [ms]"""

    log_ms: dict[str, float]
    """oneDNN's own time, by phase of the trace."""
    other_ms: float
    """In phases that the trace does not have."""
    kinds_ms: dict[str, float]
    """The same by what it did: `convolution backward_data`; the costliest first."""
    has_steps: bool
    """Whether the log tells steps apart; else it was taken as a whole."""

    @property
    def total_ms(self) -> float:
        """Of a step."""
        return sum(self.log_ms.values()) + self.other_ms


def lay_beside(analysis: Analysis, log: OneDnnLog) -> BesideLog:
    """Take from a log what belongs to the steps of a trace.

    Steps are matched by number, phases by name. A log without marks is taken as a whole, beside a
    trace that is.

    Raises:
        InputError: They do not fit: other steps, several ranks, marks in only one of them.
    """
    name = ", ".join(log.files)
    if len(log.ranks) > 1:
        raise InputError(f"--onednn-log: {name} has several ranks; give that of the trace's rank")
    numbers = analysis.steps.numbers
    if analysis.steps.are_marked:
        missing = [number for number in numbers if number not in log.steps]
        if missing:
            raise InputError(f"--onednn-log: {name} {what_it_has(log.steps, missing)}")
    elif log.steps:
        raise InputError(f"--onednn-log: {name} marks steps, the trace does not; they cannot match")
    places = [where for where in log.executions if where.step in numbers]
    return BesideLog(
        log_ms=by_phase(log, places, analysis),
        other_ms=other_phases(log, places, analysis),
        kinds_ms=by_kind(log, places, steps=len(numbers)),
        has_steps=bool(log.steps),
    )


def what_it_has(have: Sequence[int], missing: Sequence[int | None]) -> str:
    """Why steps cannot be matched, and what to do."""
    if not have:
        return "marks no steps; train with profile.onednn.steps and profile.trace.steps alike"
    some = ", ".join(map(str, missing))
    return f"has steps {', '.join(map(str, have))}, and not {some}; choose with --step"


def by_phase(log: OneDnnLog, places: Sequence[Where], analysis: Analysis) -> dict[str, float]:
    """Of each phase of the trace, if the log names it."""
    found = dict.fromkeys(analysis.steps.phases, 0.0)
    for where in places:
        if where.phase in found:
            found[where.phase] += time_of(log, where) / analysis.count
    return found


def other_phases(log: OneDnnLog, places: Sequence[Where], analysis: Analysis) -> float:
    """Of phases that the trace does not have, and of none."""
    return (
        sum(time_of(log, where) for where in places if where.phase not in analysis.steps.phases)
        / analysis.count
    )


def by_kind(log: OneDnnLog, places: Sequence[Where], *, steps: int) -> dict[str, float]:
    """By kind of primitive and direction."""
    found: defaultdict[str, float] = defaultdict(float)
    for where in places:
        for problem, calls in log.executions[where].items():
            direction = "" if problem.direction == "undef" else f" {problem.direction}"
            found[f"{problem.kind}{direction}"] += calls.total_ms / steps
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def time_of(log: OneDnnLog, where: Where) -> float:
    """All executions at a place. [ms]"""
    return sum(calls.total_ms for calls in log.executions[where].values())
