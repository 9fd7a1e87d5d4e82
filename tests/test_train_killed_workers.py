"""A killed data-loading process ends the training with one error line."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.launch.ranks import ended, start_ranks
from tests.support.commands import start_program
from tests.support.fast_precision import FAST_PRECISION
from tests.support.processes import child_processes, wait_until_ended, wait_until_gone
from tests.support.training_runs import wait_for_steps

pytestmark = pytest.mark.slow

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


def the_line(errors: str) -> str:
    [line] = errors.strip().splitlines()
    assert "error: " in line and "SIGKILL" in line and "data.workers" in line
    return line


@pytest.mark.parametrize(
    "which",
    [0, pytest.param(1, marks=pytest.mark.exhaustive)],
    ids=["training", "validation"],
)
def test_a_killed_loading_process_ends_a_run_with_one_line(which: int, tmp_path: Path) -> None:
    arguments = (*SETTINGS, f"run.root={tmp_path}", "run.name=alone")
    job = start_program(sys.executable, "train.py", *arguments, start_new_session=True)
    wait_for_steps(tmp_path / "alone", job, count=1)
    workers = sorted(child_processes(job.pid))
    os.kill(workers[which], signal.SIGKILL)
    outcome = ended(job, timeout=60)
    assert outcome.code == 1
    assert f"process {workers[which]} " in the_line(outcome.errors)
    wait_until_ended(workers)


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_a_killed_loading_process_of_one_rank_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    job = start_ranks(2, "train.py", *SETTINGS, f"run.root={tmp_path}", "run.name=ranks")
    wait_for_steps(tmp_path / "ranks", job, count=1)
    [proxy] = child_processes(job.pid)
    _, second = sorted(child_processes(proxy))
    worker = min(child_processes(second))
    os.kill(worker, signal.SIGKILL)
    outcome = ended(job, timeout=60)
    assert outcome.code not in (0, 2, 3, 75)
    assert f"process {worker} " in the_line(outcome.errors)
    wait_until_gone(f"run.root={tmp_path}", seconds=20)
