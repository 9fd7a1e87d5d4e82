"""A data-loading process of a training that is killed: one line, an exit status, nothing left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.ranks import REPOSITORY, ended, start_ranks
from tests.support.fast_precision import FAST_PRECISION
from tests.support.processes import children_of, wait_until_ended, wait_until_gone

SETTINGS = (
    "data.scenes.train=8",
    "data.scenes.validation=2",
    "data.image_size=64",
    "data.workers=1",
    "training.batch_size=1",
    "training.epochs=100000",
    "training.max_steps=100000",
    "evaluation.every=100000",
    "evaluation.pictures=0",
    f"engine.precision={FAST_PRECISION}",
    "distributed.timeout_s=60",
)


def wait_for_step(run: Path, job: subprocess.Popen[str]) -> None:
    metrics = run / "metrics.jsonl"
    end = time.monotonic() + 120
    while not (metrics.exists() and '"kind": "step"' in metrics.read_text()):
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.05)


def the_line(errors: str) -> str:
    [line] = errors.strip().splitlines()
    assert "error: " in line and "SIGKILL" in line and "data.workers" in line
    return line


@pytest.mark.parametrize("which", [0, 1], ids=["training", "validation"])
def test_a_killed_loading_process_ends_a_run_with_one_line(which: int, tmp_path: Path) -> None:
    words = (*SETTINGS, f"run.root={tmp_path}", "run.name=alone")
    job = subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_step(tmp_path / "alone", job)
    workers = sorted(children_of(job.pid))
    os.kill(workers[which], signal.SIGKILL)
    outcome = ended(job, timeout=60)
    assert outcome.code == 1
    assert f"process {workers[which]} " in the_line(outcome.errors)
    wait_until_ended(workers)


@pytest.mark.whole_machine
def test_a_killed_loading_process_of_one_rank_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    job = start_ranks(2, "train.py", *SETTINGS, f"run.root={tmp_path}", "run.name=ranks")
    wait_for_step(tmp_path / "ranks", job)
    [proxy] = children_of(job.pid)
    _, second = sorted(children_of(proxy))
    worker = min(children_of(second))
    os.kill(worker, signal.SIGKILL)
    outcome = ended(job, timeout=60)
    assert outcome.code not in (0, 2, 3, 75)
    assert f"process {worker} " in the_line(outcome.errors)
    wait_until_gone(f"run.root={tmp_path}", seconds=20)
