"""Findings of a report, each with an upper bound of the possible saving of time.

Two findings may concern the same time, so their savings do not add up. Findings rest on
the log's problems (reorders, fallbacks, float32, what is slower than the peaks allow), on the log
around them (phases, primitives made, lines left, uneven ranks and steps), and on what was given
beside the log (a reference, a replay, a trace, counters).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from common.console import significant, three_digits
from common.wording import listed
from profiling.causes import reasons
from profiling.compare import Comparison
from profiling.onednn_log.log import LogPosition, OneDnnLog
from profiling.onednn_log.work import (
    CONVOLUTIONS,
    Problem,
    is_fallback,
    kind_and_direction,
    named_sizes,
    readable,
)
from profiling.peaks import Peaks, roofline_ms
from profiling.report.material import Material, Measured, find_phases
from profiling.sums import ProblemCalls, grouped, sum_by_kind, sum_up
from profiling.trace.analysis import (
    costliest_outside_onednn,
    gap_share,
    make_rows,
    short_share,
)
from profiling.trace.operators import Category, find_category


class Advice(NamedTuple):
    """A finding with its evidence and advice."""

    title: str
    evidence: str  # The numbers that it rests on
    todo: str
    section: str = "problems"  # The name of the section that shows it
    saves_ms: float | None = None  # At most, of a step, or of a log without steps; None: not known


def times(count: float) -> str:
    """Return `1 call`, `12.5 calls`."""
    return "1 call" if count == 1 else f"{significant(count)} calls"


def saving(advice: Advice, measured: Measured) -> str:
    """Return a sentence about the time that a finding could save."""
    if advice.saves_ms is None:
        return "The possible saving is not known."
    whole, name = measured.ms, "oneDNN's time"
    if measured.wall_ms:
        whole, name = measured.wall_ms, "the step"
    share = f", {advice.saves_ms / whole:.1%} of {name}" if whole else ""
    return f"At most {three_digits(advice.saves_ms)} ms {measured.unit}{share}."


def most_saving_first(findings: Iterable[Advice]) -> list[Advice]:
    """Sort findings by saving in descending order; unknown savings come last."""
    return sorted(findings, key=lambda item: (item.saves_ms is None, -(item.saves_ms or 0.0)))


MOST_PROBLEMS = 5  # Findings of one sort
REORDER_SHARE = 0.05
FALLBACK_SHARE = 0.005
FLOAT32_SHARE = 0.05
HAS_BF16 = re.compile(r"bfloat16|bf16|AMX|AVX10", re.IGNORECASE)


def reorders(material: Material) -> Iterator[Advice]:
    """Advise on layouts that change between operators."""
    measured = material.measured
    part = sum_up([problem for problem in measured.problems if problem.problem.kind == "reorder"])
    if part.total_ms > REORDER_SHARE * measured.ms:
        first = part.problems[0]
        yield Advice(
            title="Reorders: layouts or types change between operators",
            evidence=f"{three_digits(part.total_ms)} ms {measured.unit} in {times(part.calls)}, "
            f"{part.total_ms / measured.ms:.1%} of oneDNN's time. The costliest: "
            f"{readable(first.problem)}, {three_digits(first.total_ms)} ms.",
            todo="Keep tensors in one layout for all operators (channels_last), and weights in the "
            "layout of their convolution.",
            saves_ms=part.total_ms,
        )


def fallbacks(material: Material) -> list[Advice]:
    """Advise on implementations that are not made for this machine."""
    measured = material.measured
    slow = (item for item in measured.problems if is_fallback(item.problem))
    groups = grouped(
        slow, lambda item: (item.problem.kind, item.problem.direction, item.problem.implementation)
    )
    findings = [
        Advice(
            title=f"{part.name} falls back to {implementation}",
            evidence=f"{three_digits(part.total_ms)} ms {measured.unit} in {len(part.problems)} "
            f"problems, {part.total_ms / measured.ms:.1%} of oneDNN's time. The costliest: "
            f"{readable(part.problems[0].problem)}.",
            todo=why_skipped(material.log, part.problems[0].problem),
            # All of the time of problems without a roofline.
            saves_ms=part.total_ms - part.bounded_ms + part.lost_ms,
        )
        for (*name, implementation), problems in groups.items()
        if (part := sum_up(problems, *name)).total_ms > FALLBACK_SHARE * measured.ms
    ]
    return most_saving_first(findings)[:MOST_PROBLEMS]


def why_skipped(log: OneDnnLog, problem: Problem) -> str:
    """Return why faster implementations of a problem were skipped, or how to log it."""
    if why := reasons(log, problem):
        return f"Skipped for the costliest: {listed(why, MOST)}."
    return (
        "A log with ONEDNN_VERBOSE=dispatch has the reason why faster ones were skipped; often it "
        "is an unsupported type, layout or attribute."
    )


def float32_beside_bf16(material: Material) -> Iterator[Advice]:
    """Advise on float32 arithmetic on a machine with BF16 instructions."""
    measured, peaks = material.measured, material.peaks
    rates = peaks.matrix_gflop_per_s if peaks else {}
    # Without instructions for BF16 oneDNN is slower in BF16 than in float32.
    if peaks and rates.get("bf16", 0.0) < 1.2 * rates.get("f32", 0.0):
        return
    if not peaks and not any(map(HAS_BF16.search, material.log.instruction_sets)):
        return
    problems = [
        item
        for item in measured.problems
        if item.problem.is_computing
        and {memory.type for memory in item.problem.memories if memory.is_there} == {"f32"}
    ]
    total = sum_up(problems).total_ms
    if total <= FLOAT32_SHARE * measured.ms:
        return
    by_kind = dict.fromkeys(kind_and_direction(p.problem.kind, p.problem.direction)
                            for p in problems)  # fmt: skip
    speeds = (
        f" Peaks: {rates['f32']:,.0f} GFLOP/s in float32, {rates['bf16']:,.0f} in BF16."
        if "f32" in rates
        else ""
    )
    yield Advice(
        title="Arithmetic in float32 on a machine with BF16",
        evidence=f"{three_digits(total)} ms {measured.unit}, {total / measured.ms:.1%} of oneDNN's "
        f"time: {', '.join(by_kind)}.{speeds}",
        todo="Train with BF16 autocast (in retinanet: engine.precision=bf16) and float32 weights.",
        saves_ms=saved_in_bf16(problems, peaks) if peaks else None,
    )


def saved_in_bf16(problems: Sequence[ProblemCalls], peaks: Peaks) -> float | None:
    """Return the time above the roofline of the same problems in BF16. [ms]"""
    saved = 0.0
    for item in problems:
        # Half of the bytes as well as a higher rate: either may be the bound.
        memories = [replace(memory, type="bf16") if memory.type == "f32" else memory
                    for memory in item.problem.memories]  # fmt: skip
        bound = roofline_ms(replace(item.problem, memories=tuple(memories)), peaks)
        if bound is None:
            return None
        saved += max(0.0, item.total_ms - item.calls * bound)
    return saved


SLOW_SHARE = 0.02
HALF = 0.5
FEW_CHANNELS = 16
MUCH_FASTER = 0.7


def far_from_roofline(material: Material) -> Iterator[Advice]:
    """Advise on kinds and directions that lose most against the machine's peaks."""
    measured = material.measured
    parts = [part for part in sum_by_kind(measured.problems) if part.kind != "reorder"]
    for part in sorted(parts, key=lambda part: -part.lost_ms)[:MOST_PROBLEMS]:
        ideal = part.bounded_ms - part.lost_ms
        # Nothing remains of a roofline that is 10¹⁶ times as short.
        if part.lost_ms <= SLOW_SHARE * measured.ms or ideal <= 0:
            continue
        first = max(part.problems, key=lambda problem: problem.lost_ms or 0.0)
        yield Advice(
            title=f"{part.name}: {part.bounded_ms / ideal:.2f} times the time at the roofline",
            evidence=f"{three_digits(part.bounded_ms)} ms {measured.unit} in {times(part.calls)}; "
            f"{three_digits(ideal)} ms at the peaks of this machine. The largest loss is in "
            f"{readable(first.problem)}: {three_digits(first.lost_ms or 0.0)} ms.",
            todo="Sort the table of all problems by lost time.",
            saves_ms=part.lost_ms,
        )


