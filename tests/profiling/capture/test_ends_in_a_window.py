"""What is left when a training ends within a window, or no window comes, or nothing can be kept."""

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
from tests.profiling.capture.small_runs import (
    events_of,
    marks_of,
    marks_of_step,
    settings_in,
    start,
)
from train import main


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
    """The command line within this process: torch is loaded already, so nothing is pinned."""
    for name in ("OMP_NUM_THREADS", "ONEDNN_VERBOSE_TIMESTAMP"):
        monkeypatch.setenv(name, "1")  # is changed, and put back

    def command(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["train.py", *words, "launch.pin=false"])
        capfd.readouterr()
        code = run_command(main)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


@pytest.fixture(scope="module")
def stopped(root: Path) -> tuple[Outcome, Path]:
    """A run in the middle of its window that is told to end."""
    words = ("training.max_steps=9999", "training.epochs=9999", "evaluation.every=9999")
    window = ("profile.onednn.steps=2-9999", "profile.trace.steps=2-9999")
    process = start(*settings_in(root, "stopped", *words, *window))
    metrics = root / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    return Outcome(process.returncode, output, errors), root / "stopped"


def test_a_signal_in_a_window_leaves_whole_files(stopped: tuple[Outcome, Path]) -> None:
    outcome, run = stopped
    assert (outcome.code, outcome.errors) == (75, "")
    last = len((run / "metrics.jsonl").read_text().splitlines())
    steps = list(range(2, last + 1))
    log, trace = run / "onednn" / "rank0.log", run / "trace" / "rank0.json.gz"
    assert marks_of(log) == [mark for step in steps for mark in marks_of_step(step)]
    names = [event["name"] for event in events_of(trace)]
    assert [name for name in names if name.startswith("step ")] == [f"step {one}" for one in steps]
    assert [file.name for file in trace.parent.iterdir()] == [trace.name]
    assert f"{log}, steps 2-{last}\n" in outcome.output
    only = f"note: profile.onednn: of steps 2-9999 this run trained only steps 2-{last}\n"
    assert only in outcome.output


def test_a_resumed_run_adds_its_window_and_leaves_the_earlier_files_alone(
    stopped: tuple[Outcome, Path],
    root: Path,
    train: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    _, run = stopped
    earlier = (run / "onednn" / "rank0.log").read_bytes()
    next_step = len((run / "metrics.jsonl").read_text().splitlines()) + 1
    for program in ("c++", "g++", "gcc", "cc", "ld", "as"):  # all that a run needs, and no perf
        if found := shutil.which(program):
            (tmp_path / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = train(
        *settings_in(root, "stopped", f"training.max_steps={next_step}", "--resume"),
        *(f"profile.onednn.steps={next_step}", "profile.trace.steps=1", "profile.perf=true"),
    )
    assert outcome.code == 0, outcome.errors
    log = run / "onednn" / f"rank0-from-step-{next_step}.log"
    assert marks_of(log) == marks_of_step(next_step)
    assert read_logs([run / "onednn" / "rank0.log", log]).steps == list(range(2, next_step + 1))
    assert (run / "onednn" / "rank0.log").read_bytes() == earlier
    none = f"note: profile.trace: this run takes step {next_step}, nothing of step 1\n"
    assert none in outcome.output
    assert "note: profile.trace: nothing is written: this run trained nothing of step 1\n" in (
        outcome.output
    )
    assert outcome.output.index("there is no perf on this host") < outcome.output.index("finished")
    assert not (run / "perf").exists()


def test_an_error_in_a_step_gives_back_the_output_and_leaves_that_step_open(
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
    outcome = train(*settings_in(root, "damaged", *data, *window))
    assert outcome.code == 2
    assert outcome.errors.startswith(f"error: {image}: ")
    assert outcome.errors.count("\n") == 1
    log = root / "damaged" / "onednn" / "rank0.log"
    marks = marks_of(log)
    assert marks[: len(marks_of_step(1)) + 1] == [*marks_of_step(1), "begin,2"]
    assert "end,2" not in marks and "begin,2,data" in marks
    assert f"{log}, step 1\n" in outcome.output
    size = log.stat().st_size
    os.write(1, b"to the terminal\n")
    assert log.stat().st_size == size


def test_bad_input_stays_one_line_with_hooks_on(root: Path, train: Command) -> None:
    outcome = train(*settings_in(root, "bad", "data.root=/nowhere", "profile.onednn.steps=1"))
    assert outcome.code == 2 and outcome.errors.count("\n") == 1
    assert outcome.output == "" and not (root / "bad").exists()
