"""What to look at next: each finding with how much time it would save at most.

What two findings would save may be the same time, so the numbers do not add up.

TODO-DOC What a log says of the run around its problems: phases, primitives made, lines left.

TODO-DOC Ranks and steps that are unlike the others.

TODO-DOC What is to be learnt from what was given beside the log: a reference, a replay, a trace.

TODO-DOC The page in a few sentences, for who reads no further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from common.console import significant
from profiling.compare.comparison import Comparison, Pair
from profiling.efficiency.analysis import Efficiency, hot_ratio, kind_and_direction, readable
from profiling.onednn_log.log import OneDnnLog
from profiling.report.material import Counters, Material, Measured, parts_of, phases_of
from profiling.report.page import three, times
from profiling.trace.analysis import Analysis, gap_share, short_share


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


def ordered(found: Sequence[Advice]) -> list[Advice]:
    """What saves most first; what is not known last."""
    return sorted(found, key=lambda one: (one.saves_ms is None, -(one.saves_ms or 0.0)))


def saving(one: Advice, measured: Measured) -> str:
    """How much it would save, in words."""
    if one.saves_ms is None:
        return "How much it would save is not known."
    whole, of = (
        (measured.wall_ms, "of it") if measured.wall_ms else (measured.ms, "of oneDNN's time")
    )
    share = f", {one.saves_ms / whole:.1%} {of}" if whole else ""
    return f"At most {three(one.saves_ms)} ms {measured.unit}{share}."


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


Step = tuple[int | None, int | None]
"""Rank and number."""
UNEVEN = 0.05
UNEVEN_STEPS = 0.2


def uneven_ranks(log: OneDnnLog) -> list[Advice]:
    """A rank that is slower than the others, for which they wait."""
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


KINDS = 3


def title_of(material: Material) -> str:
    """What the page is about."""
    runs = dict.fromkeys(str(facts["run"]) for facts in material.log.facts if facts.get("run"))
    name = ", ".join(runs) or Path(material.log.files[0]).name
    goes = "a training step" if material.measured.steps.count else "oneDNN's time"
    return f"{name}: where {goes} goes"


def summary_of(material: Material, advice: Sequence[Advice]) -> list[str]:
    """How long, in what, what it could be, what to look at first."""
    measured = material.measured
    if not measured.problems:
        return ["None of oneDNN's primitives ran within a whole step of this log."]
    share = [f"{kind_and_direction(part.kind, part.direction)} {part.share:.0%}"
             for part in parts_of(measured.problems)[:KINDS]]  # fmt: skip
    sentences = [f"{how_long(material)} Most of that is {', '.join(share)}."]
    ideal = measured.roofline_ms
    if ideal is not None and measured.ms:
        text = f"At this machine's measured peaks they would take {three(ideal)} ms"
        if measured.wall_ms:
            step = measured.wall_ms - measured.ms + ideal
            text += f", and a step {measured.wall_ms / step:.2f} times as fast"
        sentences.append(f"{text}.")
    worth = [one for one in advice if one.saves_ms]
    if worth:
        sentences.append(f"Look first at: {worth[0].title}. {saving(worth[0], measured)}")
    if material.log.not_understood_count:
        sentences.append(
            f"{material.log.not_understood_count:,} lines of the log are not understood."
        )
    return [" ".join(sentences)]


def how_long(material: Material) -> str:
    """A step and oneDNN's part of it, or a whole log."""
    measured = material.measured
    if measured.wall_ms:
        inside = measured.ms / measured.wall_ms
        steps = measured.steps.count or 1
        mean = f", the mean of {steps}," if steps > 1 else ""
        return (
            f"A step{mean} takes {three(measured.wall_ms)} ms; {three(measured.ms)} ms of it "
            f"({inside:.0%}) are in oneDNN's primitives."
        )
    calls = sum(one.calls for one in measured.problems)
    return (
        f"oneDNN's primitives take {three(measured.ms)} ms in this log: {calls:,.0f} calls of "
        f"{len(measured.problems):,} different problems."
    )
