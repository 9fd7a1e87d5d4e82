"""`python -m profiling efficiency`: with a saved replay, and with the real worker."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from profiling.__main__ import main
from profiling.efficiency import OUTPUTS
from profiling.peaks import Peaks, save
from profiling.replay.replay import load_replay, save_replay
from tests.profiling.efficiency.example_log import (
    COLD,
    COPY,
    FORWARD,
    HEADER,
    HOT,
    SHAPE,
    execution,
    make_replay,
    write_log,
)
from tests.support.commands import RunHere
from tests.support.fast_precision import needs_bf16

SMALL = "mb2_ic8oc8_ih20oh20kh1sh1dh0ph0_iw20ow20kw1sw1dw0pw0"


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    save_replay(make_replay(), tmp_path / "replay.json")
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
    for file in (out / name for name in OUTPUTS):  # Each existing file is protected
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
    save_replay(replace(make_replay(slow, cold), other_cores=1.6), tmp_path / "replay.json")
    peaks = Peaks({"bf16": 1000.0}, 100.0, threads=4, cpu="a CPU", versions={}, other_cores=0.7)
    save(peaks, tmp_path / "peaks.json")
    log, numbers = write_log(tmp_path, facts=False), tmp_path / "numbers.json"
    files = ("--replay", tmp_path / "replay.json", "--peaks", tmp_path / "peaks.json")
    done = run_here(main, "efficiency", log, *files, "--json", numbers)
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
    save_replay(make_replay({}, {}), tmp_path / "replay.json")
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
    (replayed,) = replay.times.values()
    assert replayed.hot_ms > 0 and replayed.cold_ms is not None
    again = run_here(main, "efficiency", log, "--replay", out / "replay.json", "--peaks=none")
    assert "replayed 1 of 2 problems through torch" in again.stdout


@pytest.fixture
def without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


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
