"""`retinanet profile benchdnn` as a user calls it: files, table, replay, errors."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from common.console import make_console
from profiling.__main__ import main
from profiling.bench.worker_pool import busy_cores
from profiling.replay.command import print_replay
from profiling.replay.replay import (
    Conditions,
    NotReplayed,
    Replay,
    ReplayTime,
    beside_replay,
    load_replay,
)
from tests.profiling.onednn_log.logs import FIXTURES
from tests.profiling.replay.problems import make_calls, needs_benchdnn, parse_v3
from tests.support.commands import RunHere, error_line, start_program
from tests.support.processes import child_processes, processes_with, wait_until_ended

POOLING = FIXTURES / "benchdnn-3.7.2-pool.log"


def test_write_only_writes_files_and_runs_nothing(tmp_path: Path, run_here: RunHere) -> None:
    command = ("benchdnn", POOLING, "--out", tmp_path, "--write-only")
    done = run_here(main, *command)
    assert done.returncode == 0 and f"{tmp_path}/pool.txt: 9 problems" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["pool.txt"]
    assert "--overwrite" in error_line(run_here(main, *command))
    done = run_here(main, *command, "--overwrite", "--top", "3")
    assert done.returncode == 0 and done.stdout.startswith("the 3 costliest of 9 problems: ")
    lines = (tmp_path / "pool.txt").read_text().splitlines()
    assert sum(line.startswith("--reset") for line in lines) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--benchdnn", "/nowhere"], "--benchdnn: /nowhere"),
        (["--cpus", "99999"], "--cpus: '99999'"),
        (["--write-only", "--json", "numbers.json"], "--json: "),
    ],
)
def test_wrong_option_is_one_line_and_nothing_is_written(
    arguments: list[str], reason: str, tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "out"
    done = run_here(main, "benchdnn", POOLING, "--out", out, *arguments)
    assert error_line(done).startswith(f"error: {reason}")
    assert not out.exists()


@needs_benchdnn
@pytest.mark.slow
def test_replay_is_printed_and_saved(tmp_path: Path, run_here: RunHere) -> None:
    numbers = tmp_path / "numbers.json"
    options = ("--repeats=3", "--no-cold", "--top=4", "--json", numbers)
    done = run_here(main, "benchdnn", POOLING, "--out", tmp_path / "out", *options)
    assert done.returncode == 0 and "runner: benchdnn of oneDNN " in done.stdout
    assert "replayed: 4 of 4 problems, 100.0% of their time" in done.stdout
    replay = load_replay(tmp_path / "out" / "replay.json")
    assert (replay.runner, len(replay.times), replay.not_replayed) == ("benchdnn", 4, [])
    rows = json.loads(numbers.read_text())["problems"]
    assert rows == sorted(rows, key=lambda row: -row["total_ms"])
    assert {row["hot_ms"] for row in rows} == {time.hot_ms for time in replay.times}


@pytest.mark.slow
def test_other_work_during_a_replay_is_printed_before_the_times(
    tmp_path: Path, run_here: RunHere
) -> None:
    cpu = min(os.sched_getaffinity(0))
    short = ("--top=1", "--repeats=3", "--no-cold", "--threads=1", f"--cpus={cpu}")
    files = ("--out", tmp_path / "out", "--json", tmp_path / "numbers.json")
    with busy_cores([cpu]):
        done = run_here(main, "benchdnn", POOLING, *files, *short)
    assert done.returncode == 0
    assert "caution: the replay was disturbed" in done.stdout.partition("problems run again")[0]
    assert load_replay(tmp_path / "out" / "replay.json").other_cores > 0.1
    assert json.loads((tmp_path / "numbers.json").read_text())["other_cores"] > 0.1


@needs_benchdnn
@pytest.mark.slow
def test_dialect_of_another_version_is_refused(tmp_path: Path, run_here: RunHere) -> None:
    done = run_here(main, "benchdnn", POOLING, "--out", tmp_path / "out", "--dialect=2")
    assert error_line(done).startswith("error: --dialect 2: ")


@needs_benchdnn
@pytest.mark.slow
def test_ctrl_c_saves_finished_problems_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = FIXTURES / "benchdnn-3.7.2-conv.log"
    arguments = ["benchdnn", log, "--out", out, "--repeats", 200_000, "--no-cold", "--threads", 1]
    running = start_program(sys.executable, "-m", "profiling", *map(str, arguments))
    child = wait_for_child(running.pid)
    running.send_signal(signal.SIGINT)
    printed, errors = running.communicate(timeout=30)
    assert running.returncode == 130, errors
    assert "are saved in" in printed
    replay = load_replay(out / "replay.json")
    assert "not run: interrupted" in {item.why for item in replay.not_replayed}
    wait_until_ended([child])


def wait_for_child(parent: int) -> int:
    """Return the process that measures, once it has started."""
    end = time.monotonic() + 60
    while not (processes := {*processes_with("--mode=P")} & {*child_processes(parent)}):
        assert time.monotonic() < end, "no benchdnn was started"
        time.sleep(0.05)
    return processes.pop()


def test_problems_without_a_time_are_printed_with_share_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "cpu,pooling,{},forward_training,,,alg:pooling_max,mb1ic8"
    first, second, third = (parse_v3(line.format(name)) for name in "abc")
    calls = {first: make_calls(6.0), second: make_calls(3.0), third: make_calls(1.0)}
    replay = Replay(
        "benchdnn",
        "3.7.2",
        "",
        Conditions(1),
        times=[ReplayTime(first, 2.0, None, 20, "another")],
        not_replayed=[NotReplayed(second, "benchdnn: UNIMPLEMENTED")],
    )
    rows = beside_replay(calls, replay)
    assert [row.log_over_hot for row in rows] == [3.0, None, None]
    print_replay(make_console(), rows)
    printed = capsys.readouterr().out
    assert "a → another" in printed and "1 of 3 problems, 60.0%" in printed
    assert "30.00% of the time: benchdnn: UNIMPLEMENTED" in printed
    assert "10.00% of the time: not in the replay" in printed
