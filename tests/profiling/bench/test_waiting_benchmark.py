import json
from pathlib import Path

import pytest

from common.cli import run_command
from profiling.__main__ import main
from tests.support.fast_precision import FAST_PRECISION

SMALL = [
    "data.scenes.train=6",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=2",
    f"engine.precision={FAST_PRECISION}",
]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["profiling", "bench", "waiting", *words])
    return run_command(main)


@pytest.mark.whole_machine
def test_ranks_train_together_and_note_what_they_waited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    numbers = tmp_path / "numbers.json"
    words = ["--steps", "2", "--workers", "1", "--json", str(numbers), *SMALL]
    assert run(monkeypatch, *words) == 0
    content = json.loads(numbers.read_text())
    (finding,) = content["findings"]
    ranks = content["workload"]["runs"]["1"]
    assert [one["rank"] for one in ranks] == [0, 1]
    for one in ranks:
        assert len(one["seconds"]) == 2
        assert all(0 < d < s for d, s in zip(one["data_seconds"], one["seconds"], strict=True))
    shares = [sum(one["data_seconds"]) / sum(one["seconds"]) for one in ranks]
    assert finding["value"] == max(shares)


def test_what_a_rank_cannot_do_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--config", "coco.yaml", f"data.root={tmp_path / 'none'}", "--ranks", "1"]
    assert run(monkeypatch, *words) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: data.root: ") and "is not a folder" in line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "4096"], "--ranks: 4096"),
        (["--workers", "x"], "--workers: expected numbers such as 0,1, found 'x'"),
        (["data.nothing=1"], "data.nothing: no such field"),
    ],
)
def test_wrong_arguments_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    assert run(monkeypatch, *words) == 2
    assert expected in capfd.readouterr().err
