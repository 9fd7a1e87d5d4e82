"""What saving costs, measured small, and the share of a run that follows."""

import json
from pathlib import Path

import pytest

from common.cli import run_command
from profiling.__main__ import main
from profiling.bench.single import checkpoint_findings


def test_the_benchmark_writes_real_checkpoints_and_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = tmp_path / "numbers.json"
    words = ["--rounds", "1", "--images", "1", "--image-size", "64", "--folder", str(tmp_path)]
    monkeypatch.setattr(
        "sys.argv", ["profiling", "bench", "checkpoint", *words, "--json", str(numbers)]
    )
    assert run_command(main) == 0
    found = {one["what"]: one for one in json.loads(numbers.read_text())["findings"]}
    assert 400 < found["tensors of a checkpoint"]["value"] < 500
    assert found["copying (training waits)"]["value"] > 0
    assert found["writing (training continues)"]["value"] > 0
    assert found["share of a run with checkpoint.every=10min"]["target"] == "at most 0.01"
    assert list(tmp_path.iterdir()) == [numbers]


def test_the_share_is_what_copying_and_slower_steps_take_of_ten_minutes() -> None:
    one = {
        "quiet_step": 3.0,
        "copying": 1.0,
        "writing": 2.0,
        "steps_meanwhile": 2.0,
        "slower": 5.0,
        "bytes": 4e8,
    }
    share = checkpoint_findings([one, one])[-1]
    assert share.value == pytest.approx(6 / 606) and share.is_met
    assert not checkpoint_findings([one | {"slower": 9.0}])[-1].is_met
    assert checkpoint_findings([one | {"slower": -3.0}])[-1].value == pytest.approx(
        1 / 601
    )  # noise
