"""Benchmarks without variants: `checkpoint`, `index`, `log` and `metric`."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import OUR_BUG
from data.coco_json import read_annotations
from profiling.__main__ import main
from profiling.bench import single
from profiling.bench.generated import (
    write_annotations,
    write_log,
)
from profiling.bench.single import checkpoint_findings, largest_difference
from tests.support.commands import RunHere
from tests.support.mounts import needs_root, tmpfs


def read_findings(file: Path) -> dict[str, dict[str, Any]]:
    return {finding["what"]: finding for finding in json.loads(file.read_text())["findings"]}


@pytest.mark.exhaustive
def test_checkpoint_writes_real_checkpoints_and_removes_them(
    run_here: RunHere, tmp_path: Path
) -> None:
    file = tmp_path / "numbers.json"
    options = ("--rounds", "1", "--images", "1", "--image-size", "64", "--folder", tmp_path)
    done = run_here(main, "bench", "checkpoint", *options, "--json", file)
    assert done.returncode == 0, done.stderr
    findings = read_findings(file)
    assert 400 < findings["tensors of a checkpoint"]["value"] < 500
    assert findings["copying (training waits)"]["value"] > 0
    assert findings["writing (training continues)"]["value"] > 0
    assert findings["share of a run with checkpoint.every=10min"]["target"] == "at most 1%"
    assert list(tmp_path.iterdir()) == [file]


def test_checkpoint_share_is_copying_and_slower_steps_in_ten_minutes() -> None:
    times = {"quiet_step": 3.0, "copying": 1.0, "writing": 2.0, "slower": 5.0, "bytes": 4e8}
    share = checkpoint_findings([times, times])[-1]
    assert share.value == pytest.approx(6 / 606) and share.is_met
    assert not checkpoint_findings([times | {"slower": 9.0}])[-1].is_met
    noise = checkpoint_findings([times | {"slower": -3.0}])[-1]
    assert noise.value == pytest.approx(1 / 601)


def test_generated_annotations_have_the_requested_size(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    progress: list[int] = []
    write_annotations(
        path, images=300, boxes=1000, advance=lambda done, note: progress.append(done)
    )
    assert len(json.loads(path.read_bytes())["annotations"]) == 1000
    annotations = read_annotations(path)
    assert len(annotations) == 300 and len(annotations.boxes) == 1000
    assert 10 < annotations.box_is_crowd.sum() < 100
    assert len(set(annotations.file_names)) == 300 and progress[-1] == 300


@pytest.mark.exhaustive
def test_index_is_opened_by_processes_and_removed(tmp_path: Path) -> None:
    options = ["--images", "50", "--boxes", "200", "--ranks", "2", "--folder", str(tmp_path)]
    file = tmp_path / "numbers.json"
    # A separate process: its children start with its memory, which they measure.
    command = [sys.executable, "-m", "profiling", "bench", "index", *options, "--json", str(file)]
    subprocess.run(command, capture_output=True, check=True)
    findings = read_findings(file)
    assert 0 < findings["opening, slowest of 2 ranks"]["value"] < 60
    assert 10 < findings["converting, peak memory"]["value"] < 2000
    assert list(tmp_path.iterdir()) == [file]


@needs_root
def test_index_needs_space_before_anything_is_written(run_here: RunHere, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=8m") as folder:
        options = ("--images", "1", "--boxes", "1000000", "--folder", folder)
        done = run_here(main, "bench", "index", *options)
        assert done.returncode == 2 and "--folder" in done.stderr
        assert not list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [(0.0, 0), (1.0, OUR_BUG)])
def test_log_is_measured_and_its_sum_checked(
    run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float, code: int
) -> None:
    def write_wrong_log(file: Path, *, lines: int, problems: int) -> float:
        return write_log(file, lines=lines, problems=problems) + error

    monkeypatch.setattr(single, "write_log", write_wrong_log)
    file = tmp_path / "numbers.json"
    done = run_here(main, "bench", "log", "--lines", "500", "--problems", "10", "--json", file)
    assert done.returncode == code
    assert ("error: " in done.stdout) == bool(error)
    findings = read_findings(file)
    assert 0 < findings["reading, time"]["value"] < 60
    assert 5 < findings["reading, peak memory"]["value"] < 300
    assert findings["reading, time"]["target"] == ""  # the target is for a million lines


@pytest.mark.slow
def test_metric_of_both_libraries_is_equal(run_here: RunHere, tmp_path: Path) -> None:
    file = tmp_path / "metric.json"
    done = run_here(main, "bench", "metric", "--images", "40", "--found", "30", "--json", file)
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text())
    assert content["workload"] == {"images": 40, "found": 30}
    seconds, memory, difference, *_ = content["findings"]
    assert seconds["value"] > 0 and 0.05 < memory["value"] < 4
    assert difference["what"].startswith("4 images: ") and difference["value"] < 1e-9
    assert all(finding["target"] == "" for finding in content["findings"])


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [([0.5, math.nan], [0.25, math.nan], 0.25), ([0.5, math.nan], [0.5, 0.5], math.nan)],
)
def test_number_that_only_one_library_has_is_a_difference(
    ours: list[float], theirs: list[float], difference: float
) -> None:
    assert largest_difference(ours, theirs) == pytest.approx(difference, nan_ok=True)
