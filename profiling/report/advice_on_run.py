"""What a log says of the run around its problems: phases, ranks, primitives made, lines left."""

from collections.abc import Mapping, Sequence
from statistics import mean

from profiling.onednn_log.log import OneDnnLog
from profiling.report.advice import Advice
from profiling.report.counters import Counters
from profiling.report.measured import Measured
from profiling.report.phases import phases_of
from profiling.report.words import three

Step = tuple[int | None, int | None]
"""Rank and number."""
UNEVEN = 0.05
UNEVEN_STEPS = 0.2
MANY_FAULTS = 20_000
"""A step; 80 MB of fresh memory."""


def mostly_outside(measured: Measured, log: OneDnnLog) -> list[Advice]:
    """More of a step outside of oneDNN than inside."""
    if measured.wall_ms is None:
        return []
    outside = measured.wall_ms - measured.ms
    if outside <= measured.ms:
        return []
    phases = sorted(phases_of(log), key=lambda phase: -phase.elsewhere_ms)
    largest = (
        f" Most of it is in {phases[0].name}: {three(phases[0].elsewhere_ms)} ms." if phases else ""
    )
    advice = Advice(
        title="More time outside of oneDNN than inside",
        evidence=f"{three(outside)} ms of a step of {three(measured.wall_ms)} ms are not in "
        f"oneDNN's primitives.{largest}",
        todo="A trace names the operators: profile.trace.steps, then python -m profiling trace.",
        section="phases",
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


def uneven_ranks(log: OneDnnLog) -> list[Advice]:
    """A rank that is slower than the others, for which they wait."""
    if len(log.ranks) < 2:
        return []
    found = []
    for words, times in (
        ("in oneDNN", means_by_rank(onednn_ms_by_step(log))),
        ("from begin to end of a step", means_by_rank(wall_ms_by_step(log))),
    ):
        if len(times) < 2 or not mean(times.values()):
            continue
        slowest = max(times, key=lambda rank: times[rank])
        lost = times[slowest] - mean(times.values())
        if lost <= UNEVEN * mean(times.values()):
            continue
        title = f"Rank {slowest} is slower than the others {words}"
        listed = ", ".join(f"rank {rank} {three(ms)} ms" for rank, ms in sorted(times.items())[:16])
        more = f", and {len(times) - 16} more" if len(times) > 16 else ""
        found.append(
            Advice(
                title=title,
                evidence=f"Time a step {words}: {listed}{more}; on average "
                f"{three(mean(times.values()))} ms.",
                todo="Ranks wait for the slowest. Look at its cores and its memory node: another "
                "program there, fewer cores, or memory of another node.",
                section="ranks",
                saves_ms=lost,
            )
        )
    return found


def uneven_steps(log: OneDnnLog) -> list[Advice]:
    """A step that is much longer than the others of its rank."""
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


def means_by_rank(of_steps: Mapping[Step, float]) -> dict[int, float]:
    """Of each rank's whole steps, the mean of a time."""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), milliseconds in of_steps.items():
        if rank is not None:
            by_rank.setdefault(rank, []).append(milliseconds)
    return {rank: mean(times) for rank, times in by_rank.items()}


def wall_ms_by_step(log: OneDnnLog) -> dict[Step, float]:
    """From begin to end of each whole step."""
    return {where[:2]: ms for where, ms in log.phase_ms.items() if where.phase is None}


def onednn_ms_by_step(log: OneDnnLog) -> dict[Step, float]:
    """In oneDNN, of each whole step."""
    found = dict.fromkeys(wall_ms_by_step(log), 0.0)
    for where, problems in log.executions.items():
        if where[:2] in found:
            found[where[:2]] += sum(calls.total_ms for calls in problems.values())
    return found


def many_page_faults(counters: Sequence[Counters]) -> list[Advice]:
    """Memory that goes back to the kernel and is asked for again in every step."""
    found = [(one.a_step("page-faults") or 0.0, one) for one in counters]
    faults, one = max(found, key=lambda pair: pair[0], default=(0.0, None))
    if one is None or faults < MANY_FAULTS:
        return []
    advice = Advice(
        title="Memory is given back and asked for again",
        evidence=f"{faults:,.0f} page faults a step of {one.seconds / one.steps:,.3g} s"
        f"{f', rank {one.rank}' if len(counters) > 1 else ''}.",
        todo="Let the allocator keep its memory (here: engine.allocator; elsewhere "
        "GLIBC_TUNABLES, tcmalloc or jemalloc), and count again.",
        section="ranks",
    )
    return [advice]
