"""Ranks and steps that are unlike the others."""

from collections.abc import Mapping
from statistics import mean

from profiling.onednn_log.log import OneDnnLog
from profiling.report.advice import Advice
from profiling.report.words import three

Step = tuple[int | None, int | None]
"""Rank and number."""
UNEVEN = 0.05
UNEVEN_STEPS = 0.2


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
