"""Findings: when each appears, and how much time it could save."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling.compare import Comparison, Side, compare
from profiling.efficiency import Efficiency, Steps, analyze_efficiency
from profiling.onednn_log.log import Calls, LogPosition, NotUnderstood, OneDnnLog
from profiling.onednn_log.work import MemoryDescriptor, Problem
from profiling.peaks import Peaks
from profiling.replay.replay import Conditions, Replay, ReplayTime
from profiling.report import advice
from profiling.report.advice import Advice, times
from profiling.report.material import Counters, Material, Measured, Traced
from profiling.sums import ProblemCalls
from profiling.trace.analysis import analyze
from profiling.trace.trace import read_trace
from tests.profiling.report.example_logs import PEAKS
from tests.profiling.trace.example_traces import annotation, operator, write
from tests.profiling.trace.test_command import write_with_bytes

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
) -> ProblemCalls:
    bound_ms = None if roofline_ms is None else roofline_ms / 2
    # Of a call: its operations at 10 GFLOP/s, and the peak rate of which that is the share.
    peak = None if peak_share is None else 10.0 / peak_share
    return ProblemCalls(work, 2, ms, ms / 2, share, ms / 200, 1.0, bound_ms, peak)


def material(*problems: ProblemCalls, **inputs: Any) -> Material:
    """Return the problems of a log, and inputs: fields of `Material`, `steps` and `wall_ms`."""
    steps, wall_ms = inputs.pop("steps", NO_STEPS), inputs.pop("wall_ms", None)
    others = dict.fromkeys(("peaks", "environment", "efficiency", "comparison", "traced"))
    given = {**others, "counters": (), "log": OneDnnLog(), **inputs}
    if wall_ms:
        steps = replace(steps, wall_ms=wall_ms)
    return Material(measured=Measured(problems, steps), **given)


def traced(file: Path) -> Traced:
    return Traced(analyze(read_trace(file)), None)


def marked(*steps: tuple[int, int, float, float]) -> OneDnnLog:
    """Return a log of steps: rank, number, milliseconds in total and in oneDNN."""
    log = OneDnnLog()
    for rank, step, wall, inside in steps:
        log.phase_ms[LogPosition(rank, step)] = wall
        log.phase_ms[LogPosition(rank, step, "forward")] = wall - 1
        log.executions[LogPosition(rank, step, "forward")] = {problem(): Calls(1, inside)}
    return log


def counters(rank: int, page_faults: float) -> Counters:
    return Counters(rank, [1, 2], 3.0, {"page-faults": {"value": page_faults}}, [])


def compared(first: dict[Problem, Calls], second: dict[Problem, Calls]) -> Comparison:
    sides = [Side(name, OneDnnLog(executions={LogPosition(): calls}))
             for name, calls in (("ours", first), ("theirs", second))]  # fmt: skip
    return compare(*sides)


def replayed(measured: Calls, hot_ms: float) -> Efficiency:
    log = OneDnnLog(executions={LogPosition(): {problem(): measured}})
    times = [ReplayTime(problem(), hot_ms, None, 3, "brg")]
    replay = Replay("torch", "3.7.1", "", Conditions(2), times, [])
    return analyze_efficiency(log, replay, peaks=None)


def test_saving_is_relative_to_the_step_or_to_onednns_time() -> None:
    finding = Advice("", "", "", "", 25.0)
    log = material(row(problem(), 50.0)).measured
    assert advice.saving(finding, log) == "At most 25 ms in the log, 50.0% of oneDNN's time."
    step = Measured(log.problems, Steps(frozenset({LogPosition(0, 1)}), 1, 100.0, None, None))
    assert advice.saving(finding, step) == "At most 25 ms per step, 25.0% of the step."
    assert "not known" in advice.saving(Advice("", "", "", ""), step)


def check(
    rule: Any, savings: list[Any], *rows: ProblemCalls, shows: str = "", **inputs: Any
) -> None:
    """Compare savings; `shows` are texts of the findings, between bars."""
    findings = list(rule(material(*rows, **inputs)))
    assert [finding.saves_ms for finding in findings] == pytest.approx(savings)
    shown = "\n".join(f"{item.title} {item.evidence} {item.todo}" for item in findings)
    assert all(text in shown for text in shows.split("|"))


@pytest.mark.parametrize("rule", advice.RULES)
def test_nothing_is_found_in_an_empty_log(rule: Any) -> None:
    check(rule, [])


REFERENCE = problem(implementation="ref:any")


def test_kinds_far_from_the_roofline() -> None:
    rule, backward = advice.far_from_roofline, problem(direction="backward_weights")
    check(
        rule,
        [30.0, 10.0],
        row(problem(), 60.0, roofline_ms=50.0),
        row(backward, 35.0, roofline_ms=5.0),
        row(backward, 4.0, roofline_ms=4.5),  # Faster, in caches: no loss
        row(problem("matmul"), 1.0, roofline_ms=0.5),  # Too small a loss
        shows="convolution backward weights: 4.33 times|convolution forward training: 1.20 times",
    )
    check(rule, [], row(problem(), 60.0))
    # What rounding leaves of the time at the roofline is 0.
    check(rule, [], row(problem(), 1e12, roofline_ms=1e-9))


def test_reorders_above_5_percent() -> None:
    for ms, savings in ((8.0, [8.0]), (4.0, [])):
        check(advice.reorders, savings, row(problem(), 92.0), row(problem("reorder"), ms))


def test_fallback_saves_at_most_the_time_beyond_the_roofline() -> None:
    check(advice.fallbacks, [8.0], row(REFERENCE, 10.0, roofline_ms=2.0))
    check(advice.fallbacks, [], row(problem(), 999.0), row(REFERENCE, 1.0))


def test_convolutions_below_half_of_the_peak_rate() -> None:
    slow: dict[str, Any] = {"peak_share": 0.1, "roofline_ms": 4.0, "share": 0.1}
    check(
        advice.slow_convolutions,
        [36.0],
        row(problem(groups=32, channels=128), 40.0, **slow),
        row(problem(), 40.0, **{**slow, "peak_share": 0.6}),  # Fast enough
        row(problem(), 10.0, **{**slow, "share": 0.01}),  # Cheap
        row(REFERENCE, 40.0, **slow),  # A fallback
        row(problem("matmul"), 40.0, **slow),
        row(problem(), 40.0, **{**slow, "roofline_ms": 41.0}),  # Bound by memory
        shows="convolution forward training, 3×3, 128 → 128 in 32 groups|10% of the peak rate|"
        "only 4 channels per group",
    )
    # The cause depends on the time in isolation.
    one = row(problem(), 40.0, **slow)
    check(advice.slow_convolutions, [36.0], one, shows="retinanet profile efficiency")
    for ms, cause in ((5.0, "faster in isolation"), (19.0, "slow in isolation too")):
        alone, shows = replayed(Calls(2, 40.0), ms), f"In isolation: {2 * ms:.0f} ms.|{cause}"
        check(advice.slow_convolutions, [36.0], one, efficiency=alone, shows=shows)


def test_float32_on_a_machine_with_bf16() -> None:
    rule, first = advice.float32_beside_bf16, row(problem(type_="f32"), 60.0)
    # 2 × 2 × 256² × 2500 × 9 operations at 400 GFLOP/s take 14.75 ms per call.
    shows = "60 ms in the log, 60.0% of oneDNN's time: convolution forward"
    check(rule, [60.0 - 2 * 14.7456], first, row(problem(), 40.0), peaks=PEAKS, shows=shows)
    slow = Peaks({"f32": 100.0, "bf16": 90.0}, 20.0, threads=2, cpu="", versions={})
    check(rule, [], first, peaks=slow, log=OneDnnLog(instruction_sets=["Intel AMX"]))
    for name, has_bf16 in (
        ("AVX-512 with Intel DL Boost and bfloat16 support", True),
        ("AVX-512 with float16, Intel DL Boost and Intel AMX", True),
        ("AVX-512 with Intel DL Boost", False),
    ):
        check(rule, [None] * has_bf16, first, log=OneDnnLog(instruction_sets=[name]))


def test_more_time_outside_onednn_than_inside(tmp_path: Path) -> None:
    rule = advice.mostly_outside
    step: dict[str, Any] = {"log": marked((0, 1, 100.0, 40.0)), "wall_ms": 100.0}
    check(rule, [60.0], row(problem(), 40.0), **step, shows="forward, 59 ms|profile.trace.steps")
    events = (annotation("step 1", 0, 1000), operator("aten::add", 0, 30))
    trace, shows = traced(write(tmp_path / "trace.json", *events)), "aten::add (forward) 0.03 ms"
    check(rule, [60.0], row(problem(), 40.0), traced=trace, **step, shows=shows)
    check(rule, [], row(problem(), 60.0), **step)
    check(rule, [], row(problem(), 1.0))


def test_primitives_created_repeatedly() -> None:
    log = OneDnnLog(creations={problem(): Calls(9, 18.0), problem("reorder"): Calls(1, 2.0)})
    log.creation_states.update({"cache_hit": 5, "cache_miss": 5})
    steps = Steps(frozenset({LogPosition(0, 1), LogPosition(0, 2)}), 1, 50.0, None, None)
    shows = "5 creations (cache_miss) of 2 different"
    # 20 ms in two steps
    check(advice.repeated_creations, [10.0], log=log, steps=steps, wall_ms=50.0, shows=shows)
    log.creation_states["cache_miss"] = 2  # Each primitive once
    check(advice.repeated_creations, [], log=log)


def test_slow_rank_and_slow_step() -> None:
    first, second = (0, 1, 100.0, 50.0), (0, 2, 100.0, 50.0)
    # Rank 0 waits: equal wall times.
    slow = marked(first, (1, 1, 100.0, 70.0))
    check(advice.uneven_ranks, [10.0], log=slow, shows="Rank 1 is slower")
    for other in ((1, 1, 101.0, 51.0), (0, 2, 300.0, 99.0)):
        check(advice.uneven_ranks, [], log=marked(first, other))
    slow = marked(first, second, (0, 3, 160.0, 50.0))
    check(advice.uneven_steps, [20.0], log=slow, shows="Step 3 of rank 0")
    check(advice.uneven_steps, [], log=marked(first, (0, 2, 110.0, 50.0)))


def test_unparsed_lines_and_page_faults() -> None:
    lines = [NotUnderstood("a", 1, "", "")]
    log = OneDnnLog(onednn_lines=10, not_understood_count=2, not_understood=lines)
    check(advice.not_understood, [None], log=log, shows="2 of 10 oneDNN lines")
    rule, many = advice.many_page_faults, [counters(0, 60_000.0), counters(1, 80_000.0)]
    check(rule, [None], counters=many, shows="40,000 page faults per step of 1.5 s, rank 1")
    for few in (Counters(0, [1, 2], 3.0, {}, []), counters(0, 60.0)):
        check(rule, [], counters=[few])


def test_additional_calls() -> None:
    rule, forward = advice.additional_calls, {problem(): Calls(2, 60.0)}
    more = {**forward, problem(direction="backward_data"): Calls(4, 40.0)}
    both = compared(more, {problem(): Calls(2, 66.0)})
    check(
        rule, [40.0], comparison=both, shows="convolution backward data|theirs, 4 calls in the log"
    )
    for other in ({problem(): Calls(3, 66.0)}, {problem(type_="f32"): Calls(2, 60.0)}):
        check(rule, [], comparison=compared(forward, other))


def test_primitives_slower_in_the_run() -> None:
    for hot_ms, savings in ((20.0, [20.0]), (29.0, [])):
        check(advice.slower_than_alone, savings, efficiency=replayed(Calls(2, 60.0), hot_ms))


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
    # Without a roofline all of the time could be saved.
    work = problem(kind, implementation=implementation)
    findings = advice.fallbacks(material(row(work, 10.0)))
    assert [finding.saves_ms for finding in findings] == [10.0] * is_fallback
    assert all(finding.title.endswith(implementation) for finding in findings)


def test_memory_traffic(tmp_path: Path) -> None:
    rows = [
        ["forward", "aten::convolution", 3, 2_000_000, 1_000_000],
        ["forward", "aten::relu_", 2, 600_000, 600_000],
        ["backward", "aten::threshold_backward", 2, 1_200_000, 600_000],
        ["optimizer", "lamb_step", 1, 4_000_000, 3_000_000],
    ]
    trace = traced(write_with_bytes(tmp_path, {"step": 19, "operators": rows}))
    # 13 MB at 20 GB/s, of a step of 1 ms; ReLU and its backward pass move 3 of them.
    shows = "0.65 ms, 65% of the step|aten::threshold_backward (backward)"
    check(advice.memory_traffic, [0.15], peaks=PEAKS, traced=trace, shows=shows)
    fast = Peaks({}, 100.0, threads=2, cpu="", versions={})
    check(advice.memory_traffic, [], peaks=fast, traced=trace)
    check(advice.memory_traffic, [], traced=trace)


def test_calls_are_counted_with_decimals_for_a_mean() -> None:
    assert [times(1), times(2.5)] == ["1 call", "2.5 calls"]
