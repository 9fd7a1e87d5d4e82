"""Findings: when each appears, and how much time it could save."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from profiling.compare import Comparison, Side, compare
from profiling.efficiency import Steps, analyze_efficiency
from profiling.onednn_log.log import Calls, LogPosition, NotUnderstood, OneDnnLog
from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.peaks import Peaks
from profiling.replay.replay import Conditions, Replay, ReplayTime
from profiling.report import advice
from profiling.report.advice import Advice, times
from profiling.report.material import Counters, Measured, MeasuredProblem
from tests.profiling.report.example_logs import PEAKS

NO_STEPS = Steps(frozenset(), ranks=1, wall_ms=None, images=None, ranks_of_run=None)


def problem(
    kind: str = "convolution",
    *,
    implementation: str = "brg:avx512_core",
    type_: str = "bf16",
    direction: str = "forward_training",
    channels: int = 256,
    groups: int = 1,
) -> Problem:
    memories = tuple(MemoryDescriptor(role, type_, tag="acdb") for role in ("src", "wei", "dst"))
    prefix = f"g{groups}" if groups > 1 else ""
    shape = f"{prefix}mb2_ic{channels}oc{channels}_ih50oh50kh3sh1dh0ph1_iw50ow50kw3sw1dw0pw1"
    if kind == "reorder":
        memories, shape, direction = memories[::2], "2x16x7x7", "undef"
    return Problem("primitive", "cpu", kind, implementation, direction, memories, "",
                   "alg:convolution_direct", shape)  # fmt: skip


def row(
    work: Problem,
    ms: float,
    *,
    share: float = 0.5,
    roofline_ms: float | None = None,
    peak_share: float | None = None,
) -> MeasuredProblem:
    return MeasuredProblem(work, 2, ms, share, 10.0, 1.0, roofline_ms, peak_share)


def measured(*problems: MeasuredProblem, wall_ms: float | None = None) -> Measured:
    return Measured(problems, NO_STEPS, wall_ms)


def only(findings: Iterable[Advice]) -> Advice:
    (finding,) = findings
    return finding


def test_saving_is_relative_to_the_step_or_to_onednns_time() -> None:
    finding = Advice("", "", "", "", 25.0)
    log = measured(row(problem(), 50.0))
    assert advice.saving(finding, log) == "At most 25.0 ms in the log, 50.0% of oneDNN's time."
    step = Measured(log.problems, Steps(frozenset({(0, 1)}), 1, 100.0, None, None), wall_ms=100.0)
    assert advice.saving(finding, step) == "At most 25.0 ms per step, 25.0% of the step."
    assert "not known" in advice.saving(Advice("", "", "", ""), step)


def test_kinds_far_from_the_roofline() -> None:
    backward = problem(direction="backward_weights")
    rows = (
        row(problem(), 60.0, roofline_ms=50.0),
        row(backward, 35.0, roofline_ms=5.0),
        row(backward, 4.0, roofline_ms=4.5),  # Faster, in caches: no loss
        row(problem("matmul"), 1.0, roofline_ms=0.5),  # Too small a loss
    )
    first, second = advice.far_from_roofline(measured(*rows))
    assert first.title.startswith("convolution backward weights: 4.33 times")
    assert second.title.startswith("convolution forward training: 1.20 times")
    assert (first.saves_ms, second.saves_ms) == (30.0, 10.0)
    assert not list(advice.far_from_roofline(measured(row(problem(), 60.0))))
    # What rounding leaves of the time at the roofline is 0.
    assert not list(advice.far_from_roofline(measured(row(problem(), 1e12, roofline_ms=1e-9))))


@pytest.mark.parametrize(("ms", "savings"), [(8.0, [8.0]), (4.0, [])])
def test_reorders_above_5_percent(ms: float, savings: list[float]) -> None:
    findings = advice.reorders(measured(row(problem(), 92.0), row(problem("reorder"), ms)))
    assert [finding.saves_ms for finding in findings] == savings


@pytest.mark.parametrize(
    ("kind", "implementation", "is_fallback"),
    [
        ("convolution", "ref:any", True),
        ("convolution", "gemm:jit", True),
        ("pooling", "jit_ref", True),
        ("convolution", "brg:avx512_core", False),
        ("matmul", "gemm:jit", False),  # The best one in float32
        ("reorder", "simple:any", False),
        ("convolution", "jit:prefetch", False),
    ],
)
def test_fallback_implementations(kind: str, implementation: str, is_fallback: bool) -> None:
    findings = advice.fallbacks(measured(row(problem(kind, implementation=implementation), 10.0)))
    # Without a roofline all of the time could be saved.
    assert [finding.saves_ms for finding in findings] == [10.0] * is_fallback
    assert all(finding.title.endswith(implementation) for finding in findings)


def test_fallback_saves_at_most_the_time_beyond_the_roofline() -> None:
    reference = problem(implementation="ref:any")
    assert only(advice.fallbacks(measured(row(reference, 10.0, roofline_ms=2.0)))).saves_ms == 8.0
    assert advice.fallbacks(measured(row(problem(), 999.0), row(reference, 1.0))) == []


def test_convolutions_below_half_of_the_peak_rate() -> None:
    narrow = problem(groups=32, channels=128)
    slow = {"roofline_ms": 4.0, "share": 0.1}
    rows = (
        row(narrow, 40.0, peak_share=0.1, **slow),
        row(problem(), 40.0, peak_share=0.6, **slow),  # Fast enough
        row(problem(), 10.0, peak_share=0.1, roofline_ms=4.0, share=0.01),  # Cheap
        row(problem(implementation="ref:any"), 40.0, peak_share=0.1, **slow),  # A fallback
        row(problem("matmul"), 40.0, peak_share=0.1, **slow),
        row(problem(), 40.0, peak_share=0.1, roofline_ms=41.0),  # Bound by memory
    )
    finding = only(advice.slow_convolutions(measured(*rows)))
    assert finding.title.startswith("convolution forward training, 3×3, 128 → 128 in 32 groups")
    assert finding.title.endswith("10% of the peak rate")
    assert finding.saves_ms == 36.0
    assert "only 4 channels per group" in finding.todo


def test_cause_of_a_slow_convolution_depends_on_isolated_time() -> None:
    log = measured(row(problem(), 40.0, peak_share=0.1, roofline_ms=4.0))
    for alone_ms, cause in ((5.0, "faster in isolation"), (19.0, "slow in isolation too")):
        finding = only(advice.slow_convolutions(log, alone_ms={problem(): alone_ms}))
        assert f"In isolation: {2 * alone_ms:.1f} ms." in finding.evidence
        assert cause in finding.todo
    assert "python -m profiling efficiency" in only(advice.slow_convolutions(log)).todo


def test_float32_on_a_machine_with_bf16() -> None:
    log = measured(row(problem(type_="f32"), 60.0), row(problem(type_="bf16"), 40.0))
    finding = only(advice.float32_beside_bf16(log, instruction_sets=[], peaks=PEAKS))
    # 2 × 2 × 256² × 2500 × 9 operations at 400 GFLOP/s take 14.75 ms per call.
    assert finding.saves_ms == pytest.approx(60.0 - 2 * 14.7456)
    assert "60.0 ms in the log, 60.0% of oneDNN's time: convolution forward" in finding.evidence
    slow = Peaks({"f32": 100.0, "bf16": 90.0}, 20.0, threads=2, cpu="", versions={})
    assert not list(advice.float32_beside_bf16(log, instruction_sets=["Intel AMX"], peaks=slow))


@pytest.mark.parametrize(
    ("instruction_set", "has_bf16"),
    [
        ("AVX-512 with Intel DL Boost and bfloat16 support", True),
        ("AVX-512 with float16, Intel DL Boost and Intel AMX", True),
        ("AVX-512 with Intel DL Boost", False),
    ],
)
def test_instruction_set_implies_bf16_without_peaks(instruction_set: str, has_bf16: bool) -> None:
    log = measured(row(problem(type_="f32"), 60.0))
    findings = advice.float32_beside_bf16(log, instruction_sets=[instruction_set], peaks=None)
    assert [finding.saves_ms for finding in findings] == [None] * has_bf16


def marked(*steps: tuple[int, int, float, float]) -> OneDnnLog:
    """Return a log of steps: rank, number, milliseconds in total and in oneDNN."""
    log = OneDnnLog()
    for rank, step, wall, inside in steps:
        log.phase_ms[LogPosition(rank, step)] = wall
        log.phase_ms[LogPosition(rank, step, "forward")] = wall - 1
        log.executions[LogPosition(rank, step, "forward")] = {problem(): Calls(1, inside)}
    return log


def test_more_time_outside_onednn_than_inside() -> None:
    log, step = marked((0, 1, 100.0, 40.0)), measured(row(problem(), 40.0), wall_ms=100.0)
    finding = only(advice.mostly_outside(step, log))
    assert finding.saves_ms == 60.0 and "forward, 59.0 ms" in finding.evidence
    assert "profile.trace.steps" in finding.todo
    traced = only(advice.mostly_outside(step, log, operators=[("aten::add (forward)", 30.0)]))
    assert "aten::add (forward) 30.0 ms" in traced.todo
    assert not list(advice.mostly_outside(measured(row(problem(), 60.0), wall_ms=100.0), log))
    assert not list(advice.mostly_outside(measured(row(problem(), 1.0)), OneDnnLog()))


def test_primitives_created_repeatedly() -> None:
    log = OneDnnLog(creations={problem(): Calls(9, 18.0), problem("reorder"): Calls(1, 2.0)})
    log.creation_states.update({"cache_hit": 5, "cache_miss": 5})
    steps = Steps(frozenset({(0, 1), (0, 2)}), 1, 50.0, None, None)
    finding = only(advice.repeated_creations(Measured([row(problem(), 1.0)], steps, 50.0), log))
    assert finding.saves_ms == 10.0  # 20 ms in two steps
    assert "5 creations (cache_miss) of 2 different" in finding.evidence
    log.creation_states["cache_miss"] = 2  # Each primitive once
    assert not list(advice.repeated_creations(measured(row(problem(), 1.0)), log))


STEPS_OF_A_RANK = ((0, 1, 100.0, 50.0), (0, 2, 100.0, 50.0))


@pytest.mark.parametrize(
    ("find", "steps", "title", "saves_ms"),
    [
        # Rank 0 waits: equal wall times.
        (advice.uneven_ranks, ((0, 1, 100.0, 50.0), (1, 1, 100.0, 70.0)), "Rank 1 is slower", 10.0),
        (advice.uneven_ranks, ((0, 1, 100.0, 50.0), (1, 1, 101.0, 51.0)), "", None),
        (advice.uneven_ranks, ((0, 1, 100.0, 50.0), (0, 2, 300.0, 99.0)), "", None),
        (advice.uneven_steps, (*STEPS_OF_A_RANK, (0, 3, 160.0, 50.0)), "Step 3 of rank 0", 20.0),
        (advice.uneven_steps, ((0, 1, 100.0, 50.0), (0, 2, 110.0, 50.0)), "", None),
    ],
)
def test_slow_rank_and_slow_step(
    find: Callable[[OneDnnLog], Iterable[Advice]], steps: Any, title: str, saves_ms: float | None
) -> None:
    findings = list(find(marked(*steps)))
    assert [finding.saves_ms for finding in findings] == ([saves_ms] if saves_ms else [])
    assert all(finding.title.startswith(title) for finding in findings)


def test_unparsed_lines_and_page_faults() -> None:
    log = OneDnnLog(onednn_lines=10, not_understood_count=2)
    log.not_understood.append(NotUnderstood("a", 1, "", ""))
    assert "2 of 10 oneDNN lines" in only(advice.not_understood(log)).evidence
    assert not list(advice.not_understood(OneDnnLog()))

    def counters(rank: int, **counts: float) -> Counters:
        return Counters(rank, 2, 3.0, {name.replace("_", "-"): n for name, n in counts.items()}, ())

    ranks = [counters(0, page_faults=60_000.0), counters(1, page_faults=80_000.0)]
    finding = only(advice.many_page_faults(ranks))
    assert "40,000 page faults per step of 1.5 s, rank 1" in finding.evidence
    for few in ([], [counters(0)], [counters(0, page_faults=60.0)]):
        assert not list(advice.many_page_faults(few))


def compared(first: dict[Problem, Calls], second: dict[Problem, Calls]) -> Comparison:
    sides = [Side(name, OneDnnLog(executions={LogPosition(): calls}))
             for name, calls in (("ours", first), ("theirs", second))]  # fmt: skip
    return compare(*sides)


def test_additional_calls() -> None:
    forward, backward = problem(), problem(direction="backward_data")
    both = compared({forward: Calls(2, 60.0), backward: Calls(4, 40.0)}, {forward: Calls(2, 66.0)})
    finding = only(advice.additional_calls(both))
    assert finding.title.startswith("convolution backward data") and finding.saves_ms == 40.0
    assert "theirs, 4 calls in the log" in finding.evidence
    fewer = compared({forward: Calls(2, 60.0)}, {forward: Calls(3, 66.0)})
    unrelated = compared({forward: Calls(2, 60.0)}, {problem(type_="f32"): Calls(2, 60.0)})
    assert advice.additional_calls(fewer) == advice.additional_calls(unrelated) == []


@pytest.mark.parametrize(("hot_ms", "savings"), [(20.0, [20.0]), (29.0, [])])
def test_primitives_slower_in_the_run(hot_ms: float, savings: list[float]) -> None:
    log = OneDnnLog(executions={LogPosition(): {problem(): Calls(2, 60.0)}})
    times = {problem(): ReplayTime(hot_ms, None, 3, "brg")}
    replay = Replay("torch", "3.7.1", "", Conditions(2), times)
    findings = advice.slower_than_alone(analyze_efficiency(log, replay, peaks=None))
    assert [finding.saves_ms for finding in findings] == savings


def test_calls_are_counted_with_decimals_for_a_mean() -> None:
    assert [times(1), times(2.5)] == ["1 call", "2.5 calls"]
