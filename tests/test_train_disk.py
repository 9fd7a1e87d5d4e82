"""Training on a full disk keeps the last good checkpoint and fails at its end."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinanet.training.checkpoint import newest_valid
from tests.launch.ranks import TrainHere
from tests.support.commands import run_program

pytestmark = pytest.mark.slow

SETTINGS = (
    "data.scenes.train=6",
    "data.scenes.validation=2",
    "data.image_size=64",
    "training.batch_size=2",
    "training.max_steps=3",
    "training.optimizer=sgd",
    "training.target_map=null",
    "evaluation.pictures=1",
    "checkpoint.every=1 steps",
    "run.name=full",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system with room for one checkpoint of 128 MB, not for two."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own takes root, and the right to mount")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)  # TensorBoard's file is open


def test_training_continues_on_a_full_disk_and_fails_at_its_end(
    disk: Path, train_here: TrainHere
) -> None:
    full = train_here(*SETTINGS, f"run.root={disk}")
    assert full.code == 2
    shown = " ".join(full.output.split())
    assert "the checkpoint after step 3 could not be written: " in shown
    assert "No space left on device" in shown and "step-000001 is kept, training continues" in shown
    [line] = full.errors.splitlines()
    assert "the checkpoint after step 3 could not be written" in line
    assert "free disk space, then continue with: " in line and line.endswith("--resume")
    newest, problems = newest_valid(disk / "full" / "checkpoints")
    assert newest is not None and newest.position.step == 1 and problems == []
    subprocess.run(["mount", "-o", "remount,size=1g", str(disk)], check=True)
    assert train_here(*SETTINGS, f"run.root={disk}", "--resume").code == 0
    newest, _ = newest_valid(disk / "full" / "checkpoints")
    assert newest is not None and newest.position.step == 3


@pytest.mark.parametrize(
    ("streams", "note"),
    [
        (">/dev/full", "note: standard output: cannot be written: No space left on device\n"),
        pytest.param(">&- <&-", "", marks=pytest.mark.exhaustive),
        pytest.param("| head -0", "", marks=pytest.mark.exhaustive),
    ],
)
def test_training_without_its_output_writes_its_run(
    tmp_path: Path, streams: str, note: str
) -> None:
    words = (*SETTINGS, "training.max_steps=1", "evaluation.pictures=0", "launch.threads=1")
    command = shlex.join([sys.executable, "train.py", *words, f"run.root={tmp_path}"])
    done = run_program("bash", "-c", f"set -o pipefail; {command} {streams}")
    assert (done.returncode, done.stderr) == (0, note)
    newest, problems = newest_valid(tmp_path / "full" / "checkpoints")
    assert newest is not None and newest.position.step == 1 and problems == []
