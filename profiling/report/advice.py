"""What to look at next: each finding with how much time it would save at most.

What two findings would save may be the same time, so the numbers do not add up. Findings rest on
the log's problems (reorders, fallbacks, float32, what is slower than the peaks allow), on the log
around them (phases, primitives made, lines left, uneven ranks and steps), and on what was given
beside the log (a reference, a replay, a trace, counters).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from types import MappingProxyType

from common.console import significant
from profiling.compare import Comparison, Pair
from profiling.efficiency_analysis import Efficiency, hot_ratio
from profiling.onednn_log.log import OneDnnLog
from profiling.onednn_log.work import Problem, kind_and_direction, named_sizes, readable
from profiling.peaks import Peaks, roofline_ms
from profiling.report.material import Counters, Measured, MeasuredProblem, parts_of, phases_of
from profiling.report.page import three, times
from profiling.trace.analysis import Analysis, gap_share, short_share
from profiling.trace.operators import Category, category_of
from profiling.trace.trace import BytesMoved, MovedRow


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


def saving(one: Advice, measured: Measured) -> str:
    """Return how much it would save, in words."""
    if one.saves_ms is None:
        return "How much it would save is not known."
    whole, of = (
        (measured.wall_ms, "of it") if measured.wall_ms else (measured.ms, "of oneDNN's time")
    )
    share = f", {one.saves_ms / whole:.1%} {of}" if whole else ""
    return f"At most {three(one.saves_ms)} ms {measured.unit}{share}."


MOST_PROBLEMS = 5
"""Findings of one sort."""
REORDER_SHARE = 0.05
FALLBACK_SHARE = 0.005
FLOAT32_SHARE = 0.05
REFERENCE = re.compile(r"(^|[:_])ref([:_]|$)")
CONVOLUTIONS = ("convolution", "deconvolution")
HAS_BF16 = re.compile(r"bfloat16|bf16|AMX|AVX10", re.IGNORECASE)


def reorders(measured: Measured) -> list[Advice]:
    """Advise on layouts that change between operators."""
    some = [one for one in measured.problems if one.problem.kind == "reorder"]
    total = sum(one.ms for one in some)
    if not some or total <= REORDER_SHARE * measured.ms:
        return []
    evidence = (
        f"{three(total)} ms {measured.unit} in {times(sum(one.calls for one in some))}, "
        f"{total / measured.ms:.1%} of oneDNN's time. The costliest: "
        f"{readable(some[0].problem)}, {three(some[0].ms)} ms."
    )
    advice = Advice(
        title="Reorders: layouts or types change between operators",
        evidence=evidence,
        todo="Keep tensors in one layout from operator to operator (channels_last), and weights "
        "in the layout that their convolution takes.",
        section="problems",
        saves_ms=total,
    )
    return [advice]


def is_fallback(problem: Problem) -> bool:
    """Return whether it is a last resort: a reference, or a convolution by way of GEMM."""
    name = problem.implementation
    by_gemm = problem.kind in CONVOLUTIONS and name.startswith("gemm")
    return by_gemm or REFERENCE.search(name) is not None


def fallbacks(measured: Measured) -> list[Advice]:
    """Advise on implementations that are not made for this machine."""
    groups: dict[tuple[str, str, str], list[MeasuredProblem]] = {}
    for one in measured.problems:
        if is_fallback(one.problem):
            key = (one.problem.kind, one.problem.direction, one.problem.implementation)
            groups.setdefault(key, []).append(one)
    found = []
    for (kind, direction, implementation), some in groups.items():
        total = sum(one.ms for one in some)
        if total <= FALLBACK_SHARE * measured.ms:
            continue
        saves = sum(one.ms if one.lost_ms is None else one.lost_ms for one in some)
        found.append(
            Advice(
                title=f"{kind_and_direction(kind, direction)} falls back to {implementation}",
                evidence=f"{three(total)} ms {measured.unit} in {len(some)} problems, "
                f"{total / measured.ms:.1%} of oneDNN's time. The costliest: "
                f"{readable(some[0].problem)}.",
                todo="A log with ONEDNN_VERBOSE=dispatch says why better ones were passed over; "
                "often it is a type, a layout or an attribute that they do not take.",
                section="problems",
                saves_ms=saves,
            )
        )
    return sorted(found, key=lambda one: -(one.saves_ms or 0.0))[:MOST_PROBLEMS]


def in_bf16(problem: Problem) -> Problem:
    """Return the same problem with BF16 in place of float32."""
    memories = tuple(
        replace(one, type="bf16") if one.type == "f32" else one for one in problem.memories
    )
    return replace(problem, memories=memories)


def float32_beside_bf16(
    measured: Measured, *, instruction_sets: Sequence[str], peaks: Peaks | None
) -> list[Advice]:
    """Advise on arithmetic in float32 on a machine that has it in BF16."""
    rates = peaks.matrix_gflop_per_s if peaks else {}
    if peaks and rates.get("bf16", 0.0) < 1.2 * rates.get("f32", 0.0):
        return []
    if not peaks and not any(map(HAS_BF16.search, instruction_sets)):
        return []
    some = [
        one
        for one in measured.problems
        if one.problem.is_computing
        and {m.type for m in one.problem.memories if m.is_there} == {"f32"}
    ]
    total = sum(one.ms for one in some)
    if not some or total <= FLOAT32_SHARE * measured.ms:
        return []
    by_kind = dict.fromkeys(kind_and_direction(p.problem.kind, p.problem.direction) for p in some)
    advice = Advice(
        title="Arithmetic in float32 on a machine that has BF16",
        evidence=f"{three(total)} ms {measured.unit}, {total / measured.ms:.1%} of oneDNN's time: "
        f"{', '.join(by_kind)}."
        + (f" Peaks: {rates['f32']:,.0f} GFLOP/s in float32, {rates['bf16']:,.0f} in BF16."
           if "f32" in rates else ""),
        todo="Train under BF16 autocast (here: engine.precision=bf16), weights kept in float32.",
        section="problems",
        saves_ms=saved_in_bf16(some, peaks) if peaks else None,
    )  # fmt: skip
    return [advice]


def saved_in_bf16(some: Sequence[MeasuredProblem], peaks: Peaks) -> float | None:
    """Return time beyond the roofline of the same problems in BF16."""
    ideal = [roofline_ms(in_bf16(one.problem), peaks) for one in some]
    if any(one is None for one in ideal):
        return None
    pairs = zip(some, ideal, strict=True)
    return sum(max(0.0, one.ms - one.calls * (bound or 0.0)) for one, bound in pairs)


SLOW_SHARE = 0.02
HALF = 0.5
FEW_CHANNELS = 16
MUCH_FASTER = 0.7
NOTHING: Mapping[Problem, float] = MappingProxyType({})


def lost_to_the_roofline(measured: Measured) -> list[Advice]:
    """Advise on kinds and directions that lose most against the machine's peaks."""
    parts = [part for part in parts_of(measured.problems) if part.kind != "reorder"]
    worst = sorted(parts, key=lambda part: -part.lost_ms)[:MOST_PROBLEMS]
    found = []
    for part in worst:
        if part.lost_ms <= SLOW_SHARE * measured.ms:
            continue
        ideal = part.bounded_ms - part.lost_ms
        first = max(part.problems, key=lambda one: one.lost_ms or 0.0)
        found.append(
            Advice(
                title=f"{part.name}: {part.bounded_ms / ideal:.2f} times as long as the roofline "
                "allows",
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
    """Advise on costly convolutions below half of the peak rate.

    `alone_ms`: of one call of each problem that was run again alone, with warm caches.
    """
    some = [
        one
        for one in measured.problems
        if one.problem.kind in CONVOLUTIONS
        and one.peak_share is not None
        and one.peak_share < HALF
        and one.share > SLOW_SHARE
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
        for one in some[:MOST_PROBLEMS]
    ]


def compared(one: MeasuredProblem, alone_ms: Mapping[Problem, float]) -> str:
    """Return what it takes alone, where that is known."""
    alone = alone_ms.get(one.problem)
    return "" if alone is None else f" Alone it takes {three(alone * one.calls)} ms."


def why_slow(one: MeasuredProblem, alone_ms: Mapping[Problem, float]) -> str:
    """Return the likely reason, from its sizes and its time alone."""
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


MANY_FAULTS = 20_000
"""A step; 80 MB of fresh memory."""


def mostly_outside(
    measured: Measured, log: OneDnnLog, *, operators: Sequence[tuple[str, float]] = ()
) -> list[Advice]:
    """Advise where more of a step is outside of oneDNN than inside.

    `operators`: those outside of oneDNN and their milliseconds a step, the costliest first.
    """
    if measured.wall_ms is None:
        return []
    outside = measured.wall_ms - measured.ms
    if outside <= measured.ms:
        return []
    phases = sorted(phases_of(log), key=lambda phase: -phase.elsewhere_ms)
    largest = (
        f" Most of it is in {phases[0].name}: {three(phases[0].elsewhere_ms)} ms." if phases else ""
    )
    named = ", ".join(f"{name} {three(milliseconds)} ms" for name, milliseconds in operators)
    advice = Advice(
        title="More time outside of oneDNN than inside",
        evidence=f"{three(outside)} ms of a step of {three(measured.wall_ms)} ms are not in "
        f"oneDNN's primitives.{largest}",
        todo=f"In the trace cost most: {named}."
        if operators
        else "A trace names the operators: train with profile.trace.steps.",
        section="trace" if operators else "phases",
        saves_ms=outside,
    )
    return [advice]


def primitives_made_again(measured: Measured, log: OneDnnLog) -> list[Advice]:
    """Advise on primitives that are made again since the cache has lost them."""
    misses = sum(count for state, count in log.creation_states.items() if "cache_miss" in state)
    again = misses - len(log.creations)
    if again <= 0:
        return []
    total = sum(one.total_ms for one in log.creations.values())
    advice = Advice(
        title="Primitives are made again and again",
        evidence=f"{misses:,} were made (cache_miss) of {len(log.creations):,} different ones; "
        f"making took {three(total)} ms of the log.",
        todo="ONEDNN_PRIMITIVE_CACHE_CAPACITY may be too small for so many shapes, or shapes "
        "change from step to step.",
        section="log",
        saves_ms=total / (measured.steps.count or 1),
    )
    return [advice]


def not_understood(log: OneDnnLog) -> list[Advice]:
    """Advise on lines that are in no number of the page."""
    if not log.not_understood_count:
        return []
    advice = Advice(
        title="Lines of the log are not understood",
        evidence=f"{log.not_understood_count:,} of {log.onednn_lines:,} lines look like oneDNN's "
        "and are in no number here.",
        todo="See them: a log may be cut or mixed with other output, or of a newer oneDNN.",
        section="log",
    )
    return [advice]


def many_page_faults(counters: Sequence[Counters]) -> list[Advice]:
    """Advise on memory that is returned to the kernel and requested again in every step."""
    rank = max(counters, key=lambda rank: rank.a_step("page-faults") or 0.0, default=None)
    faults = (rank.a_step("page-faults") or 0.0) if rank else 0.0
    if rank is None or faults < MANY_FAULTS:
        return []
    seconds = significant(rank.seconds / rank.steps, 3)
    advice = Advice(
        title="Memory is given back and asked for again",
        evidence=f"{faults:,.0f} page faults a step of {seconds} s"
        f"{f', rank {rank.rank}' if len(counters) > 1 else ''}.",
        todo="Let the allocator keep its memory (here: engine.allocator; elsewhere "
        "GLIBC_TUNABLES, tcmalloc or jemalloc), and count again.",
        section="ranks",
    )
    return [advice]


Step = tuple[int | None, int | None]
"""Rank and number."""
UNEVEN = 0.05
UNEVEN_STEPS = 0.2


def uneven_ranks(log: OneDnnLog) -> list[Advice]:
    """Advise on a rank that is slower than the others, for which they wait."""
    if len(log.ranks) < 2:
        return []
    found = []
    for words, milliseconds in (
        ("in oneDNN", means_by_rank(onednn_ms_by_step(log))),
        ("from begin to end of a step", means_by_rank(wall_ms_by_step(log))),
    ):
        if len(milliseconds) < 2 or not mean(milliseconds.values()):
            continue
        slowest = max(milliseconds, key=lambda rank: milliseconds[rank])
        lost = milliseconds[slowest] - mean(milliseconds.values())
        if lost <= UNEVEN * mean(milliseconds.values()):
            continue
        title = f"Rank {slowest} is slower than the others {words}"
        listed = ", ".join(
            f"rank {rank} {three(ms)} ms" for rank, ms in sorted(milliseconds.items())[:16]
        )
        more = f", and {len(milliseconds) - 16} more" if len(milliseconds) > 16 else ""
        found.append(
            Advice(
                title=title,
                evidence=f"Time a step {words}: {listed}{more}; on average "
                f"{three(mean(milliseconds.values()))} ms.",
                todo="Ranks wait for the slowest. Look at its cores and its memory node: another "
                "program there, fewer cores, or memory of another node.",
                section="ranks",
                saves_ms=lost,
            )
        )
    return found


def uneven_steps(log: OneDnnLog) -> list[Advice]:
    """Advise on a step that is much longer than the others of its rank."""
    times = {where: ms for where, ms in log.phase_ms.items() if where.phase is None}
    if len({where.step for where in times}) < 2:
        return []
    slowest = max(times, key=lambda where: times[where])
    others = mean(ms for where, ms in times.items() if where.step != slowest.step)
    if times[slowest] <= (1 + UNEVEN_STEPS) * others:
        return []
    rank = f" of rank {slowest.rank}" if slowest.rank is not None else ""
    advice = Advice(
        title=f"Step {slowest.step}{rank} is longer than the others",
        evidence=f"{three(times[slowest])} ms, the others {three(others)} ms on average.",
        todo="Means over so few steps say little then: log more of them, later in the run, and "
        "see that nothing else runs on the machine.",
        section="ranks",
        saves_ms=(times[slowest] - others) / len(times),
    )
    return [advice]


def means_by_rank(of_steps: Mapping[Step, float]) -> dict[int, float]:
    """Return the mean of each rank's whole steps."""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), milliseconds in of_steps.items():
        if rank is not None:
            by_rank.setdefault(rank, []).append(milliseconds)
    return {rank: mean(times) for rank, times in by_rank.items()}


def wall_ms_by_step(log: OneDnnLog) -> dict[Step, float]:
    """Return the time from begin to end of each whole step. [milliseconds]"""
    return {where[:2]: ms for where, ms in log.phase_ms.items() if where.phase is None}


def onednn_ms_by_step(log: OneDnnLog) -> dict[Step, float]:
    """Return oneDNN's time in each whole step. [milliseconds]"""
    found = dict.fromkeys(wall_ms_by_step(log), 0.0)
    for where, problems in log.executions.items():
        if where[:2] in found:
            found[where[:2]] += sum(calls.total_ms for calls in problems.values())
    return found


MOST = 3
ALIKE = 0.25
EXTRA_SHARE = 0.01
LOST_SHARE = 0.05
GAP_SHARE = 0.05
SHORT_SHARE = 0.1


def calls_the_reference_does_not_make(comparison: Comparison) -> list[Advice]:
    """Advise on calls that the reference does without, or makes elsewhere."""
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
    """Return the share of the log's time in questions that the reference has too."""
    whole = sum(pair.first.ms for pair in comparison.pairs)
    both = sum(pair.first.ms for pair in comparison.pairs if pair.second.calls)
    return both / whole if whole else 0.0


def slower_than_alone(efficiency: Efficiency) -> list[Advice]:
    """Advise on primitives that take longer in the run than alone."""
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
    """Advise on gaps between operators, and on operators too short to be worth their call."""
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


WORTHWHILE = 0.05
"""Share of a step from which on it is a finding."""

CONVOLUTION_OPERATORS = ("aten::convolution", "torch_ipex::convolution")


def memory_traffic(
    moved: BytesMoved | None, *, bandwidth_gb_per_s: float | None, step_ms: float
) -> list[Advice]:
    """Return how long a step's bytes take at the memory's bandwidth, as a share of the step.

    What could be saved is the traffic of operators that neither multiply matrices nor are our own
    kernels: fused with what makes their arguments, they need not read them.
    """
    if moved is None or not bandwidth_gb_per_s or not step_ms:
        return []
    milliseconds = moved.total / bandwidth_gb_per_s / 1e6
    fusible = [row for row in moved.rows if is_fusible(row)]
    saves = sum(row.total for row in fusible) / bandwidth_gb_per_s / 1e6
    if saves <= WORTHWHILE * step_ms:
        return []
    first = ", ".join(
        f"{row.operator} ({row.phase}) {three(row.total / 1e9)} GB" for row in fusible[:3]
    )
    advice = Advice(
        title="Memory traffic of small operators",
        evidence=f"A step's operators read and write {three(moved.total / 1e9)} GB. At the "
        f"measured {three(bandwidth_gb_per_s)} GB/s that takes {three(milliseconds)} ms, "
        f"{milliseconds / step_ms:.0%} of the step, as far as it is not in caches; "
        f"{three(saves)} ms of them outside convolutions, matrix products and our kernels: "
        f"{first}.",
        todo="Fuse them with the operators that make their arguments, let them work in place, or "
        "keep values in BF16.",
        section="trace",
        saves_ms=saves,
    )
    return [advice]


def is_fusible(row: MovedRow) -> bool:
    """Return whether an operator does little with each byte."""
    own = "::" not in row.operator  # as `retinanet.engine.kernel_calls` has them
    return (
        not own
        and not row.operator.startswith(CONVOLUTION_OPERATORS)
        and category_of(row.operator) == Category.OTHER
    )
