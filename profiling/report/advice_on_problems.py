"""What the log's problems say of how they are made: reorders, fallbacks, large types.

TODO-DOC What is slower than the machine's peaks allow.

TODO-DOC What the bytes that a step's operators move say, at the bandwidth that was measured.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from profiling.efficiency.analysis import kind_and_direction, readable
from profiling.onednn_log.work import Problem, named_sizes
from profiling.peaks.peaks import Peaks, roofline_ms
from profiling.report.advice import Advice
from profiling.report.material import Measured, MeasuredProblem, parts_of
from profiling.report.page import three, times
from profiling.trace.operators import Category, category_of
from profiling.trace.trace import BytesMoved, MovedRow

MOST = 5
"""Findings of one sort."""
REORDER_SHARE = 0.05
FALLBACK_SHARE = 0.005
FLOAT32_SHARE = 0.05
REFERENCE = re.compile(r"(^|[:_])ref([:_]|$)")
CONVOLUTIONS = ("convolution", "deconvolution")
HAS_BF16 = re.compile(r"bfloat16|bf16|AMX|AVX10", re.IGNORECASE)


def reorders(measured: Measured) -> list[Advice]:
    """Layouts that change between operators."""
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
    """Whether the library had nothing better: a reference, or a convolution by way of GEMM."""
    name = problem.implementation
    by_gemm = problem.kind in CONVOLUTIONS and name.startswith("gemm")
    return by_gemm or REFERENCE.search(name) is not None


def fallbacks(measured: Measured) -> list[Advice]:
    """Implementations that are not made for this machine."""
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
    return sorted(found, key=lambda one: -(one.saves_ms or 0.0))[:MOST]


def in_bf16(problem: Problem) -> Problem:
    """The same problem with BF16 in place of float32."""
    memories = tuple(
        replace(one, type="bf16") if one.type == "f32" else one for one in problem.memories
    )
    return replace(problem, memories=memories)


def float32_beside_bf16(
    measured: Measured, *, instruction_sets: Sequence[str], peaks: Peaks | None
) -> list[Advice]:
    """Arithmetic in float32 on a machine that has it in BF16."""
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
    """Time beyond the roofline of the same problems in BF16."""
    ideal = [roofline_ms(in_bf16(one.problem), peaks) for one in some]
    if any(one is None for one in ideal):
        return None
    pairs = zip(some, ideal, strict=True)
    return sum(max(0.0, one.ms - one.calls * (bound or 0.0)) for one, bound in pairs)


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
