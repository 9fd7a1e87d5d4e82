"""What is slower than the machine's peaks allow."""

from collections.abc import Mapping
from types import MappingProxyType

from profiling.efficiency.readable import kind_and_direction, readable
from profiling.onednn_log.dimensions import named_sizes
from profiling.onednn_log.problem import Problem
from profiling.report.advice import Advice
from profiling.report.advice_on_problems import CONVOLUTIONS, MOST, is_fallback
from profiling.report.measured import Measured, MeasuredProblem, parts_of
from profiling.report.words import three, times

LOST_SHARE = 0.02
HALF = 0.5
FEW_CHANNELS = 16
MUCH_FASTER = 0.7
NOTHING: Mapping[Problem, float] = MappingProxyType({})


def lost_to_the_roofline(measured: Measured) -> list[Advice]:
    """Kinds and directions that lose most against the machine's peaks."""
    parts = [part for part in parts_of(measured.problems) if part.kind != "reorder"]
    worst = sorted(parts, key=lambda part: -part.lost_ms)[:MOST]
    found = []
    for part in worst:
        if part.lost_ms <= LOST_SHARE * measured.ms:
            continue
        ideal = part.bounded_ms - part.lost_ms
        first = max(part.problems, key=lambda one: one.lost_ms or 0.0)
        name = kind_and_direction(part.kind, part.direction)
        found.append(
            Advice(
                title=f"{name}: {part.bounded_ms / ideal:.2f} times as long as the roofline allows",
                evidence=f"{three(part.bounded_ms)} ms {measured.unit} in {times(part.calls)}; "
                f"at this machine's peaks it would be {three(ideal)} ms. Most is lost in "
                f"{readable(first.problem)}: {three(first.lost_ms or 0.0)} ms.",
                todo="Sort the table of all problems by what is lost.",
                section="problems",
                saves_ms=part.lost_ms,
            )
        )
    return found


def slow_convolutions(
    measured: Measured, *, alone_ms: Mapping[Problem, float] = NOTHING
) -> list[Advice]:
    """Convolutions below half of the peak rate that cost enough to matter.

    `alone_ms`: of one call of each problem that was run again alone, with warm caches.
    """
    some = [
        one
        for one in measured.problems
        if one.problem.kind in CONVOLUTIONS
        and one.peak_share is not None
        and one.peak_share < HALF
        and one.share > LOST_SHARE
        and one.lost_ms
        and not is_fallback(one.problem)
    ]
    return [
        Advice(
            title=f"{readable(one.problem)}: {one.peak_share:.0%} of the peak rate",
            evidence=f"{three(one.ms)} ms {measured.unit} in {times(one.calls)} of "
            f"{one.problem.implementation}, {one.share:.1%} of oneDNN's time, at "
            f"{one.gflop_per_s:,.0f} GFLOP/s.{compared(one, alone_ms)}",
            todo=why_slow(one, alone_ms),
            section="problems",
            saves_ms=one.lost_ms,
        )
        for one in some[:MOST]
    ]


def compared(one: MeasuredProblem, alone_ms: Mapping[Problem, float]) -> str:
    """What it takes alone, where that is known."""
    alone = alone_ms.get(one.problem)
    return "" if alone is None else f" Alone it takes {three(alone * one.calls)} ms."


def why_slow(one: MeasuredProblem, alone_ms: Mapping[Problem, float]) -> str:
    """What its sizes and its time alone say of it."""
    alone = alone_ms.get(one.problem)
    if alone is not None and alone * one.calls < MUCH_FASTER * one.ms:
        return "The implementation can do better: it is what ran beside it, or before."
    sizes = named_sizes(one.problem.shape)
    groups = sizes.get("g", 1)
    each = min(sizes.get("ic", 0), sizes.get("oc", 0)) // groups
    if each < FEW_CHANNELS:
        of = "of a group meet" if groups > 1 else "meet"
        return f"Only {each} channels {of} here, fewer than a vector holds; wider is faster."
    if alone is not None:
        return "It is the implementation: another one, or another shape, may be faster."
    return (
        "`python -m profiling efficiency` runs it alone: if it is as slow there, it is the "
        "implementation, else what ran beside it."
    )
