import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.cli import run_command
from data.coco_json import read_annotations
from profiling.__main__ import main
from profiling.bench.generated import write_annotations
from tests.support.mounts import needs_root, tmpfs


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["profiling", "bench", *words])
    return run_command(main)


def test_generated_annotations_are_as_many_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    seen: list[int] = []
    write_annotations(path, images=300, boxes=1000, advance=lambda done, note: seen.append(done))
    assert len(json.loads(path.read_bytes())["annotations"]) == 1000
    annotations = read_annotations(path)
    assert len(annotations) == 300 and len(annotations.boxes) == 1000
    assert 10 < annotations.box_is_crowd.sum() < 100
    assert len(set(annotations.file_names)) == 300 and seen[-1] == 300


def test_the_index_benchmark_writes_its_numbers_and_clears_up(tmp_path: Path) -> None:
    words = ["--images", "50", "--boxes", "200", "--ranks", "2", "--folder", str(tmp_path)]
    numbers = tmp_path / "numbers.json"
    # In a process of its own: those that it starts begin with its memory, which they measure.
    command = [sys.executable, "-m", "profiling", "bench", "index", *words, "--json", str(numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    content = json.loads(numbers.read_text())
    values = {finding["what"]: finding["value"] for finding in content["findings"]}
    assert 0 < values["opening, slowest of 2 ranks"] < 60
    assert 10 < values["converting, peak memory"] < 2000
    assert "converting, time" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]


def test_a_file_of_numbers_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "numbers.json").write_text("mine")
    for benchmark in ("index", "waiting"):
        assert run(monkeypatch, benchmark, "--json", str(tmp_path / "numbers.json")) == 2
        assert "numbers.json: exists; give --json another file" in capfd.readouterr().err
    assert (tmp_path / "numbers.json").read_text() == "mine"


@needs_root
def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "small", "size=8m") as folder:
        words = ["--images", "1", "--boxes", "1000000", "--folder", str(folder)]
        assert run(monkeypatch, "index", *words) == 2
        assert "--folder" in capfd.readouterr().err
        assert not list(folder.iterdir())
