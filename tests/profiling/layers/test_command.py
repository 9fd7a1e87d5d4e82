"""The whole command, with its real workers, on small images."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiling.layers.study import fits

REPOSITORY = Path(__file__).resolve().parents[3]

PROGRAM = """
import argparse, sys
from profiling.layers.command import add_layers
from common.cli import run_command
def main():
    parser = argparse.ArgumentParser()
    add_layers(parser.add_subparsers())
    arguments = vars(parser.parse_args())
    run = arguments.pop("run")
    return run(**arguments)
sys.exit(run_command(main))
"""

SMALL = ["--batch=2", "--image-size=64", "--warm-up=1", "--threads=1"]


def layers(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "layers", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_engines_in_turn_and_the_default_one_runs_no_onednn(tmp_path: Path) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    words = ["--iterations=2", "--onednn=both", "--precision=float32", "--huge-pages"]
    done = layers("alexnet", *SMALL, *words, f"--out={out}", f"--json={numbers}")
    assert done.returncode == 0, done.stderr
    default, optimized = json.loads(numbers.read_text())["configurations"]
    assert (default["onednn"], optimized["onednn"]) == (False, True)
    assert default["onednn_s"] == {}
    assert any(kind.startswith("convolution backward") for kind in optimized["onednn_s"])
    for one in (default, optimized):
        assert len(one["iterations_ms"]) == 2 and len(one["unwatched_iterations_ms"]) == 1
        shown = sum(layer["forward"]["mean"] for layer in one["layers"])
        shown += sum(layer["backward"]["mean"] for layer in one["layers"] if layer["backward"])
        assert shown == pytest.approx(one["total_ms"], rel=1e-9)
        assert 0 < one["convolving_share"] < 1 and one["notes"] == []
    assert "default engine (oneDNN off)" in done.stdout and "times as fast" in done.stdout
    assert "oneDNN ran all the same" not in done.stdout
    assert sorted(file.name for file in out.iterdir()) == ["layers.csv", "layers.png", "layers.svg"]
    rows = list(csv.DictReader((out / "layers.csv").read_text().splitlines()))
    names = {row["layer"] for row in rows}
    assert {"features.0", "classifier.6", "loss", "between layers"} <= names
    again = layers("alexnet", *SMALL, f"--out={out}")
    assert again.returncode == 2 and "layers.csv: exists; give --overwrite" in again.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["vgg"], "MODEL: 'vgg' is not known; choose from retinanet, alexnet, resnet50, resnext50"),
        (["alexnet", "--threads=4096"], "--threads: 4096 are more than the"),
        (["alexnet", "--memory=near"], "--memory: expected local, interleave, "),
        (["alexnet", "--device=cuda", "--onednn=both"], "--onednn: is the processor's; leave it"),
    ],
)
def test_wrong_arguments_are_one_line(words: list[str], problem: str) -> None:
    done = layers(*words)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {problem}")


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_a_missing_gpu_is_one_line() -> None:
    done = layers("alexnet", "--device=cuda")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --device: cuda: ")


def test_ctrl_c_leaves_no_worker() -> None:
    command = [sys.executable, "-c", PROGRAM, "layers", "alexnet"]
    process = subprocess.Popen(
        [*command, *SMALL], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, process_group=0
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (workers := children.read_text().split()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n") and "Traceback" not in errors
    worker, end = Path(f"/proc/{workers[0]}"), time.monotonic() + 10
    while worker.exists():  # until its new parent has taken note of its end
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_first_worker_always_fits() -> None:
    assert fits([])