def slow_convolutions(material: Material) -> Iterator[Advice]:
    """Advise on costly convolutions below half of the peak rate."""
    measured = material.measured
    replayed = material.efficiency.problems if material.efficiency else ()
    alone_ms = {item.problem: item.alone.hot_ms for item in replayed if item.alone}
    slow = [
        item
        for item in measured.problems
        if item.problem.kind in CONVOLUTIONS
        and item.peak_share is not None
        and item.peak_share < HALF
        and item.share > SLOW_SHARE
        and item.lost_ms
        and not is_fallback(item.problem)
    ]
    for item in slow[:MOST_PROBLEMS]:
        alone = alone_ms.get(item.problem)
        compared = "" if alone is None else f" In isolation: {three_digits(alone * item.calls)} ms."
        yield Advice(
            title=f"{readable(item.problem)}: {item.peak_share:.0%} of the peak rate",
            evidence=f"{three_digits(item.total_ms)} ms {measured.unit} in {times(item.calls)} of "
            f"{item.problem.implementation}, {item.share:.1%} of oneDNN's time, at "
            f"{item.gflop_per_s:,.0f} GFLOP/s.{compared}",
            todo=why_slow(item, alone),
            saves_ms=item.lost_ms,
        )


def why_slow(item: ProblemCalls, alone_ms: float | None) -> str:
    """Return the likely reason why a convolution is slow."""
    if alone_ms is not None and alone_ms * item.calls < MUCH_FASTER * item.total_ms:
        return "The implementation is faster in isolation: other work or cold caches slow it down."
    sizes = named_sizes(item.problem.shape)
    groups = sizes.get("g", 1)
    each = min(sizes.get("ic", 0), sizes.get("oc", 0)) // groups
    if each < FEW_CHANNELS:
        scope = " per group" if groups > 1 else ""
        return f"It has only {each} channels{scope}, fewer than a vector; more are faster."
    if alone_ms is not None:
        return "The implementation is slow in isolation too: another one or another shape may help."
    return (
        "Run it in isolation with `retinanet profile efficiency`: if it is as slow there, the "
        "implementation is the cause, otherwise other work in the run."
    )


