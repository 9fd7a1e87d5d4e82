"""Signals at the start of a run: before there is anything to save, and before the first step."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.ranks import TrainHere, ended
from tests.support.fast_precision import FAST_PRECISION
from tests.support.training_runs import start_training

pytestmark = pytest.mark.slow

SETTINGS = (
    "data.scenes.train=2000",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=1",
    "training.max_steps=1",
    "training.optimizer=sgd",
    "evaluation.pictures=0",
    f"engine.precision={FAST_PRECISION}",
)


@contextmanager
def signal_when(path: Path, number: signal.Signals) -> Iterator[None]:
    """Send a signal to this process as soon as a path exists."""

    def send() -> None:
        end = time.monotonic() + 60
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    ("number", "ending"),
    [
        (signal.SIGTERM, (5, "SIGTERM before the first step: nothing was written")),
        (signal.SIGINT, (130, "interrupted")),
    ],
)
def test_signal_while_data_are_made_ends_the_run_and_leaves_no_files(
    number: signal.Signals, ending: tuple[int, str], tmp_path: Path, train_here: TrainHere
) -> None:
    code, message = ending
    run = tmp_path / "runs" / "mine"
    with signal_when(run / ".lock", number):
        ended = train_here(*SETTINGS, f"run.root={run.parent}", "run.name=mine")
    assert ended.code == code
    assert ended.errors.splitlines()[-1].startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_signal_before_the_first_step_writes_a_checkpoint(
    tmp_path: Path, train_here: TrainHere
) -> None:
    arguments = (*SETTINGS, "data.scenes.train=2", f"run.root={tmp_path}", "run.name=mine")
    with signal_when(tmp_path / "mine" / "config.yaml", signal.SIGUSR1):
        ended = train_here(*arguments)
    # A batch script that queued the job again would come back to the same place for ever.
    text = "SIGUSR1: checkpoint written, but no step was made since the start; continue with: "
    assert ended.code == 5 and text in ended.output
    resumed = train_here(*arguments, "--auto-resume")
    assert resumed.code == 0
    assert "finished after 1 steps" in " ".join(resumed.output.split())


def test_signal_of_a_batch_system_while_libraries_are_loaded_is_one_line(tmp_path: Path) -> None:
    process = start_training(*SETTINGS, f"run.root={tmp_path}", "run.name=mine")
    status = Path(f"/proc/{process.pid}/status")
    usr1, end = 1 << signal.SIGUSR1 - 1, time.monotonic() + 60
    while not int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16) & usr1:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGUSR1)
    outcome = ended(process)
    assert outcome.code == 5
    assert outcome.errors.splitlines() == [
        "SIGUSR1 before the first step: nothing was written; run the same command again"
    ]
    assert list(tmp_path.iterdir()) == []
