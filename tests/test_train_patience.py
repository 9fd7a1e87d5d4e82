"""Runs that end by `training.patience`, also overlapped, interrupted and resumed."""

import html
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinanet.__main__ import main
from retinanet.mlperf.log import read_events
from retinanet.training.checkpoint import newest_first, read_checkpoint
from tests.launch.ranks import TrainHere, run_ranks
from tests.support.commands import RunHere, start_program
from tests.support.training_runs import cut_back, read_records

pytestmark = pytest.mark.slow

PATIENCE = 2
SETTINGS = (
    *("data.scenes.train=8", "data.scenes.validation=2", "data.image_size=64"),
    # The detections of such weights, and so their mAP, hardly change.
    *("training.batch_size=2", "training.learning_rate=1e-9", "training.warmup_epochs=0"),
    *("training.schedule=constant", "training.epochs=30", "training.target_map=0.9"),
    *("evaluation.pictures=0", "engine.precision=float32", "launch.threads=1"),
    f"training.patience={PATIENCE}",
)
"""Four steps an epoch; an evaluation after each."""


def start(root: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "train.py", *SETTINGS, f"run.root={root}", f"run.name={name}"]
    return start_program(*command, *arguments)


def wait_for_output(process: subprocess.Popen[str], *, code: int = 0) -> str:
    output, errors = process.communicate(timeout=400)
    assert (process.returncode, errors) == (code, "")
    return output


def last_step(run: Path) -> int:
    """Return the step at which the recorded mAPs end a run by its patience."""
    best, since = -1.0, 0
    for record in read_records(run, kind="evaluation"):
        better = record["map"] > best
        best, since = max(best, record["map"]), 0 if better else since + 1
        if since == PATIENCE:
            return int(record["step"])
    raise AssertionError("the recorded mAPs end no run")


def assert_same_end(run: Path, other: Path) -> None:
    """Assert equal checkpoints, positions included, and equal mAPs."""
    for name in ("last", "best"):
        ours, theirs = (folder / "checkpoints" / name for folder in (run, other))
        assert read_checkpoint(ours).position == read_checkpoint(theirs).position
        for part in ("model.safetensors", "optimizer.safetensors"):
            assert (ours / part).read_bytes() == (theirs / part).read_bytes(), part
    maps = [
        [(record["step"], record["map"]) for record in read_records(folder, kind="evaluation")]
        for folder in (run, other)
    ]
    assert maps[0] == maps[1]


@pytest.fixture(scope="module")
def impatient(root: Path) -> Path:
    """Return a run that its patience has ended."""
    shown = wait_for_output(start(root, "impatient", "checkpoint.every=5 steps"))
    run = root / "impatient"
    step = last_step(run)
    assert f"finished after {step} steps, target mAP 0.9 not reached, no better mAP in" in shown
    assert f"in {PATIENCE} evaluations (training.patience), best mAP" in shown
    best = read_checkpoint(run / "checkpoints" / "best")
    assert f"{run / 'checkpoints' / 'best'} ({best.folder.resolve().name})\n" in shown
    return run


def test_run_ends_when_no_evaluation_was_better(impatient: Path) -> None:
    records = read_records(impatient, kind="evaluation")
    step = last_step(impatient)
    assert records[-1]["step"] == read_records(impatient, kind="step")[-1]["step"] == step < 30 * 4
    last, best = (read_checkpoint(impatient / "checkpoints" / name) for name in ("last", "best"))
    assert last.position.step == step and last.position.evaluations_since_best == PATIENCE
    maps = {record["step"]: record["map"] for record in records}
    assert maps[best.position.step] == max(maps.values()) == best.position.best_map


def test_mlperf_log_ends_as_aborted_after_the_last_evaluation(impatient: Path) -> None:
    events = read_events(impatient / "mlperf.log")
    assert [line.key for line in events[-2:]] == ["eval_stop", "run_stop"]
    assert events[-1].metadata["status"] == "aborted"
    keys = [line.key for line in events]
    assert keys.count("epoch_start") == keys.count("epoch_stop") == keys.count("eval_accuracy")


@pytest.fixture
def within_last_epoch(impatient: Path, root: Path) -> int:
    """Return the step of the checkpoint before the last; one more evaluation ends the run."""
    folder = newest_first(impatient / "checkpoints")[1]
    position = read_checkpoint(folder).position
    assert position.evaluations_since_best == PATIENCE - 1
    return position.step


def test_resumed_run_ends_at_the_same_evaluation(
    impatient: Path, within_last_epoch: int, root: Path, train_here: TrainHere
) -> None:
    cut_back(impatient, root / "resumed", step=within_last_epoch)
    place = (f"run.root={root}", "run.name=resumed")
    outcome = train_here(*SETTINGS, *place, "--resume")
    assert outcome.code == 0, outcome.errors
    assert f"resumed after step {within_last_epoch}" in " ".join(outcome.output.split())
    assert_same_end(root / "resumed", impatient)


def test_overlapped_evaluation_ends_the_run_with_the_same_weights(
    impatient: Path, within_last_epoch: int, root: Path
) -> None:
    cut_back(impatient, root / "beside", step=within_last_epoch)
    shown = wait_for_output(start(root, "beside", "evaluation.overlap=true", "--resume"))
    assert_same_end(root / "beside", impatient)
    steps = read_records(root / "beside", kind="step")[-1]["step"]
    end = last_step(impatient)
    assert (steps > end) == (f"training.patience ended after step {end}; the " in shown)


@pytest.mark.whole_machine
def test_two_ranks_end_at_the_same_step(root: Path) -> None:
    """With the evaluation overlapped: only the first rank has its result, between two steps."""
    place = (f"run.root={root}", "run.name=ranks", "training.batch_size=1")
    limits = ("distributed.timeout_s=60", "evaluation.overlap=true")
    job = run_ranks(2, "train.py", *SETTINGS, *place, *limits)
    assert (job.code, job.errors) == (0, "") and "weights differed" not in job.output
    run = root / "ranks"
    last = read_checkpoint(run / "checkpoints" / "last").position
    assert (last.step, last.evaluations_since_best) == (last_step(run), PATIENCE)


def test_command_of_the_report_continues_a_finished_run(
    impatient: Path, root: Path, run_here: RunHere, train_here: TrainHere
) -> None:
    run = root / "reported"
    shutil.copytree(impatient, run, symlinks=True)
    assert run_here(main, "report", run).returncode == 0
    page = html.unescape((run / "report.html").read_text("utf-8"))
    [line] = re.findall(r"train\.py (--config .*? --resume)", page)
    assert "training.patience=null" in line and "training.epochs" not in line
    end = last_step(run)
    done = train_here(*shlex.split(line), f"training.max_steps={end + 1}")
    assert done.code == 0 and f"finished after {end + 1} steps" in done.output


def test_more_patience_continues_a_finished_run(impatient: Path, train_here: TrainHere) -> None:
    place = (f"run.root={impatient.parent}", f"run.name={impatient.name}")
    again = train_here(*SETTINGS, *place, "--resume")
    assert again.code == 0
    assert "increase training.patience to continue" in again.output
    check = train_here(*SETTINGS, *place, "--resume", "--check")
    details = " ".join(check.output.replace("│", " ").split())  # folded, as the path is long
    assert "is the end of a finished run; raise training.patience to continue" in details
