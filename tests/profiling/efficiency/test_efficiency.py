"""`retinanet profile efficiency`: with a saved replay, with the real worker, and by hand.

Two steps. Forward: 2 calls per step, 10 then 14 ms; backward: one of 20 and 20 ms; product: one of
5 and 7 ms; a reorder without replay: 4 calls per step of 1 ms, and one of 50 ms before the steps.
"""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from common.files import write_json
from profiling.__main__ import main
from profiling.efficiency import (
    MEASURED,
    OUTPUTS,
    Efficiency,
    Projection,
    analyze_efficiency,
    project,
)
from profiling.onednn_log.log import read_logs
from profiling.onednn_log.work import readable
from profiling.peaks import Peaks, save
from profiling.replay.replay import Replay, load_replay
from tests.profiling.efficiency.example_log import (
    BACKWARD,
    COLD,
    COPY,
    FORWARD,
    HEADER,
    HOT,
    PRODUCT,
    SHAPE,
    execution,
    log_text,
    make_replay,
    write_log,
)
from tests.profiling.replay.problems import parse_v3 as v3
from tests.support.commands import RunHere
from tests.support.fast_precision import needs_bf16

SMALL = "mb2_ic8oc8_ih20oh20kh1sh1dh0ph0_iw20ow20kw1sw1dw0pw0"


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    write_json(tmp_path / "replay.json", asdict(make_replay()))
    return tmp_path / "replay.json"