OPERATORS = 3  # Operators outside oneDNN that advice names
MANY_FAULTS = 20_000  # A step; 80 MB of fresh memory


def mostly_outside(material: Material) -> Iterator[Advice]:
    """Advise where more of a step is outside of oneDNN than inside."""
    measured, traced = material.measured, material.traced
    if measured.wall_ms is None or (outside := measured.wall_ms - measured.ms) <= measured.ms:
        return
    phases = sorted(find_phases(material.log), key=lambda phase: -phase.elsewhere_ms)
    largest = (
        f" The largest part: {phases[0].name}, {three_digits(phases[0].elsewhere_ms)} ms."
        if phases
        else ""
    )
    rows = costliest_outside_onednn(make_rows(traced.analysis)) if traced else []
    named = ", ".join(
        f"{row.operator} ({row.phase}) {three_digits(row.self_ms)} ms" for row in rows[:OPERATORS]
    )
    yield Advice(
        title="More time outside oneDNN than inside",
        evidence=f"{three_digits(outside)} ms of a step of {three_digits(measured.wall_ms)} ms are "
        f"outside oneDNN's primitives.{largest}",
        todo=f"The costliest operators in the trace: {named}."
        if named
        else "Record a trace to find the operators: train with profile.trace.steps.",
        section="trace" if named else "phases",
        saves_ms=outside,
    )


