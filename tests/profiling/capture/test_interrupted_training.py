"""Files of a training that ends within the profiled steps, by a signal or an error; resuming."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from common.cli import run_command
from data.coco_json import read_annotations
from data.loader import training_keys
from profiling.onednn_log.log import read_logs
from tests.profiling.capture.training_runs import (
    marks_of_step,
    read_events,
    read_marks,
    run_settings,
    start_training,
)
from train import main

pytestmark = pytest.mark.slow


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    errors: str


Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ends")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `train.py` in this process, without pinning, as torch is loaded already."""
    for name in ("OMP_NUM_THREADS", "ONEDNN_VERBOSE_TIMESTAMP"):
        monkeypatch.setenv(name, "1")  # training changes it; monkeypatch restores it

    def command(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments, "launch.pin=false"])
        capfd.readouterr()
        code = run_command(main)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


@pytest.fixture(scope="module")
def stopped(root: Path) -> tuple[Outcome, Path]:
    """Send SIGTERM to a run in the middle of its profiled steps."""
    settings = ("training.max_steps=9999", "training.epochs=9999", "evaluation.every=9999")
    window = ("profile.onednn.steps=2-9999", "profile.trace.steps=2-9999")
    process = start_training(*run_settings(root, "stopped", *settings, *window))
    metrics = root / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    return Outcome(process.returncode, output, errors), root / "stopped"


def test_signal_within_the_profiled_steps_leaves_whole_files(stopped: tuple[Outcome, Path]) -> None:
    outcome, run = stopped
    assert (outcome.code, outcome.errors) == (75, "")
    last = len((run / "metrics.jsonl").read_text().splitlines())
    steps = list(range(2, last + 1))
    log, trace = run / "onednn" / "rank0.log", run / "trace" / "rank0.json.gz"
    assert read_marks(log) == [mark for step in steps for mark in marks_of_step(step)]
    names = [event["name"] for event in read_events(trace)]
    assert [name for name in names if name.startswith("step ")] == [
        f"step {step}" for step in steps
    ]
    assert [file.name for file in trace.parent.iterdir()] == [trace.name]
    assert f"{log}, steps 2-{last}\n" in outcome.output
    assert f"note: profile.onednn: only steps 2-{last} of steps 2-9999" in outcome.output


@pytest.mark.exhaustive
def test_resumed_run_adds_files_and_leaves_the_earlier_ones_alone(
    stopped: tuple[Outcome, Path],
    root: Path,
    train: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    _, run = stopped
    earlier = (run / "onednn" / "rank0.log").read_bytes()
    next_step = len((run / "metrics.jsonl").read_text().splitlines()) + 1
    for program in ("c++", "g++", "gcc", "cc", "ld", "as"):  # all that a run needs, without perf
        if path := shutil.which(program):
            (tmp_path / program).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = train(
        *run_settings(root, "stopped", f"training.max_steps={next_step}", "--resume"),
        *(f"profile.onednn.steps={next_step}", "profile.trace.steps=1", "profile.perf=true"),
    )
    assert outcome.code == 0, outcome.errors
    log = run / "onednn" / f"rank0-from-step-{next_step}.log"
    assert read_marks(log) == marks_of_step(next_step)
    assert read_logs([run / "onednn" / "rank0.log", log]).steps == list(range(2, next_step + 1))
    assert (run / "onednn" / "rank0.log").read_bytes() == earlier
    notes = [line for line in outcome.output.splitlines() if line.startswith("note: profile.trace")]
    assert len(notes) == 2 and f"step {next_step}, not step 1" in notes[0]
    assert "nothing was recorded" in notes[1]
    assert outcome.output.index("perf is not installed") < outcome.output.index("finished")
    assert not (run / "perf").exists()


@pytest.mark.exhaustive
def test_error_in_a_step_restores_the_output_and_leaves_the_step_open(
    stopped: tuple[Outcome, Path], root: Path, train: Command, tmp_path: Path
) -> None:
    scenes = tmp_path / "scenes"
    shutil.copytree(stopped[1] / "scenes", scenes)
    annotations = read_annotations(scenes / "train" / "labels" / "openimages-mlperf.json")
    rows = annotations.images_with_objects()
    _, second, *_ = training_keys(len(rows), seed=0, epoch=0, batch_size=2)
    image = scenes / "train" / "data" / annotations.file_names[rows[second[0].index]]
    image.write_bytes(image.read_bytes()[:100])
    window = ("profile.onednn.steps=1-3", "profile.trace.steps=1-3", "profile.perf=true")
    data = ("data.scenes=null", f"data.root={scenes}")
    outcome = train(*run_settings(root, "damaged", *data, *window))
    assert outcome.code == 2
    assert outcome.errors.startswith(f"error: {image}: ")
    assert outcome.errors.count("\n") == 1
    log = root / "damaged" / "onednn" / "rank0.log"
    marks = read_marks(log)
    assert marks[: len(marks_of_step(1)) + 1] == [*marks_of_step(1), "begin,2"]
    assert "end,2" not in marks and "begin,2,data" in marks
    assert f"{log}, step 1\n" in outcome.output
    size = log.stat().st_size
    os.write(1, b"to the terminal\n")
    assert log.stat().st_size == size


def test_input_error_is_one_line_with_hooks(root: Path, train: Command) -> None:
    outcome = train(*run_settings(root, "bad", "data.root=/nowhere", "profile.onednn.steps=1"))
    assert outcome.code == 2 and outcome.errors.count("\n") == 1
    assert outcome.output == "" and not (root / "bad").exists()
