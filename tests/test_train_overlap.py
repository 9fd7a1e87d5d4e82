"""Evaluation overlapped with the next epoch gives the same run, also when interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retinanet.mlperf.log import read_events
from retinanet.mlperf.official import check_compliance
from retinanet.training.checkpoint import read_checkpoint
from tests.support.commands import start_program
from tests.support.processes import child_processes, wait_until_ended
from tests.support.training_runs import read_records

pytestmark = pytest.mark.slow

STEPS_OF_EPOCH = 4
SETTINGS = (
    *("data.scenes.train=8", "data.scenes.validation=4", "data.image_size=64"),
    *("training.batch_size=2", "training.learning_rate=1e-3", "training.warmup_epochs=0"),
    *("training.epochs=2", "training.target_map=null", "evaluation.pictures=0"),
    *("engine.precision=float32", "launch.threads=1"),
)
OVERLAP = "evaluation.overlap=true"


def start(root: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "train.py", *SETTINGS, f"run.root={root}", f"run.name={name}"]
    return start_program(*command, *arguments)


def wait_for_output(process: subprocess.Popen[str], *, code: int = 0) -> str:
    output, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (code, "")
    return output


def wait_until_pending(run: Path) -> None:
    """Wait until a step was taken while the first evaluation still runs."""
    end = time.monotonic() + 120
    while len(read_records(run, kind="step")) <= STEPS_OF_EPOCH:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert read_records(run, kind="evaluation") == [], "the metric came within a step"


def assert_same_run(run: Path, other: Path) -> None:
    """Assert equal weights, optimizer states, evaluations and evaluation files."""
    for part in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (folder / "checkpoints" / "last" / part for folder in (run, other))
        assert ours.read_bytes() == theirs.read_bytes(), part
    positions = [
        read_checkpoint(folder / "checkpoints" / "best").position for folder in (run, other)
    ]
    assert positions[0] == positions[1]
    names = sorted(file.name for file in (other / "eval").iterdir())
    assert sorted(file.name for file in (run / "eval").iterdir()) == names and len(names) == 6
    for name in names:
        assert (run / "eval" / name).read_bytes() == (other / "eval" / name).read_bytes(), name
    evaluations = [read_records(folder, kind="evaluation") for folder in (run, other)]
    for record in (*evaluations[0], *evaluations[1]):
        del record["seconds"]
    assert evaluations[0] == evaluations[1] and len(evaluations[0]) == 2


@pytest.fixture(scope="module")
def waiting(root: Path) -> Path:
    """Return a run without overlap."""
    wait_for_output(start(root, "waiting"))
    return root / "waiting"


def test_overlapped_run_equals_a_run_without_overlap(waiting: Path, root: Path) -> None:
    process = start(root, "beside", OVERLAP)
    wait_until_pending(root / "beside")
    wait_for_output(process)
    assert_same_run(root / "beside", waiting)
    lines = (root / "beside" / "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.index("evaluation") > STEPS_OF_EPOCH and kinds[-1] == "evaluation"
    log = root / "beside" / "mlperf.log"
    assert check_compliance(log, rules="5.1.0").passed
    events = [(line.key, line.metadata.get("epoch_num")) for line in read_events(log)]
    assert events.index(("epoch_start", 2)) < events.index(("eval_accuracy", 1))


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_run_stopped_during_the_evaluation_resumes_exactly(
    how: signal.Signals, waiting: Path, root: Path
) -> None:
    process = start(root, how.name, OVERLAP)
    wait_until_pending(root / how.name)
    beside = child_processes(process.pid)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == (75 if how == signal.SIGTERM else -signal.SIGKILL)
    wait_until_ended(beside)
    known = how == signal.SIGTERM  # then it is waited for
    assert bool(read_records(root / how.name, kind="evaluation")) == known
    wait_for_output(start(root, how.name, OVERLAP, "--resume"))
    assert_same_run(root / how.name, waiting)
    shutil.rmtree(root / how.name)


@pytest.mark.exhaustive
def test_killed_metric_process_is_replaced_by_the_run(waiting: Path, root: Path) -> None:
    process = start(root, "alone", OVERLAP)
    wait_until_pending(root / "alone")
    [metric] = [child for child in child_processes(process.pid) if is_metric(child)]
    os.kill(metric, signal.SIGKILL)
    wait_for_output(process)
    assert_same_run(root / "alone", waiting)
    shutil.rmtree(root / "alone")


def is_metric(process: int) -> bool:
    """Whether a process computes the metric (not multiprocessing's resource tracker)."""
    return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()


@pytest.mark.exhaustive
def test_weights_that_reached_the_target_are_restored(root: Path) -> None:
    images = ("data.scenes.train=32", "data.scenes.validation=8", "training.batch_size=8")
    arguments = (OVERLAP, *images, "training.epochs=40", "training.target_map=1e-9")
    shown = wait_for_output(start(root, "target", *arguments))
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
    again = wait_for_output(start(root, "target", *arguments, "--resume"))
    assert f"finished after step {reached}" in again
    shutil.rmtree(run)
