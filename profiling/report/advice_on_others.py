"""What is to be learnt from what was given beside the log: a reference, a replay, a trace."""

from profiling.compare.comparison import Comparison, Pair
from profiling.efficiency.efficiency import Efficiency, hot_ratio
from profiling.efficiency.readable import kind_and_direction, readable
from profiling.report.advice import Advice
from profiling.report.words import three, times
from profiling.trace.analysis import Analysis
from profiling.trace.verdict import gap_share, short_share

MOST = 3
ALIKE = 0.25
EXTRA_SHARE = 0.01
LOST_SHARE = 0.05
GAP_SHARE = 0.05
SHORT_SHARE = 0.1


def calls_the_reference_does_not_make(comparison: Comparison) -> list[Advice]:
    """Work that the other log shows to be unnecessary, or to be done elsewhere."""
    if alike_share(comparison) < ALIKE:
        return []  # another model, image size or type: every call is one that the other lacks
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in comparison.only_one:
        if pair.extra_calls > 0:
            groups.setdefault((pair.question.kind, pair.question.direction), []).append(pair)
    whole = sum(pair.first.ms for pair in comparison.pairs)
    unit = "a step" if comparison.is_by_step else "in the log"
    found = []
    for (kind, direction), pairs in groups.items():
        extra = sum(pair.extra_ms for pair in pairs)
        if extra <= EXTRA_SHARE * whole:
            continue
        first = pairs[0]
        found.append(
            Advice(
                title=f"{kind_and_direction(kind, direction)}: the reference makes fewer calls",
                evidence=f"{times(sum(pair.extra_calls for pair in pairs))} more {unit} than "
                f"{comparison.second.name}, {three(extra)} ms. The costliest: "
                f"{first.question.shape} {first.question.types}, {three(first.extra_ms)} ms.",
                todo="Find out who asks for them: gradients of frozen layers, layouts that change, "
                "batches of another size; or the reference has other kernels for them.",
                section="comparison",
                saves_ms=extra,
            )
        )
    return sorted(found, key=lambda one: -(one.saves_ms or 0.0))[:MOST]


def alike_share(comparison: Comparison) -> float:
    """Of the log's time, what is in questions that the reference asks too."""
    whole = sum(pair.first.ms for pair in comparison.pairs)
    both = sum(pair.first.ms for pair in comparison.pairs if pair.second.calls)
    return both / whole if whole else 0.0


def slower_than_alone(efficiency: Efficiency) -> list[Advice]:
    """Primitives that take longer in the run than by themselves."""
    total = efficiency.total
    ratio = hot_ratio(total)
    if ratio is None or total.lost_ms <= LOST_SHARE * total.measured_ms:
        return []
    count = efficiency.steps.count or 1
    first = efficiency.problems[0]
    advice = Advice(
        title="Primitives are slower in the run than alone",
        evidence=f"Alone, with warm caches, they take {ratio:.0%} of the time. Most is lost in "
        f"{readable(first.problem)}: {three(first.lost_ms / count)} ms.",
        todo="Cold caches, neighbours on the memory bus, and cores that are shared do that: pin "
        "ranks, give each its own memory node, and see that nothing else runs.",
        section="efficiency",
        saves_ms=total.lost_ms / count,
    )
    return [advice]


def fragmented(analysis: Analysis) -> list[Advice]:
    """Gaps between operators, and operators too short to be worth their call."""
    found = []
    gaps = gap_share(analysis)
    if gaps > GAP_SHARE:
        found.append(
            Advice(
                title="Time in which no operator runs",
                evidence=f"{gaps:.1%} of the traced time: Python, waiting for data, or for ranks.",
                todo="The timeline shows in which phase.",
                section="trace",
                saves_ms=sum(analysis.gaps_ns.values()) / 1e6 / analysis.count,
            )
        )
    short = short_share(analysis)
    if short > SHORT_SHARE:
        found.append(
            Advice(
                title="Many short operators",
                evidence=f"{short:.1%} of the operators' time is in pieces shorter than 0.1 ms.",
                todo="Merge small operators: fused optimizers, foreach, compiled losses.",
                section="trace",
                saves_ms=short * analysis.operator_ns / 1e6 / analysis.count,
            )
        )
    return found
