"""The HEALTHCHECK of the image, with a real process that keeps the files of a run open."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.image.health import SILENCE_S, main

HOLDER = "import sys, time; file = open(sys.argv[1], 'a'); print(flush=True); time.sleep(60)"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "a (very) odd name"


@pytest.fixture
def training(run_folder: Path) -> Iterator[subprocess.Popen[str]]:
    run_folder.mkdir()
    command = [sys.executable, "-c", HOLDER, str(run_folder / "metrics.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def age(file: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(file, (then, then))


@pytest.fixture(autouse=True)
def only_this_training(monkeypatch: pytest.MonkeyPatch, run_folder: Path) -> None:
    from launch.image import health

    trainings = health.trainings
    monkeypatch.setattr(  # other tests of the suite train beside this one
        health,
        "trainings",
        lambda processes: [
            item for item in trainings(processes) if item[1][0].parent == run_folder
        ],
    )


def test_container_without_a_training_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out == ""


def test_training_that_writes_is_healthy(
    training: subprocess.Popen[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main() == 0
    age(run_folder / "metrics.jsonl", SILENCE_S / 2)
    assert main() == 0
    monkeypatch.setenv("HEALTH_SILENCE_S", str(SILENCE_S / 3))
    assert main() == 1


def test_silent_training_is_unhealthy(
    training: subprocess.Popen[str], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    age(run_folder / "metrics.jsonl", SILENCE_S + 60)
    assert main() == 1
    output = capsys.readouterr().out
    assert output.startswith(f"process {training.pid} has written nothing into {run_folder} for 36")


def test_suspended_training_is_unhealthy(
    training: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    training.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, training.pid, os.WSTOPPED | os.WNOWAIT)
    assert main() == 1
    assert f"kill -CONT {training.pid}" in capsys.readouterr().out
    training.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, training.pid, os.WCONTINUED | os.WNOWAIT)
    assert main() == 0
