"""Ratios and projections, compared with numbers computed by hand.

Two steps. Forward: 2 calls a step, 10 then 14 ms; backward: one of 20 and 20 ms; product: one of 5
and 7 ms; a reorder without replay: 4 calls a step of 1 ms, and one of 50 ms before the first step.
"""

from pathlib import Path

import pytest

from profiling.efficiency_analysis import (
    Efficiency,
    analyze_efficiency,
    cold_ratio,
    hot_ratio,
    project,
)
from profiling.onednn_log.log import read_logs
from profiling.onednn_log.work import readable
from profiling.peaks import Peaks
from profiling.replay.replay import Replay
from tests.profiling.efficiency.example_log import (
    BACKWARD,
    COLD,
    COPY,
    FORWARD,
    HOT,
    PRODUCT,
    SHAPE,
    log_text,
    replay_of,
    write_log,
)
from tests.profiling.replay.problems import parse_v3 as v3

REPLAYED_MS = 2 * 10 + 2 * 14 + 20 + 20 + 5 + 7
HOT_MS = 4 * 9 + 2 * 10 + 2 * 6
COLD_MS = 4 * 12 + 2 * 15 + 2 * 6
COPIES_MS = 8 * 1


def analyze(
    tmp_path: Path,
    *,
    marks: bool = True,
    facts: bool = True,
    replay: Replay | None = None,
    peaks: Peaks | None = None,
) -> Efficiency:
    log = read_logs([write_log(tmp_path, marks=marks, facts=facts)])
    return analyze_efficiency(log, replay or replay_of(), peaks=peaks)


