"""The whole command: with a saved replay, and with the real worker."""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.profiling.efficiency.logs import (
    COPY,
    FORWARD,
    HEADER,
    SHAPE,
    execution,
    replay_of,
    write_log,
)

from common.cli import run_command
from profiling.efficiency import OUTPUTS, add_efficiency
from profiling.peaks import Peaks, save
from profiling.replay.replay import load_replay, save_replay
from tests.support.fast_precision import needs_bf16

REPOSITORY = Path(__file__).resolve().parents[3]
SMALL = "mb2_ic8oc8_ih20oh20kh1sh1dh0ph0_iw20ow20kw1sw1dw0pw0"


def efficiency(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_efficiency(parser.add_subparsers())
    found = vars(parser.parse_args(["efficiency", *map(str, arguments)]))
    run = found.pop("run")
    return run_command(lambda: run(**found))


def saved_replay(folder: Path) -> Path:
    save_replay(replay_of(), folder / "replay.json")
    return folder / "replay.json"


def test_a_saved_replay_is_compared_and_everything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, replay = write_log(tmp_path), saved_replay(tmp_path)
    out, file = tmp_path / "out", tmp_path / "efficiency.json"
    assert efficiency(log, "--replay", replay, "--peaks=none", "--out", out, "--json", file) == 0
    printed = capsys.readouterr().out
    assert "efficiency: 0.68 hot, 0.90 cold; 92.6% of oneDNN's time was replayed" in printed
    assert "not replayed: 1 problem, 8.0 ms, 7.4% of the time" in printed
    assert "no operator makes it" in printed and "1 of the run's 2 ranks" in printed
    content = json.loads(file.read_text())
    assert content["efficiency"]["hot_ratio"] == 0.68
    assert content["projection"]["speeds"][0]["step_s"] == pytest.approx(0.110)
    assert content["replay"]["runner"] == "torch"
    rows = list(csv.DictReader((out / "efficiency.csv").open()))
    assert [row["kind"] for row in rows] == ["convolution", "convolution", "matmul", "reorder"]
    assert float(rows[0]["lost_ms"]) == 20 and rows[-1]["hot_ratio"] == ""
    assert rows[-1]["why_not_replayed"] == "no operator makes it"
    assert (out / "efficiency.png").read_bytes().startswith(b"\x89PNG")
    assert "convolution backward data" in (out / "efficiency.svg").read_text()


def test_what_speaks_against_the_numbers_comes_before_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_replay(replace(replay_of(), other_cores=1.6), tmp_path / "replay.json")
    peaks = Peaks({"bf16": 1000.0}, 100.0, threads=4, cpu="a CPU", versions={}, other_cores=0.7)
    save(peaks, tmp_path / "peaks.json")
    log, numbers = write_log(tmp_path), tmp_path / "numbers.json"
    words = ("--replay", tmp_path / "replay.json", "--peaks", tmp_path / "peaks.json")
    assert efficiency(log, *words, "--json", numbers) == 0
    printed = capsys.readouterr().out
    before = printed.partition("efficiency: ")[0]
    cautions = [line for line in before.splitlines() if line.startswith("caution: ")]
    assert [one for one in cautions if "1.60 cores" in one]
    assert [one for one in cautions if "peaks: disturbed" in one and "0.70 cores" in one]
    assert [one for one in cautions if "peaks: threads: 2 in the log, 4" in one]
    assert len(json.loads(numbers.read_text())["not_as_in_the_run"]) == len(cautions)


@needs_bf16
def test_a_log_is_replayed_now_and_the_replay_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "onednn.log"
    lines = (FORWARD.replace(SHAPE, SMALL), COPY.replace("256x256x3x3", "8x8x1x1"))
    log.write_text(
        HEADER.replace("nthr:2", "nthr:1") + "".join(execution(one, 5.0) for one in lines)
    )
    command = ("--runner=torch", "--repeats=3", "--peaks=none", "--steps=1", "--out")
    assert efficiency(log, *command, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "replayed 1 of 2 problems through torch" in printed
    assert "only oneDNN's time is projected" in printed
    kept = load_replay(tmp_path / "out" / "replay.json")
    (time_found,) = kept.times.values()
    assert time_found.hot_ms > 0 and time_found.cold_ms is not None
    assert efficiency(log, "--replay", tmp_path / "out" / "replay.json", "--peaks=none") == 0
    again = capsys.readouterr().out
    assert "replayed 1 of 2 problems through torch" in again


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--steps=2"], "--steps: the log marks its 2 steps itself; leave --steps out"),
        (["--threads=1"], "--replay: is made already"),
        (["--images-a-step=0"], "expected a whole number of at least 1"),
        (["--peaks=no.json"], "no.json: cannot be read"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, replay = write_log(tmp_path), saved_replay(tmp_path)
    try:
        code = efficiency(log, "--replay", replay, *arguments)
    except SystemExit as error:
        assert error.code == 2
    else:
        assert code == 2
        errors = capsys.readouterr().err
        assert why in errors and errors.count("\n") == 1
        return
    assert why in capsys.readouterr().err


def test_runners_that_are_not_there_or_contradict_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    log = write_log(tmp_path)
    for arguments, why in (
        (["--runner=benchdnn"], "--runner benchdnn: there is none on PATH"),
        (["--runner=torch", "--benchdnn=/bin/true"], "--benchdnn: --runner torch runs none"),
        (["--benchdnn=/no/such"], "--benchdnn: /no/such "),
        (["--replay=/no/such.json"], "/no/such.json: cannot be read"),
        (["--runner=torch", "--peaks=/no/such.json"], "/no/such.json: cannot be read"),
        (["--runner=torch", f"--out={log}"], f"--out: {log} is a file; name a folder"),
    ):
        assert efficiency(log, *arguments) == 2
        assert why in capsys.readouterr().err


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, replay = write_log(tmp_path), saved_replay(tmp_path)
    for file in (tmp_path / "out" / name for name in OUTPUTS):
        file.parent.mkdir(exist_ok=True)
        file.write_text("kept")
        assert efficiency(log, "--replay", replay, "--peaks=none", "--out", file.parent) == 2
        assert str(file) in capsys.readouterr().err and file.read_text() == "kept"
        file.unlink()


def test_ctrl_c_leaves_no_worker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "profiling", "efficiency"]
    command += [str(write_log(tmp_path)), "--runner=torch", "--repeats=100000"]
    # A group of its own, as a terminal gives it, which Ctrl-C signals as a whole.
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (workers := children.read_text().split()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "interrupted\n"
    assert not Path(f"/proc/{workers[0]}").exists()