@pytest.mark.slow
def test_saved_replay_is_compared_and_all_files_are_written(
    tmp_path: Path, replay: Path, run_here: RunHere
) -> None:
    out, numbers = tmp_path / "out", tmp_path / "efficiency.json"
    command = ("efficiency", write_log(tmp_path), "--replay", replay, "--peaks=none", "--out", out)
    done = run_here(main, *command, "--json", numbers)
    assert done.returncode == 0, done.stderr
    assert "efficiency: 0.68 hot, 0.90 cold; 92.6% of oneDNN's time was replayed" in done.stdout
    assert "not replayed: 1 problem, 8.0 ms, 7.4% of the time" in done.stdout
    assert "no operator makes it" in done.stdout and "1 of the run's 2 ranks" in done.stdout
    content = json.loads(numbers.read_text())
    assert content["efficiency"]["hot_ratio"] == 0.68
    assert content["projection"]["speeds"][0]["step_s"] == pytest.approx(0.110)
    assert content["replay"]["runner"] == "torch"
    rows = list(csv.DictReader((out / "efficiency.csv").open()))
    assert [row["kind"] for row in rows] == ["convolution", "convolution", "matmul", "reorder"]
    assert float(rows[0]["lost_ms"]) == 20 and rows[-1]["hot_ratio"] == ""
    assert rows[-1]["why_not_replayed"] == "no operator makes it"
    assert (out / "efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert "convolution backward data" in (out / "efficiency.svg").read_text()
    for file in (out / name for name in (*OUTPUTS, *MEASURED)):  # Each existing file is protected
        for other in out.iterdir():
            other.unlink()
        file.write_text("existing")
        done = run_here(main, *command)
        assert done.returncode == 2 and str(file) in done.stderr
        assert file.read_text() == "existing"


def test_cautions_come_first_and_partial_replays_are_explained(
    tmp_path: Path, run_here: RunHere
) -> None:
    slow = {line: 3 * ms for line, ms in HOT.items()}  # Slower than in the run
    cold = {FORWARD: COLD[FORWARD]}
    disturbed = replace(make_replay(slow, cold), other_cores=1.6)
    write_json(tmp_path / "replay.json", asdict(disturbed))
    peaks = Peaks({"bf16": 1000.0}, 100.0, threads=4, cpu="a CPU", versions={}, other_cores=0.7)
    save(peaks, tmp_path / "peaks.json")
    folder, numbers = write_log(tmp_path, facts=False).parent, tmp_path / "numbers.json"
    files = ("--replay", tmp_path / "replay.json", "--peaks", tmp_path / "peaks.json")
    done = run_here(main, "efficiency", folder, *files, "--json", numbers)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.partition("efficiency: ")
    cautions = [line for line in before.splitlines() if line.startswith("caution: ")]
    assert any("1.60 cores" in line for line in cautions)
    assert any("peaks: disturbed" in line and "0.70 cores" in line for line in cautions)
    assert any("peaks: threads: 2 in the log, 4" in line for line in cautions)
    assert len(json.loads(numbers.read_text())["not_as_in_the_run"]) == len(cautions)
    assert "a ratio above 1" in after and "cold ratios cover 48.0%" in after
    assert "--images-a-step" in after


@pytest.mark.slow
def test_log_without_replayed_problems_or_marks(tmp_path: Path, run_here: RunHere) -> None:
    write_json(tmp_path / "replay.json", asdict(make_replay({}, {})))
    log, out = write_log(tmp_path, marks=False), tmp_path / "out"
    command = ("efficiency", log, "--replay", tmp_path / "replay.json", "--peaks=none")
    done = run_here(main, *command, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "no ratio" in done.stdout and "--steps N" in done.stdout
    assert "nothing was replayed" in (out / "efficiency.svg").read_text()
    done = run_here(main, *command, "--steps", "2")
    assert "only oneDNN's time is projected" in done.stdout


@needs_bf16
@pytest.mark.slow
def test_log_is_replayed_and_the_replay_is_saved(tmp_path: Path, run_here: RunHere) -> None:
    log, out = tmp_path / "onednn.log", tmp_path / "out"
    lines = (FORWARD.replace(SHAPE, SMALL), COPY.replace("256x256x3x3", "8x8x1x1"))
    log.write_text(
        HEADER.replace("nthr:2", "nthr:1") + "".join(execution(line, 5.0) for line in lines)
    )
    options = ("--runner=torch", "--repeats=3", "--peaks=none", "--steps=1", "--out", out)
    done = run_here(main, "efficiency", log, *options)
    assert done.returncode == 0, done.stderr
    assert "replayed 1 of 2 problems through torch" in done.stdout
    replay = load_replay(out / "replay.json")
    (replayed,) = replay.times
    assert replayed.hot_ms > 0 and replayed.cold_ms is not None
    again = run_here(main, "efficiency", log, "--replay", out / "replay.json", "--peaks=none")
    assert "replayed 1 of 2 problems through torch" in again.stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--replay=REPLAY", "--steps=2"], "--steps: the log already marks its 2 steps"),
        (["--replay=REPLAY", "--threads=1"], "--replay: "),
        (["--replay=REPLAY", "--images-a-step=0"], "expected a whole number of at least 1"),
        (["--replay=REPLAY", "--peaks=no.json"], "no.json: cannot be read"),
        (["--replay=/no/such.json"], "/no/such.json: cannot be read"),
        (["--runner=benchdnn"], "--runner benchdnn: benchdnn is not on PATH"),
        (["--runner=torch", "--benchdnn=/bin/true"], "--benchdnn: not used by --runner torch"),
        (["--benchdnn=/no/such"], "--benchdnn: /no/such "),
        (["--runner=torch", "--out=REPLAY"], "is a file; give a folder"),
        (["--runner=torch", "--out=LOG"], "would replace "),
    ],
)
def test_invalid_options(
    options: list[str],
    reason: str,
    replay: Path,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    log = write_log(replay.parent)
    options = [text.replace("REPLAY", str(replay)).replace("LOG", str(log)) for text in options]
    done = run_here(main, "efficiency", log, *options)
    assert done.returncode == 2 and reason in done.stderr


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
    assert total.hot_ratio == 68 / 100 and total.cold_ratio == 90 / 100
    parts = {(part.kind, part.direction): part for part in efficiency.parts}
    assert [part.measured_ms for part in efficiency.parts] == [48, 40, 12]
    forward = parts["convolution", "forward_training"]
    assert (forward.calls, forward.hot_ratio, forward.cold_ratio) == (4, 36 / 48, 48 / 48)
    assert parts["matmul", "undef"].hot_ratio == 1
    # Backward lost 40 - 20, forward 48 - 36, the product nothing.
    losses = [(item.problem, item.lost_ms) for item in efficiency.problems]
    assert losses == [(v3(BACKWARD), 20), (v3(FORWARD), 12), (v3(PRODUCT), 0)]
    assert efficiency.cautions == []


def test_time_without_replay_and_outside_of_steps(tmp_path: Path) -> None:
    efficiency = analyze(tmp_path)
    (copy,) = efficiency.not_replayed
    assert (copy.problem, copy.calls, copy.total_ms) == (v3(COPY), 8, COPIES_MS)
    assert copy.why_not == "no operator makes it"
    assert efficiency.not_replayed_share == COPIES_MS / (REPLAYED_MS + COPIES_MS)
    assert efficiency.outside_ms == 50
    without_marks = analyze(tmp_path, marks=False)
    assert without_marks.outside_ms == 0
    assert without_marks.not_replayed_ms == COPIES_MS + 50


def test_incomplete_replays(tmp_path: Path) -> None:
    single = analyze(tmp_path, replay=make_replay({FORWARD: 9.0}, {}))
    reasons = {item.problem: item.why_not for item in single.not_replayed}
    assert reasons[v3(PRODUCT)] == "not in the replay"
    assert single.total.cold_ms is None and single.total.cold_ratio is None
    one_cold = analyze(tmp_path, replay=make_replay(HOT, {FORWARD: 12.0}))
    total = one_cold.total
    assert (total.cold_ms, total.cold_measured_ms) == (48, 48)
    assert (total.hot_ratio, total.cold_ratio) == (68 / 100, 1)
    parts = {part.direction: part for part in one_cold.parts}
    assert parts["backward_data"].cold_ratio is None
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
    bounds = efficiency.roofline_ms
    flop = 2 * 2 * 256 * 36 * 100 * 100 * 3 * 3
    assert bounds[v3(FORWARD)] == pytest.approx(1000 * flop / 1e9 / 1000)
    assert len(bounds) == 3 and all(bounds.values())
    projection = project_step(efficiency)
    # Problems that were faster than their roofline keep their measured time.
    expected = sum(
        min(item.total_ms, item.calls * bounds[item.problem]) for item in efficiency.problems
    )
    roofline = projection.speeds[-1]
    assert roofline.name == "at the roofline"
    assert roofline.onednn_s == pytest.approx((expected + 8) / 2 / 1000)
    assert projection.roofline_share == pytest.approx(100 / 108)
    unbounded = analyze(tmp_path, peaks=replace(peaks, matrix_gflop_per_s={"f32": 1000.0}))
    assert unbounded.roofline_ms == {}
    assert len(project_step(unbounded).speeds) == 3


def test_images_of_ranks_add_up(tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}.log" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(log_text(rank=rank))
    efficiency = analyze_efficiency(read_logs(files), make_replay(), peaks=None)
    assert efficiency.total.calls == 16 and efficiency.total.hot_ratio == 68 / 100
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
