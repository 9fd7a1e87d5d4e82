"""Ratios and projections, compared with numbers computed by hand.

Two steps. Forward: 2 calls per step, 10 then 14 ms; backward: one of 20 and 20 ms; product: one of
5 and 7 ms; a reorder without replay: 4 calls per step of 1 ms, and one of 50 ms before the steps.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from profiling.efficiency_analysis import (
    Efficiency,
    Projection,
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
    COPY,
    FORWARD,
    HOT,
    PRODUCT,
    SHAPE,
    log_text,
    make_replay,
    write_log,
)
from tests.profiling.replay.problems import parse_v3 as v3

REPLAYED_MS = 2 * 10 + 2 * 14 + 20 + 20 + 5 + 7
HOT_MS = 4 * 9 + 2 * 10 + 2 * 6
COLD_MS = 4 * 12 + 2 * 15 + 2 * 6
COPIES_MS = 8 * 1


def analyze(
    folder: Path, *, marks: bool = True, replay: Replay | None = None, peaks: Peaks | None = None
) -> Efficiency:
    log = read_logs([write_log(folder, marks=marks, facts=marks)])
    return analyze_efficiency(log, replay or make_replay(), peaks=peaks)


def project_step(
    efficiency: Efficiency, *, steps: int | None = None, images: int | None = None
) -> Projection:
    projection = project(efficiency, steps=steps, images_a_step=images)
    assert projection is not None
    return projection


def test_ratios_of_total_parts_and_problems(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    total = efficiency.total
    assert (total.calls, total.measured_ms) == (8, REPLAYED_MS)
    assert (total.hot_ms, total.cold_ms) == (HOT_MS, COLD_MS)
    assert hot_ratio(total) == 68 / 100 and cold_ratio(total) == 90 / 100
    parts = {(part.kind, part.direction): part for part in efficiency.parts}
    assert [part.measured_ms for part in efficiency.parts] == [48, 40, 12]
    forward = parts["convolution", "forward_training"]
    assert (forward.calls, hot_ratio(forward), cold_ratio(forward)) == (4, 36 / 48, 48 / 48)
    assert hot_ratio(parts["matmul", "undef"]) == 1
    # Backward lost 40 - 20, forward 48 - 36, the product nothing.
    losses = [(item.problem, item.lost_ms) for item in efficiency.problems]
    assert losses == [(v3(BACKWARD), 20), (v3(FORWARD), 12), (v3(PRODUCT), 0)]
    assert efficiency.cautions == []


def test_time_without_replay_and_outside_of_steps(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    (copy,) = efficiency.not_replayed
    assert (copy.problem, copy.calls, copy.measured_ms) == (v3(COPY), 8, COPIES_MS)
    assert copy.why == "no operator makes it"
    assert efficiency.not_replayed_share == COPIES_MS / (REPLAYED_MS + COPIES_MS)
    assert efficiency.outside_ms == 50
    without_marks = analyze(tmp_path, marks=False)
    assert without_marks.outside_ms == 0
    assert without_marks.not_replayed_ms == COPIES_MS + 50


def test_incomplete_replays(tmp_path: Path) -> None:
    single = analyze(tmp_path, replay=make_replay({FORWARD: 9.0}, {}))
    reasons = {item.problem: item.why for item in single.not_replayed}
    assert reasons[v3(PRODUCT)] == "not in the replay"
    assert single.total.cold_ms is None and cold_ratio(single.total) is None
    one_cold = analyze(tmp_path, replay=make_replay(HOT, {FORWARD: 12.0}))
    total = one_cold.total
    assert (total.cold_ms, total.cold_measured_ms) == (48, 48)
    assert (hot_ratio(total), cold_ratio(total)) == (68 / 100, 1)
    parts = {part.direction: part for part in one_cold.parts}
    assert cold_ratio(parts["backward_data"]) is None
    cold = project_step(one_cold).speeds[2]
    assert cold.onednn_s == pytest.approx((48 + 20 + 12 + 8) / 2 / 1000)
    other = analyze(tmp_path, replay=replace(make_replay(), version="3.9.0"))
    assert other.cautions == ["oneDNN: 3.7.1 in the log, 3.9.0 in the replay"]


def test_projection_keeps_time_outside_onednn(tmp_path: Path) -> None:
    projection = project_step(analyze(tmp_path))
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


def test_projection_without_marks_needs_steps(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path, marks=False)
    assert project(efficiency, steps=None, images_a_step=4) is None
    projection = project_step(efficiency, steps=2, images=4)
    assert projection.elsewhere_s is None
    assert projection.speeds[0].onednn_s == pytest.approx((100 + 8 + 50) / 2 / 1000)
    assert (projection.speeds[0].step_s, projection.speeds[0].images_per_s) == (None, None)


def test_projection_at_the_roofline(tmp_path: Path) -> None:
    peaks = Peaks({"bf16": 1000.0}, 100.0, threads=2, cpu="test", versions={})
    efficiency = analyze(tmp_path, peaks=peaks)
    bounds = {item.problem: item.roofline_ms or 0 for item in efficiency.problems}
    flop = 2 * 2 * 256 * 36 * 100 * 100 * 3 * 3
    assert bounds[v3(FORWARD)] == pytest.approx(1000 * flop / 1e9 / 1000)
    assert all(bounds.values())
    projection = project_step(efficiency)
    # Problems that were faster than their roofline keep their measured time.
    expected = sum(
        min(item.measured_ms, item.calls * bounds[item.problem]) for item in efficiency.problems
    )
    roofline = projection.speeds[-1]
    assert roofline.name == "at the roofline"
    assert roofline.onednn_s == pytest.approx((expected + 8) / 2 / 1000)
    assert projection.roofline_share == pytest.approx(100 / 108)
    unbounded = analyze(tmp_path, peaks=replace(peaks, matrix_gflop_per_s={"f32": 1000.0}))
    assert {item.roofline_ms for item in unbounded.problems} == {None}
    assert len(project_step(unbounded).speeds) == 3


def test_images_of_ranks_add_up(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}.log" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(log_text(rank=rank))
    efficiency = analyze_efficiency(read_logs(files), make_replay(), peaks=None)
    assert efficiency.total.calls == 16 and hot_ratio(efficiency.total) == 68 / 100
    measured = project_step(efficiency).speeds[0]
    assert measured.step_s == pytest.approx(0.110)
    assert measured.images_per_s == pytest.approx(16 / 0.110)


def test_incomplete_step_does_not_count(tmp_path: Path) -> None:
    file = write_log(tmp_path)
    text = file.read_text()
    file.write_text(text[: text.rindex("profilednn_mark")])
    efficiency = analyze_efficiency(read_logs([file]), make_replay(), peaks=None)
    assert efficiency.steps.count == 1
    assert efficiency.total.measured_ms == 2 * 10 + 20 + 5


def test_readable_names_of_problems() -> None:
    grouped = FORWARD.replace(
        SHAPE, "g32mb2_ic256oc256_ih200oh100kh3sh2dh1ph1_iw200ow100kw3sw2dw1pw1"
    )
    for line, name in (
        (BACKWARD, "convolution backward data, 3×3, 256 → 36, 2 × 100×100, bf16"),
        (PRODUCT, "matmul, 1024×5000 by 5000×512, bf16"),
        (COPY, "reorder, 256×256×3×3, bf16 acdb to bf16 AcdB64a2b"),
        (grouped, "convolution forward training, 3×3 stride 2×2 dilation 1×1, "
                  "256 → 256 in 32 groups, 2 × 200×200, bf16"),
    ):  # fmt: skip
        assert readable(v3(line)) == name