def repeated_creations(material: Material) -> Iterator[Advice]:
    """Advise on primitives that are created again because the primitive cache is too small."""
    log = material.log
    misses = sum(count for state, count in log.creation_states.items() if "cache_miss" in state)
    total = sum(calls.total_ms for calls in log.creations.values())
    # The first creation of each primitive is a miss; more show that the cache dropped some.
    if misses > len(log.creations):
        yield Advice(
            title="Primitives are created repeatedly",
            evidence=f"{misses:,} creations (cache_miss) of {len(log.creations):,} different "
            f"primitives took {three_digits(total)} ms in the log.",
            todo="Increase ONEDNN_PRIMITIVE_CACHE_CAPACITY, or use fewer different shapes.",
            section="log",
            saves_ms=total / (material.measured.steps.count or 1),
        )


def not_understood(material: Material) -> Iterator[Advice]:
    """Advise on lines that could not be parsed and are in no number of the page."""
    log = material.log
    if log.not_understood_count:
        yield Advice(
            title="Lines of the log cannot be parsed",
            evidence=f"{log.not_understood_count:,} of {log.onednn_lines:,} oneDNN lines are not "
            "included in any number of this page.",
            todo="Check them: the log may be truncated, mixed with other output, or written by a "
            "newer oneDNN.",
            section="log",
        )


def many_page_faults(material: Material) -> Iterator[Advice]:
    """Advise on memory that is returned to the kernel and requested again in every step."""
    counters = material.counters
    rank = max(counters, key=lambda rank: rank.per_step("page-faults") or 0.0, default=None)
    if rank and (faults := rank.per_step("page-faults") or 0.0) >= MANY_FAULTS:
        yield Advice(
            title="Memory is returned to the kernel and allocated again",
            evidence=f"{faults:,.0f} page faults per step of "
            f"{significant(rank.step_s, 3)} s"
            f"{f', rank {rank.rank}' if len(counters) > 1 else ''}.",
            todo="Configure the allocator to keep its memory (in retinanet: engine.allocator; "
            "otherwise GLIBC_TUNABLES, tcmalloc or jemalloc).",
            section="ranks",
        )


UNEVEN = 0.05
UNEVEN_STEPS = 0.2
MOST_RANKS = 16


def uneven_ranks(material: Material) -> Iterator[Advice]:
    """Advise on a rank that is slower than the others, for which they wait."""
    log = material.log
    if len(log.ranks) < 2:
        return
    # Ranks that wait for each other have equal wall times; their times in oneDNN differ.
    for measure, by_step in (
        ("time in oneDNN", onednn_ms_by_step(log)),
        ("wall time", log.step_ms),
    ):
        by_rank: dict[int, list[float]] = {}
        for where, milliseconds in by_step.items():
            if where.rank is not None:
                by_rank.setdefault(where.rank, []).append(milliseconds)
        means = {rank: mean(steps) for rank, steps in sorted(by_rank.items())}
        slowest = max(by_rank, key=lambda rank: means[rank], default=0)
        average = mean(means.values()) if means else 0.0
        if len(means) < 2 or not average or means[slowest] - average <= UNEVEN * average:
            continue
        listed = [f"rank {rank} {three_digits(ms)} ms" for rank, ms in means.items()]
        others = f", and {len(means) - MOST_RANKS} more" if len(means) > MOST_RANKS else ""
        yield Advice(
            title=f"Rank {slowest} is slower than the others ({measure})",
            evidence=f"Per step: {', '.join(listed[:MOST_RANKS])}{others}; average "
            f"{three_digits(average)} ms.",
            todo="All ranks wait for the slowest. Check its cores and its memory node for another "
            "program, fewer cores, or remote memory.",
            section="ranks",
            saves_ms=means[slowest] - average,
        )


