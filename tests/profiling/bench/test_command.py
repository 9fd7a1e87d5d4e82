"""The whole command, with its real worker processes, on tiny images."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiling.__main__ import main
from retinanet.engine.tile_convolution import has_tiles
from retinanet.engine.winograd import choose_winograd
from tests.launch.processes_left import wait_until_ended
from tests.support.commands import RunHere
from tests.support.fast_precision import needs_bf16

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = ["--images=1", "--image-size=64", "--classes=3", "--rounds=2", "--warm-up=1"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "profiling", "bench", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@needs_bf16  # both train in it
def test_a_step_of_ours_and_of_torchvisions(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    # Not 64 pixels: P6 is 1×1 there, and oneDNN leaves its weight gradient in BF16 to chance.
    sizes = ["--images=1", "--image-size=128", "--classes=3", "--rounds=2", "--warm-up=1"]
    done = bench("step", "--contestants=torch,torchvision", "--where", *sizes, f"--json={file}")
    assert done.returncode == 0, done.stderr
    assert "torch against torchvision" in done.stdout
    assert "at least 4.5" not in done.stdout  # targets are for the standard batch
    assert "aten::" in done.stdout and "torchvision" in done.stderr
    content = json.loads(file.read_text())
    ours, theirs = content["contestants"]["torch"], content["contestants"]["torchvision"]
    for variant in (ours, theirs):
        assert len(variant["runs_s"]) == len(variant["page_faults_of_runs"]) == 2
        assert min(variant["runs_s"]) <= variant["median_s"] <= max(variant["runs_s"])
        assert variant["peak_rss_mb"] >= variant["rss_mb"] > 100
        assert 0 < variant["onednn_share"] <= variant["convolving_share"] < 1
        assert {"convolution backward_weights"} <= variant["onednn_s"].keys()
    for variant in (ours, theirs):
        by_phase = variant["gigabytes_moved_by_phase"]
        assert {"forward", "loss", "backward", "optimizer"} <= by_phase.keys()
        assert sum(by_phase.values()) == pytest.approx(variant["gigabytes_moved"])
        assert "aten::convolution_backward" in {row["operator"] for row in variant["bytes_moved"]}
    assert ours["gigabytes_moved"] < theirs["gigabytes_moved"]
    assert "bytes read and written by operators" in done.stdout
    has_own_kernels = choose_winograd("auto") or has_tiles()
    assert (ours["convolving_share"] > ours["onednn_share"]) == has_own_kernels
    assert theirs["convolving_share"] == theirs["onednn_share"]
    assert (ours["allocator"], theirs["allocator"]) == ("tuned", "system")
    # The same weights, images and boxes, and as many steps on them.
    assert ours["details"]["loss"] == pytest.approx(theirs["details"]["loss"], rel=0.02)
    pairs = [other / own for own, other in zip(ours["runs_s"], theirs["runs_s"], strict=True)]
    assert content["ratios"]["torch/torchvision"] == pytest.approx(sum(pairs) / 2)
    assert content["environment"]["cores"] == len(os.sched_getaffinity(0))
    assert content["environment"]["torch"]


def test_an_unknown_contestant_is_told_before_anything_runs(run_here: RunHere) -> None:
    done = run_here(main, "bench", "step", "--contestants=torch,tensorflow")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'tensorflow'" in done.stderr and "torchvision-tuned" in done.stderr


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, run_here: RunHere) -> None:
    file = tmp_path / "step.json"
    file.write_text("kept")
    words = ("--contestants=torch", *TINY, f"--json={file}")
    done = run_here(main, "bench", "step", *words)
    assert done.returncode == 2 and str(file) in done.stderr
    assert file.read_text() == "kept"


@pytest.mark.parametrize("size", ["8", "100", "large"])
def test_images_that_the_network_cannot_take_are_refused(size: str, run_here: RunHere) -> None:
    done = run_here(main, "bench", "step", "--contestants=torch", f"--image-size={size}")
    assert done.returncode == 2
    assert "--image-size: expected a multiple of 32" in done.stderr


def test_a_worker_that_is_killed_is_one_line() -> None:
    process, worker = start_bench()
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == (
        "error: torch: its process was ended by SIGKILL (out of memory?)"
    )
    assert "Traceback" not in errors


def test_ctrl_c_leaves_no_worker() -> None:
    process, worker = start_bench()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n") and "Traceback" not in errors
    # One that Ctrl-C met while it was being started ends by itself, once it finds its input closed.
    wait_until_ended([worker], seconds=60)


def start_bench() -> tuple[subprocess.Popen[str], int]:
    """A benchmark with one worker, and the worker's process id."""
    command = [sys.executable, "-m", "profiling"]
    command += ["bench", "step", "--contestants=torch"]
    # A group of its own, as a terminal gives it, which Ctrl-C signals as a whole.
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, process_group=0
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (workers := children.read_text().split()):
        time.sleep(0.05)
    return process, int(workers[0])