def test_ratio_is_weighted_by_calls_of_replayed_problems(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    total = efficiency.total
    assert (total.calls, total.measured_ms) == (8, REPLAYED_MS)
    assert (total.hot_ms, total.cold_ms) == (HOT_MS, COLD_MS)
    assert hot_ratio(total) == 68 / 100 and cold_ratio(total) == 90 / 100


def test_ratios_of_parts_and_problems(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    parts = {(part.kind, part.direction): part for part in efficiency.parts}
    assert [part.measured_ms for part in efficiency.parts] == [48, 40, 12]
    forward = parts["convolution", "forward_training"]
    assert (forward.calls, hot_ratio(forward), cold_ratio(forward)) == (4, 36 / 48, 48 / 48)
    assert hot_ratio(parts["matmul", "undef"]) == 1
    # Backward lost 40 - 20, forward 48 - 36, the product nothing.
    assert [item.problem for item in efficiency.problems] == [
        v3(BACKWARD),
        v3(FORWARD),
        v3(PRODUCT),
    ]
    assert [item.lost_ms for item in efficiency.problems] == [20, 12, 0]


def test_problems_without_replay_are_in_no_ratio(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    (copy,) = efficiency.not_replayed
    assert (copy.problem, copy.calls, copy.measured_ms) == (v3(COPY), 8, COPIES_MS)
    assert copy.why == "no operator makes it"
    assert efficiency.not_replayed_share == COPIES_MS / (REPLAYED_MS + COPIES_MS)


def test_time_outside_of_steps_counts_only_without_marks(tmp_path: Path) -> None:
    assert analyze(tmp_path).outside_ms == 50
    without = analyze(tmp_path, marks=False)
    assert without.outside_ms == 0
    assert without.not_replayed_ms == COPIES_MS + 50


def test_problem_missing_in_the_replay_is_listed(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path, replay=replay_of({FORWARD: 9.0}, {}))
    reasons = {item.problem: item.why for item in efficiency.not_replayed}
    assert reasons[v3(PRODUCT)] == "not in the replay"
    assert efficiency.total.cold_ms is None and cold_ratio(efficiency.total) is None


def test_cold_ratio_covers_problems_with_cold_runs(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path, replay=replay_of(HOT, {FORWARD: 12.0}))
    total = efficiency.total
    assert (total.cold_ms, total.cold_measured_ms) == (48, 48)
    assert (hot_ratio(total), cold_ratio(total)) == (68 / 100, 1)
    parts = {part.direction: part for part in efficiency.parts}
    assert cold_ratio(parts["backward_data"]) is None
    projection = project(efficiency, steps=None, images_a_step=None)
    assert projection is not None
    cold = projection.speeds[2]
    assert cold.onednn_s == pytest.approx((48 + 20 + 12 + 8) / 2 / 1000)


def test_projection_keeps_time_outside_onednn(tmp_path: Path) -> None:
    projection = project(analyze(tmp_path), steps=None, images_a_step=None)
    assert projection is not None
    # A step takes (100 + 120) / 2 ms; (100 + 8) / 2 of them are oneDNN's.
    assert projection.elsewhere_s == pytest.approx(0.056)
    assert projection.images == 8
    measured, hot, cold = projection.speeds
    assert measured.step_s == pytest.approx(0.110)
    assert measured.images_per_s == pytest.approx(8 / 0.110)
    assert hot.onednn_s == pytest.approx((68 + 8) / 2 / 1000)
    assert hot.step_s == pytest.approx(0.038 + 0.056)
    assert cold.step_s == pytest.approx((90 + 8) / 2 / 1000 + 0.056)
    assert hot.images_per_s == pytest.approx(8 / 0.094)


def test_roofline_is_the_longer_of_arithmetic_and_memory(tmp_path: Path) -> None:
    peaks = Peaks({"bf16": 1000.0}, 100.0, threads=2, cpu="test", versions={})
    efficiency = analyze(tmp_path, peaks=peaks)
    problems = {item.problem: item for item in efficiency.problems}
    flop = 2 * 2 * 256 * 36 * 100 * 100 * 3 * 3
    assert problems[v3(FORWARD)].roofline_ms == pytest.approx(1000 * flop / 1e9 / 1000)
    projection = project(efficiency, steps=None, images_a_step=None)
    assert projection is not None
    bounds = [item.roofline_ms for item in efficiency.problems]
    assert None not in bounds
    # What was measured faster than its roofline stays as it was measured.
    expected = sum(
        min(item.measured_ms, item.calls * (item.roofline_ms or 0)) for item in efficiency.problems
    )
    roofline = projection.speeds[-1]
    assert roofline.name == "at the roofline"
    assert roofline.onednn_s == pytest.approx((expected + 8) / 2 / 1000)
    assert projection.roofline_share == pytest.approx(100 / 108)


def test_type_without_a_peak_has_no_roofline(tmp_path: Path) -> None:
    peaks = Peaks({"f32": 1000.0}, 100.0, threads=2, cpu="test", versions={})
    efficiency = analyze(tmp_path, peaks=peaks)
    assert {item.roofline_ms for item in efficiency.problems} == {None}
    projection = project(efficiency, steps=None, images_a_step=None)
    assert projection is not None
    assert "at the roofline" not in [speed.name for speed in projection.speeds]


def test_projection_without_marks_needs_steps(
    tmp_path: Path,
) -> None:
    efficiency = analyze(tmp_path, marks=False, facts=False)
    assert project(efficiency, steps=None, images_a_step=4) is None
    projection = project(efficiency, steps=2, images_a_step=4)
    assert projection is not None and projection.elsewhere_s is None
    assert projection.speeds[0].onednn_s == pytest.approx((100 + 8 + 50) / 2 / 1000)
    assert (projection.speeds[0].step_s, projection.speeds[0].images_per_s) == (None, None)


def test_images_of_ranks_add_up(tmp_path: Path) -> None:
    files = []
    for rank in (0, 1):
        file = tmp_path / f"rank{rank}.log"
        file.write_text(log_text(rank=rank))
        files.append(file)
    efficiency = analyze_efficiency(read_logs(files), replay_of(), peaks=None)
    assert efficiency.total.calls == 16 and hot_ratio(efficiency.total) == 68 / 100
    projection = project(efficiency, steps=None, images_a_step=None)
    assert projection is not None
    assert projection.speeds[0].step_s == pytest.approx(0.110)
    assert projection.speeds[0].images_per_s == pytest.approx(16 / 0.110)


def test_incomplete_step_does_not_count(tmp_path: Path) -> None:
    text = write_log(tmp_path).read_text()
    file = tmp_path / "cut.log"
    file.write_text(text[: text.rindex("profilednn_mark")])
    efficiency = analyze_efficiency(read_logs([file]), replay_of(), peaks=None)
    assert efficiency.steps.count == 1
    assert efficiency.total.measured_ms == 2 * 10 + 20 + 5


def test_mismatch_of_versions_is_a_caution(tmp_path: Path) -> None:
    replay = replay_of(HOT, COLD)
    other = Replay("torch", "3.9.0", replay.instruction_set, replay.conditions, replay.times, {})
    assert analyze(tmp_path).cautions == []
    assert analyze(tmp_path, replay=other).cautions == [
        "oneDNN: 3.7.1 in the log, 3.9.0 in the replay"
    ]


def test_readable_names_of_problems() -> None:
    assert readable(v3(BACKWARD)) == "convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16"
    assert readable(v3(PRODUCT)) == "matmul, 1024×5000 by 5000×512, bf16"
    assert readable(v3(COPY)) == "reorder, 256×256×3×3, bf16 acdb to bf16 AcdB64a2b"
    grouped = FORWARD.replace(
        SHAPE,
        "g32mb2_ic256oc256_ih200oh100kh3sh2dh1ph1_iw200ow100kw3sw2dw1pw1",
    )
    assert readable(v3(grouped)) == (
        "convolution forward training, 3×3 stride 2×2 dilation 1×1, 256 → 256 in 32 groups, "
        "2 × 200×200, bf16"
    )