def uneven_steps(material: Material) -> Iterator[Advice]:
    """Advise on a step that is much longer than the others of its rank."""
    wall_ms = material.log.step_ms
    if len({where.step for where in wall_ms}) < 2:
        return
    slowest = max(wall_ms, key=lambda where: wall_ms[where])
    rank, number, *_ = slowest
    others = mean(ms for where, ms in wall_ms.items() if where.step != number)
    if wall_ms[slowest] <= (1 + UNEVEN_STEPS) * others:
        return
    yield Advice(
        title=f"Step {number}{'' if rank is None else f' of rank {rank}'} is longer than the "
        "others",
        evidence=f"{three_digits(wall_ms[slowest])} ms; the others take {three_digits(others)} ms "
        "on average.",
        todo="Means over so few steps are unreliable: log more steps, later in the run, on an idle "
        "machine.",
        section="ranks",
        # Savings are those of a mean step, so that this step's excess is spread over all.
        saves_ms=(wall_ms[slowest] - others) / len(wall_ms),
    )


def onednn_ms_by_step(log: OneDnnLog) -> dict[LogPosition, float]:
    """Return oneDNN's time in each complete step. [milliseconds]"""
    by_step = dict.fromkeys(log.step_ms, 0.0)
    for where, problems in log.executions.items():
        if where.whole_step in by_step:
            by_step[where.whole_step] += sum(calls.total_ms for calls in problems.values())
    return by_step


MOST = 3
ALIKE = 0.25
EXTRA_SHARE = 0.01
LOST_SHARE = 0.05
GAP_SHARE = 0.05
SHORT_SHARE = 0.1


def additional_calls(material: Material) -> list[Advice]:
    """Advise on calls that the reference does without, or makes elsewhere."""
    comparison = material.comparison
    if comparison is None or common_share(comparison) < ALIKE:
        return []  # Another model, image size or type: every call would be a finding
    extra_pairs = (pair for pair in comparison.only_one if pair.extra_calls > 0)
    groups = grouped(extra_pairs, lambda pair: (pair.key.kind, pair.key.direction))
    whole = sum(pair.first.ms for pair in comparison.pairs)
    unit = "per step" if comparison.is_by_step else "in the log"
    findings = [
        Advice(
            title=f"{kind_and_direction(*key)}: the reference makes fewer calls",
            evidence=f"Compared with {comparison.second.name}, "
            f"{times(sum(pair.extra_calls for pair in pairs))} {unit} are additional, "
            f"{three_digits(extra)} ms. The costliest: "
            f"{pairs[0].key.shape} {pairs[0].key.types}, {three_digits(pairs[0].extra_ms)} ms.",
            todo="Find their cause: gradients of frozen layers, changes of layout, another "
            "batch size, or other kernels in the reference.",
            section="comparison",
            saves_ms=extra,
        )
        for key, pairs in groups.items()
        if (extra := sum(pair.extra_ms for pair in pairs)) > EXTRA_SHARE * whole
    ]
    return most_saving_first(findings)[:MOST]


def common_share(comparison: Comparison) -> float:
    """Return the share of the log's time in questions that the reference has too."""
    whole = sum(pair.first.ms for pair in comparison.pairs)
    both = sum(pair.first.ms for pair in comparison.pairs if pair.second.calls)
    return both / whole if whole else 0.0


def slower_than_alone(material: Material) -> Iterator[Advice]:
    """Advise on primitives that take longer in the run than alone."""
    efficiency = material.efficiency
    if efficiency is None:
        return
    total, count = efficiency.total, efficiency.steps.count or 1
    ratio = total.hot_ratio
    if ratio is None or total.lost_ms <= LOST_SHARE * total.measured_ms:
        return
    first = efficiency.problems[0]
    yield Advice(
        title="Primitives are slower in the run than in isolation",
        evidence=f"In isolation, with warm caches, they take {ratio:.0%} of the time. The largest "
        f"loss is in {readable(first.problem)}: {three_digits(first.lost_ms / count)} ms.",
        todo="Typical causes are cold caches, shared memory bandwidth and shared cores: pin ranks, "
        "one to a memory node, and stop other programs.",
        section="efficiency",
        saves_ms=total.lost_ms / count,
    )


