"""Evaluation overlapped with the next epoch gives the same run, also when interrupted."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from retinanet.mlperf.log import read_events
from retinanet.mlperf.official import check_compliance
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import Ended, TrainHere, ended
from tests.support.processes import child_processes, wait_until_ended
from tests.support.training_runs import assert_same_end, read_records, start_training

pytestmark = pytest.mark.slow

STEPS_OF_EPOCH = 3
SETTINGS = (
    *("data.scenes.train=6", "data.scenes.validation=4", "data.image_size=64"),
    *("training.batch_size=2", "training.learning_rate=1e-3", "training.warmup_epochs=0"),
    *("training.epochs=2", "training.target_map=null", "evaluation.pictures=0"),
    *("training.optimizer=sgd", "engine.precision=float32", "launch.threads=1"),
)
OVERLAP = "evaluation.overlap=true"


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


def output_of(outcome: Ended) -> str:
    assert (outcome.code, outcome.errors) == (0, "")
    return outcome.output


def wait_until_pending(run: Path) -> None:
    """Wait until a step was taken while the first evaluation still runs."""
    end = time.monotonic() + 120
    while len(read_records(run, kind="step")) <= STEPS_OF_EPOCH:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert read_records(run, kind="evaluation") == [], "the metric came within a step"


def assert_same_run(run: Path, other: Path) -> None:
    """Assert equal checkpoints, evaluations and evaluation files."""
    assert_same_end(run, other)
    positions = [
        read_checkpoint(folder / "checkpoints" / "best").position for folder in (run, other)
    ]
    assert positions[0] == positions[1] and len(read_records(run, kind="evaluation")) == 2
    ours, theirs = (
        {file.name: file.read_bytes() for file in (folder / "eval").iterdir()}
        for folder in (run, other)
    )
    assert ours == theirs and len(ours) == 6


@pytest.fixture(scope="module")
def waiting(root: Path, train_here: TrainHere) -> Path:
    """Return a run without overlap."""
    output_of(train_here(*settings_in(root, "waiting")))
    return root / "waiting"


def test_overlapped_run_equals_a_run_without_overlap(
    waiting: Path, root: Path, train_here: TrainHere
) -> None:
    output_of(train_here(*settings_in(root, "beside", OVERLAP)))
    assert_same_run(root / "beside", waiting)
    lines = (root / "beside" / "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    # A step was taken while the first evaluation still ran.
    assert kinds.index("evaluation") > STEPS_OF_EPOCH and kinds[-1] == "evaluation"
    log = root / "beside" / "mlperf.log"
    assert check_compliance(log, rules="5.1.0").passed
    events = [(line.key, line.metadata.get("epoch_num")) for line in read_events(log)]
    assert events.index(("epoch_start", 2)) < events.index(("eval_accuracy", 1))


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_run_stopped_during_the_evaluation_resumes_exactly(
    how: signal.Signals, waiting: Path, root: Path, train_here: TrainHere
) -> None:
    arguments = settings_in(root, how.name, OVERLAP)
    process = start_training(*arguments)
    wait_until_pending(root / how.name)
    beside = child_processes(process.pid)
    process.send_signal(how)
    stopped = ended(process, timeout=60)
    assert stopped.code == (75 if how == signal.SIGTERM else -signal.SIGKILL)
    wait_until_ended(beside)
    known = how == signal.SIGTERM  # then it is waited for
    assert bool(read_records(root / how.name, kind="evaluation")) == known
    output_of(train_here(*arguments, "--resume"))
    assert_same_run(root / how.name, waiting)
    shutil.rmtree(root / how.name)


@pytest.mark.exhaustive
def test_killed_metric_process_is_replaced_by_the_run(waiting: Path, root: Path) -> None:
    process = start_training(*settings_in(root, "alone", OVERLAP))
    wait_until_pending(root / "alone")
    [metric] = [child for child in child_processes(process.pid) if is_metric(child)]
    os.kill(metric, signal.SIGKILL)
    output_of(ended(process))
    assert_same_run(root / "alone", waiting)
    shutil.rmtree(root / "alone")


def is_metric(process: int) -> bool:
    """Whether a process computes the metric (not multiprocessing's resource tracker)."""
    return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()


@pytest.mark.exhaustive
def test_weights_that_reached_the_target_are_restored(root: Path, train_here: TrainHere) -> None:
    images = ("data.scenes.train=32", "data.scenes.validation=8", "training.batch_size=10")
    target = ("training.optimizer=adam", "training.epochs=40", "training.target_map=1e-9")
    arguments = settings_in(root, "target", OVERLAP, *images, *target)
    shown = output_of(train_here(*arguments))
    run = root / "target"
    reached = read_records(run, kind="evaluation")[-1]["step"]
    last = read_records(run, kind="step")[-1]["step"]
    assert reached % STEPS_OF_EPOCH == 0 and last > reached
    assert f"reached after step {reached}; the {last - reached} steps since" in shown
    assert f"finished after {reached} steps, target mAP 1e-09 reached" in shown
    for name in ("last", "best"):
        position = read_checkpoint(run / "checkpoints" / name).position
        assert position.step == reached and position.map_here == position.best_map
    assert read_events(run / "mlperf.log")[-1].metadata["status"] == "success"
    again = output_of(train_here(*arguments, "--resume"))
    assert f"finished after step {reached}" in again
    shutil.rmtree(run)
