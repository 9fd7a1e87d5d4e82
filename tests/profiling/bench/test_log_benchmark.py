"""Reading a long log, and the log that is made for it."""

import json
from pathlib import Path

import pytest

from common.cli import run_command
from profiling.__main__ import main
from profiling.bench.generated import write_log
from profiling.onednn_log.log import read_logs


def test_a_generated_log_holds_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    total = write_log(file, lines=300, problems=20)
    log = read_logs([file])
    calls = log.calls()
    assert (len(calls), sum(one.count for one in calls.values())) == (20, 300)
    assert log.total_ms == total
    assert log.lines == 300 + 3 + 6
    assert log.not_understood_count == 0


def test_the_benchmark_writes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = tmp_path / "numbers.json"
    words = ["profiling", "bench", "log", "--lines", "500", "--problems", "10", "--json"]
    monkeypatch.setattr("sys.argv", [*words, str(numbers)])
    assert run_command(main) == 0
    found = {one["what"]: one for one in json.loads(numbers.read_text())["findings"]}
    assert 0 < found["reading, time"]["value"] < 60
    assert 5 < found["reading, peak memory"]["value"] < 300
    assert found["reading, time"]["target"] == ""  # the target is that of a million lines