def fragmented(material: Material) -> Iterator[Advice]:
    """Advise on gaps between operators, and on operators too short to be worth their call."""
    if material.traced is None:
        return
    analysis = material.traced.analysis
    gaps, short = gap_share(analysis), short_share(analysis)
    if gaps > GAP_SHARE:
        yield Advice(
            title="Time in which no operator runs",
            evidence=f"{gaps:.1%} of the traced time: Python, or waiting for data or other ranks.",
            todo="The timeline shows the phases of the gaps.",
            section="trace",
            saves_ms=sum(analysis.gaps_ns.values()) / 1e6 / analysis.count,
        )
    if short > SHORT_SHARE:
        yield Advice(
            title="Many short operators",
            evidence=f"{short:.1%} of the operators' time is in pieces shorter than 0.1 ms.",
            todo="Merge small operators: fused optimizers, foreach, compiled losses.",
            section="trace",
            saves_ms=short * analysis.operator_ns / 1e6 / analysis.count,
        )


WORTHWHILE = 0.05  # Share of a step from which on it is a finding
CONVOLUTION_OPERATORS = ("aten::convolution", "torch_ipex::convolution")


def memory_traffic(material: Material) -> Iterator[Advice]:
    """Advise on the bytes that a step's operators read and write, at the memory's bandwidth.

    The possible saving is the traffic of operators that neither multiply matrices nor are our own
    kernels: fused with the producers of their arguments, they need not read them.
    """
    analysis, peaks = material.traced and material.traced.analysis, material.peaks
    if not analysis or not analysis.trace.bytes_moved or not peaks or not peaks.bandwidth_gb_per_s:
        return
    moved, bandwidth_gb_per_s = analysis.trace.bytes_moved, peaks.bandwidth_gb_per_s
    step_ms = analysis.wall_ns / 1e6 / analysis.count
    milliseconds = moved.total / bandwidth_gb_per_s / 1e6
    fusible = [
        row
        for row in moved.rows
        # Without a namespace: our own kernels, as `retinanet.engine.kernel_calls` records them.
        if "::" in row.operator
        and not row.operator.startswith(CONVOLUTION_OPERATORS)
        and find_category(row.operator) == Category.OTHER
    ]
    saves = sum(row.total for row in fusible) / bandwidth_gb_per_s / 1e6
    if saves <= WORTHWHILE * step_ms:
        return
    first = ", ".join(
        f"{row.operator} ({row.phase}) {three_digits(row.total / 1e9)} GB" for row in fusible[:3]
    )
    yield Advice(
        title="Memory traffic of small operators",
        evidence=f"The operators of a step read and write {three_digits(moved.total / 1e9)} GB. At "
        f"the measured {three_digits(bandwidth_gb_per_s)} GB/s this takes "
        f"{three_digits(milliseconds)} ms, {milliseconds / step_ms:.0%} of the step, if nothing is "
        f"in caches; {three_digits(saves)} ms of this is outside convolutions, matrix products and "
        f"this project's kernels: {first}.",
        todo="Fuse them with the operators that produce their arguments, run them in place, or "
        "keep values in BF16.",
        section="trace",
        saves_ms=saves,
    )


RULES = (
    *(far_from_roofline, reorders, fallbacks, slow_convolutions, float32_beside_bf16),
    *(mostly_outside, repeated_creations, uneven_ranks, uneven_steps, many_page_faults),
    *(not_understood, additional_calls, slower_than_alone, fragmented, memory_traffic),
)


def all_advice(material: Material) -> list[Advice]:
    """Return all findings, by saving in descending order; unknown savings come last."""
    return most_saving_first(finding for rule in RULES for finding in rule(material))
