"""`benchdnn` as a user calls it: files, table, replay, and what it says when something is wrong."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.cli import run_command
from common.console import make_console
from profiling.bench.worker_pool import busy_cores
from profiling.onednn_log.log import Calls
from profiling.onednn_log.parse import head_of, meaning_of
from profiling.replay.command import add_benchdnn, print_replay, rows_of
from profiling.replay.replay import Conditions, Replay, ReplayTime, load_replay

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "tests" / "fixtures" / "onednn"
POOLING = FIXTURES / "benchdnn-3.7.2-pool.log"
needs_benchdnn = pytest.mark.skipif(
    shutil.which("benchdnn") is None,
    reason="no benchdnn on PATH; docs/profiling.md tells how to build one",
)


def call(*arguments: object) -> int:
    """The command as a user types it; its exit code."""
    parser = argparse.ArgumentParser()
    add_benchdnn(parser.add_subparsers(required=True))
    found = vars(parser.parse_args(["benchdnn", *map(str, arguments)]))
    run = found.pop("run")
    return run_command(lambda: run(**found))


def test_write_only_writes_files_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(POOLING, "--out", tmp_path, "--write-only") == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pool.txt"]
    assert f"{tmp_path}/pool.txt: 9 problems" in capsys.readouterr().out


def test_top_takes_the_costliest_and_says_their_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(POOLING, "--out", tmp_path, "--write-only", "--top", 3) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("the 3 costliest of 9 problems: ")
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sum(line.startswith("--reset") for line in lines) == 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--benchdnn", "/nowhere"], "error: --benchdnn: /nowhere is not there"),
        (["--cpus", "99999"], "error: --cpus: '99999': this process may use "),
        (["--write-only", "--json", "numbers.json"], "error: --json: there are no numbers"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_written(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call(POOLING, "--out", out, *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(why)
    assert told.count("\n") == 1
    assert not out.exists()


def test_files_of_before_stay_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(POOLING, "--out", tmp_path, "--write-only") == 0
    assert call(POOLING, "--out", tmp_path, "--write-only") == 2
    assert "exists; give --overwrite or another --out" in capsys.readouterr().err
    assert call(POOLING, "--out", tmp_path, "--write-only", "--overwrite") == 0


@needs_benchdnn
def test_a_replay_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = tmp_path / "numbers.json"
    options = ("--repeats", 3, "--no-cold", "--top", 4, "--json", numbers)
    assert call(POOLING, "--out", tmp_path / "out", *options) == 0
    printed = capsys.readouterr().out
    assert "runner: benchdnn of oneDNN " in printed
    assert "replayed: 4 of 4 problems, 100.0% of their time" in printed
    replay = load_replay(tmp_path / "out" / "replay.json")
    assert (replay.runner, len(replay.times), replay.not_replayed) == ("benchdnn", 4, {})
    rows = json.loads(numbers.read_text())["problems"]
    assert [row["total_ms"] for row in rows] == sorted(
        (row["total_ms"] for row in rows), reverse=True
    )
    assert {row["hot_ms"] for row in rows} == {time.hot_ms for time in replay.times.values()}


def test_other_work_beside_a_replay_is_named_before_its_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = min(os.sched_getaffinity(0))
    words = ("--out", tmp_path / "out", "--threads", 1, "--cpus", cpu, "--top", 1)
    with busy_cores([cpu]):
        assert call(POOLING, *words, "--json", tmp_path / "numbers.json") == 0
    printed = capsys.readouterr().out
    assert "caution: the replay was disturbed" in printed.partition("problems run again")[0]
    assert load_replay(tmp_path / "out" / "replay.json").other_cores > 0.1
    assert json.loads((tmp_path / "numbers.json").read_text())["other_cores"] > 0.1


@needs_benchdnn
def test_another_benchdnn_s_language_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(POOLING, "--out", tmp_path / "out", "--dialect", 2) == 2
    assert capsys.readouterr().err.startswith("error: --dialect 2: ")


@needs_benchdnn
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = FIXTURES / "benchdnn-3.7.2-conv.log"
    words = ["benchdnn", log, "--out", out, "--repeats", 200_000, "--no-cold", "--threads", 1]
    running = subprocess.Popen(
        [sys.executable, "-m", "profiling", *map(str, words)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = wait_for_child(running.pid)
    running.send_signal(signal.SIGINT)
    printed, told = running.communicate(timeout=30)
    assert running.returncode == 130, told
    assert "are kept in" in printed
    replay = load_replay(out / "replay.json")
    assert "interrupted before its turn" in replay.not_replayed.values()
    assert not Path(f"/proc/{child}").exists()


def wait_for_child(parent: int) -> int:
    """The benchdnn that measures, once there is one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                status = (entry / "status").read_text()
            except OSError:
                continue
            if b"--mode=P" in words and f"PPid:\t{parent}\n" in status:
                return int(entry.name)
        time.sleep(0.05)
    raise AssertionError("no benchdnn was started")


def test_what_has_no_time_is_told_with_its_share_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = "v1,primitive,exec,cpu,pooling,{},forward_training,,,alg:pooling_max,mb1ic8,0.5"
    problems = [meaning_of(head_of(head.format(name))).problem for name in ("a", "b", "c")]
    calls = {}
    for problem, milliseconds in zip(problems, (6.0, 3.0, 1.0), strict=True):
        assert problem is not None
        calls[problem] = Calls()
        calls[problem].add(milliseconds)
    first, second, _ = calls
    replay = Replay(
        "benchdnn",
        "3.7.2",
        "",
        Conditions(1),
        times={first: ReplayTime(2.0, None, 20, "another")},
        not_replayed={second: "benchdnn: UNIMPLEMENTED"},
    )
    rows = rows_of(calls, replay)
    assert [row.ratio for row in rows] == [3.0, None, None]
    print_replay(make_console(), rows)
    printed = capsys.readouterr().out
    assert "a → another" in printed
    assert "replayed: 1 of 3 problems, 60.0% of their time" in printed
    assert "not replayed: 1 (pooling), 30.00% of the time: benchdnn: UNIMPLEMENTED" in printed
    assert "not replayed: 1 (pooling), 10.00% of the time: was not reached" in printed
