"""The metric beside the next epoch's steps: the same run, whatever interrupts it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinanet.mlperf.log import read_events
from retinanet.mlperf.official import check_compliance
from retinanet.training.checkpoint import read_checkpoint
from tests.support.processes import children_of, wait_until_ended

REPOSITORY = Path(__file__).resolve().parents[1]
STEPS_OF_EPOCH = 4
SETTINGS = (
    *("data.scenes.train=8", "data.scenes.validation=4", "data.image_size=64"),
    *("training.batch_size=2", "training.learning_rate=1e-3", "training.warmup_epochs=0"),
    *("training.epochs=2", "training.target_map=null", "evaluation.pictures=0"),
    *("engine.precision=float32", "launch.threads=1"),
)
OVERLAP = "evaluation.overlap=true"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("overlap")
    yield folder
    shutil.rmtree(folder)  # a checkpoint has 400 MB


def start(root: Path, name: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "train.py", *SETTINGS, f"run.root={root}", f"run.name={name}"]
    return subprocess.Popen(
        [*command, *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str], *, code: int = 0) -> str:
    output, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (code, "")
    return output


def records_of(run: Path, kind: str) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if record["kind"] == kind]


def wait_until_pending(run: Path) -> None:
    """Until a step has been taken while the first evaluation's metric is not known."""
    end = time.monotonic() + 120
    while len(records_of(run, "step")) <= STEPS_OF_EPOCH:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert records_of(run, "evaluation") == [], "the metric came within a step"


def assert_same_run(run: Path, other: Path) -> None:
    """Weights, optimizer, evaluations and their files."""
    for part in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (one / "checkpoints" / "last" / part for one in (run, other))
        assert ours.read_bytes() == theirs.read_bytes(), part
    positions = [read_checkpoint(one / "checkpoints" / "best").position for one in (run, other)]
    assert positions[0] == positions[1]
    names = sorted(file.name for file in (other / "eval").iterdir())
    assert sorted(file.name for file in (run / "eval").iterdir()) == names and len(names) == 6
    for name in names:
        assert (run / "eval" / name).read_bytes() == (other / "eval" / name).read_bytes(), name
    evaluations = [records_of(one, "evaluation") for one in (run, other)]
    for record in (*evaluations[0], *evaluations[1]):
        del record["seconds"]
    assert evaluations[0] == evaluations[1] and len(evaluations[0]) == 2


@pytest.fixture(scope="module")
def waiting(root: Path) -> Path:
    """A run that waits for each metric."""
    output_of(start(root, "waiting"))
    return root / "waiting"


def test_steps_go_on_and_the_run_is_the_same(waiting: Path, root: Path) -> None:
    process = start(root, "beside", OVERLAP)
    wait_until_pending(root / "beside")
    output_of(process)
    assert_same_run(root / "beside", waiting)
    lines = (root / "beside" / "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.index("evaluation") > STEPS_OF_EPOCH and kinds[-1] == "evaluation"
    log = root / "beside" / "mlperf.log"
    assert check_compliance(log, rules="5.1.0").passed
    said = [(line.key, line.metadata.get("epoch_num")) for line in read_events(log)]
    assert said.index(("epoch_start", 2)) < said.index(("eval_accuracy", 1))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_ends_before_its_metric_is_known_loses_nothing(
    how: signal.Signals, waiting: Path, root: Path
) -> None:
    process = start(root, how.name, OVERLAP)
    wait_until_pending(root / how.name)
    beside = children_of(process.pid)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == (75 if how == signal.SIGTERM else -signal.SIGKILL)
    wait_until_ended(beside)
    known = how == signal.SIGTERM  # then it is waited for
    assert bool(records_of(root / how.name, "evaluation")) == known
    output_of(start(root, how.name, OVERLAP, "--resume"))
    assert_same_run(root / how.name, waiting)
    shutil.rmtree(root / how.name)


def test_a_metric_whose_process_is_killed_is_computed_by_the_run(waiting: Path, root: Path) -> None:
    process = start(root, "alone", OVERLAP)
    wait_until_pending(root / "alone")
    [beside] = [one for one in children_of(process.pid) if is_metric(one)]
    os.kill(beside, signal.SIGKILL)
    output_of(process)
    assert_same_run(root / "alone", waiting)
    shutil.rmtree(root / "alone")


def is_metric(process: int) -> bool:
    """Not the tracker that Python's multiprocessing starts beside it."""
    return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()


def test_at_the_target_the_run_goes_back_to_the_weights_that_reached_it(root: Path) -> None:
    images = ("data.scenes.train=32", "data.scenes.validation=8", "training.batch_size=8")
    words = (OVERLAP, *images, "training.epochs=40", "training.target_map=1e-9")
    shown = output_of(start(root, "target", *words))
    run = root / "target"
    reached = records_of(run, "evaluation")[-1]["step"]
    last = records_of(run, "step")[-1]["step"]
    assert reached % STEPS_OF_EPOCH == 0 and last > reached
    assert f"reached after step {reached}; the {last - reached} steps since" in shown
    assert f"finished after {reached} steps, target mAP 1e-09 reached" in shown
    for name in ("last", "best"):
        position = read_checkpoint(run / "checkpoints" / name).position
        assert position.step == reached and position.map_here == position.best_map
    assert read_events(run / "mlperf.log")[-1].metadata["status"] == "success"
    again = output_of(start(root, "target", *words, "--resume"))
    assert f"finished after step {reached}" in again
    shutil.rmtree(run)
