"""What to look at next."""

from collections.abc import Sequence

from profiling.report.advice import Advice, ordered, saving
from profiling.report.advice_on_others import (
    calls_the_reference_does_not_make,
    fragmented,
    slower_than_alone,
)
from profiling.report.advice_on_problems import (
    fallbacks,
    float32_beside_bf16,
    reorders,
)
from profiling.report.advice_on_ranks import uneven_ranks, uneven_steps
from profiling.report.advice_on_run import (
    many_page_faults,
    mostly_outside,
    not_understood,
    primitives_made_again,
)
from profiling.report.advice_on_speed import lost_to_the_roofline, slow_convolutions
from profiling.report.advice_on_traffic import memory_traffic
from profiling.report.blocks import Block, Section, Suggestion, Suggestions, Text
from profiling.report.material import Material
from profiling.report.words import sentence
from profiling.trace.rows import costliest_outside_onednn, rows_of

OPERATORS = 3
MEANING = (
    "Read off the numbers of this page, what could save most first. What two of them would save "
    "may be the same time, so the numbers do not add up; and they are bounds, not promises."
)


def advice_of(material: Material) -> list[Advice]:
    """All findings, in order."""
    measured, log = material.measured, material.log
    replayed = material.efficiency.problems if material.efficiency else ()
    alone_ms = {one.problem: one.replayed.hot_ms for one in replayed}
    found = [
        *lost_to_the_roofline(measured),
        *reorders(measured),
        *fallbacks(measured),
        *slow_convolutions(measured, alone_ms=alone_ms),
        *float32_beside_bf16(measured, instruction_sets=log.instruction_sets, peaks=material.peaks),
        *mostly_outside(measured, log, operators=outside_onednn(material)),
        *primitives_made_again(measured, log),
        *uneven_ranks(log),
        *uneven_steps(log),
        *many_page_faults(material.counters),
        *not_understood(log),
    ]
    if material.comparison:
        found += calls_the_reference_does_not_make(material.comparison)
    if material.efficiency:
        found += slower_than_alone(material.efficiency)
    if material.traced:
        analysis = material.traced.analysis
        found += fragmented(analysis)
        found += memory_traffic(
            material.traced.trace.bytes_moved,
            bandwidth_gb_per_s=material.peaks.bandwidth_gb_per_s if material.peaks else None,
            step_ms=analysis.wall_ns / 1e6 / analysis.count,
        )
    return ordered(found)


def outside_onednn(material: Material) -> list[tuple[str, float]]:
    """The operators that cost most there and their milliseconds, as far as there is a trace."""
    if material.traced is None:
        return []
    costly = costliest_outside_onednn(rows_of(material.traced.analysis))
    return [(f"{one.operator} ({one.phase})", one.self_ms) for one in costly[:OPERATORS]]


def what_next(material: Material, found: Sequence[Advice]) -> Section:
    """Each with its numbers."""
    blocks: list[Block]
    if found:
        shown = [
            Suggestion(
                sentence(one.title).rstrip("."),
                one.evidence,
                saving(one, material.measured),
                one.todo,
                one.section,
            )
            for one in found
        ]
        blocks = [Text([MEANING]), Suggestions(shown)]
    else:
        looked = (
            ""
            if material.peaks
            else " Much of what is looked for needs the machine's peaks (--peaks)."
        )
        blocks = [Text([f"Nothing stands out in what was given.{looked}"])]
    return Section("next", "What to look at next", blocks)
