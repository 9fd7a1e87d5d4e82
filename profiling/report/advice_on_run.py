"""What a log says of the run around its problems: phases, primitives made, lines left."""

from collections.abc import Sequence

from profiling.onednn_log.log import OneDnnLog
from profiling.report.advice import Advice
from profiling.report.counters import Counters
from profiling.report.measured import Measured
from profiling.report.phases import phases_of
from profiling.report.words import three
from profiling.significant import significant

MANY_FAULTS = 20_000
"""A step; 80 MB of fresh memory."""


def mostly_outside(
    measured: Measured, log: OneDnnLog, *, operators: Sequence[tuple[str, float]] = ()
) -> list[Advice]:
    """More of a step outside of oneDNN than inside.

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
    """Primitives that were not in the cache although they had been made before."""
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
    """Lines that are in no number of the page."""
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
    """Memory that goes back to the kernel and is asked for again in every step."""
    found = [(one.a_step("page-faults") or 0.0, one) for one in counters]
    faults, one = max(found, key=lambda pair: pair[0], default=(0.0, None))
    if one is None or faults < MANY_FAULTS:
        return []
    advice = Advice(
        title="Memory is given back and asked for again",
        evidence=f"{faults:,.0f} page faults a step of {significant(one.seconds / one.steps, 3)} s"
        f"{f', rank {one.rank}' if len(counters) > 1 else ''}.",
        todo="Let the allocator keep its memory (here: engine.allocator; elsewhere "
        "GLIBC_TUNABLES, tcmalloc or jemalloc), and count again.",
        section="ranks",
    )
    return [advice]
