"""What the log's problems say of how they are made: reorders, fallbacks, large types."""

import re
from collections.abc import Sequence
from dataclasses import replace

from profiling.efficiency.readable import kind_and_direction, readable
from profiling.onednn_log.problem import Problem
from profiling.peaks.peaks import Peaks
from profiling.peaks.roofline import roofline_ms
from profiling.report.advice import Advice
from profiling.report.measured import Measured, MeasuredProblem
from profiling.report.words import three, times

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
