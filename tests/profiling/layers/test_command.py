"""`retinanet profile layers`, with its real workers, on small images."""

import csv
import json
from pathlib import Path

import pytest

from profiling.__main__ import main
from tests.support.commands import RunHere

SMALL = ["--batch=2", "--image-size=64", "--warm-up=1", "--threads=1"]


@pytest.mark.slow
def test_engines_are_compared_and_the_default_one_runs_no_onednn(
    run_here: RunHere, tmp_path: Path
) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    options = ["--iterations=1", "--onednn=both", "--precision=float32", "--huge-pages"]
    files = [f"--out={out}", f"--json={numbers}"]
    done = run_here(main, "layers", "alexnet", *SMALL, *options, *files)
    assert done.returncode == 0, done.stderr
    default, optimized = json.loads(numbers.read_text())["configurations"]
    assert (default["onednn"], optimized["onednn"]) == (False, True)
    assert default["onednn_s"] == {}
    assert any(kind.startswith("convolution backward") for kind in optimized["onednn_s"])
    for study in (default, optimized):
        assert len(study["iterations_ms"]) == len(study["unwatched_iterations_ms"]) == 1
        total = sum(layer["forward"]["mean"] for layer in study["layers"])
        total += sum(layer["backward"]["mean"] for layer in study["layers"] if layer["backward"])
        assert total == pytest.approx(study["total_ms"], rel=1e-9)
        assert 0 < study["convolving_share"] < 1 and study["notes"] == []
    assert "default engine (oneDNN off)" in done.stdout and "times as fast" in done.stdout
    assert "oneDNN ran nevertheless" not in done.stdout
    assert sorted(file.name for file in out.iterdir()) == ["layers.csv", "layers.png", "layers.svg"]
    rows = list(csv.DictReader((out / "layers.csv").read_text().splitlines()))
    names = {row["layer"] for row in rows}
    assert {"features.0", "classifier.6", "loss", "between layers"} <= names
    again = run_here(main, "layers", "alexnet", *SMALL, f"--out={out}")
    assert again.returncode == 2 and "layers.csv: exists; give --overwrite" in again.stderr


NO_GPU = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["vgg"], "MODEL: 'vgg'"),
        (["alexnet", "--threads=4096"], "--threads 4096"),
        (["alexnet", "--memory=near"], "--memory: expected local, interleave, "),
        (["alexnet", "--device=cuda", "--onednn=both"], "--onednn: "),
        pytest.param(["alexnet", "--device=cuda"], "--device: cuda: ", marks=NO_GPU),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], problem: str, run_here: RunHere
) -> None:
    done = run_here(main, "layers", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {problem}")
