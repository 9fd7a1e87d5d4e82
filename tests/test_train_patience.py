"""Runs that end by `training.patience`, also overlapped, interrupted and resumed."""

import html
import re
import shlex
from pathlib import Path

import pytest

from retinanet.__main__ import main
from retinanet.mlperf.log import read_events
from retinanet.training.checkpoint import newest_first, read_checkpoint
from tests.launch.ranks import TrainHere, run_ranks
from tests.support.commands import RunHere
from tests.support.training_runs import assert_same_end, cut_back, read_records

pytestmark = pytest.mark.slow

PATIENCE = 2
SETTINGS = (
    *("data.scenes.train=2", "data.scenes.validation=2", "data.image_size=64"),
    # The detections of such weights, and so their mAP, hardly change.
    *("training.batch_size=2", "training.learning_rate=1e-9", "training.warmup_epochs=0"),
    *("training.schedule=constant", "training.epochs=30", "training.target_map=0.9"),
    *("evaluation.pictures=0", "engine.precision=float32", "launch.threads=1"),
    *("training.optimizer=sgd", f"training.patience={PATIENCE}"),
)
"""A step an epoch; an evaluation after each."""


def settings_in(run: Path, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={run.parent}", f"run.name={run.name}", *changes]


def last_step(run: Path) -> int:
    """Return the step at which the recorded mAPs end a run by its patience."""
    best, since = -1.0, 0
    for record in read_records(run, kind="evaluation"):
        better = record["map"] > best
        best, since = max(best, record["map"]), 0 if better else since + 1
        if since == PATIENCE:
            return int(record["step"])
    raise AssertionError("the recorded mAPs end no run")


@pytest.fixture(scope="module")
def impatient(root: Path, train_here: TrainHere) -> Path:
    """Return a run that its patience has ended."""
    run = root / "impatient"
    code, shown, errors = train_here(*settings_in(run, "checkpoint.every=5 steps"))
    assert (code, errors) == (0, "")
    step = last_step(run)
    assert f"finished after {step} steps, target mAP 0.9 not reached, no better mAP in" in shown
    assert f"in {PATIENCE} evaluations (training.patience), best mAP" in shown
    best = read_checkpoint(run / "checkpoints" / "best")
    assert f"{run / 'checkpoints' / 'best'} ({best.folder.resolve().name})\n" in shown
    return run


def test_run_ends_when_no_evaluation_was_better(impatient: Path) -> None:
    records = read_records(impatient, kind="evaluation")
    step = last_step(impatient)
    assert records[-1]["step"] == read_records(impatient, kind="step")[-1]["step"] == step < 30
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


def test_resumed_run_ends_at_the_same_evaluation(
    impatient: Path, root: Path, train_here: TrainHere
) -> None:
    """With the evaluation overlapped: steps after those weights are discarded."""
    before = read_checkpoint(newest_first(impatient / "checkpoints")[1]).position
    assert before.evaluations_since_best == PATIENCE - 1  # one more evaluation ends the run
    run = root / "overlapped"
    cut_back(impatient, run, step=before.step)
    outcome = train_here(*settings_in(run, "evaluation.overlap=true", "--resume"))
    assert (outcome.code, outcome.errors) == (0, "")
    assert f"resumed after step {before.step}" in " ".join(outcome.output.split())
    assert_same_end(run, impatient)
    ours, theirs = (read_checkpoint(folder / "checkpoints" / "best") for folder in (run, impatient))
    assert ours.position == theirs.position
    for part in ("model.safetensors", "optimizer.safetensors"):
        assert (ours.folder / part).read_bytes() == (theirs.folder / part).read_bytes(), part
    end = last_step(impatient)
    is_longer = read_records(run, kind="step")[-1]["step"] > end
    assert is_longer == (f"training.patience ended after step {end}; the " in outcome.output)


@pytest.mark.whole_machine
def test_two_ranks_end_at_the_same_step(root: Path) -> None:
    """With the evaluation overlapped: only the first rank has its result, between two steps."""
    run = root / "ranks"
    changes = ("training.batch_size=1", "distributed.timeout_s=60", "evaluation.overlap=true")
    job = run_ranks(2, "train.py", *settings_in(run, *changes))
    assert (job.code, job.errors) == (0, "") and "weights differed" not in job.output
    last = read_checkpoint(run / "checkpoints" / "last").position
    assert (last.step, last.evaluations_since_best) == (last_step(run), PATIENCE)


def test_command_of_the_report_continues_a_finished_run(
    impatient: Path, root: Path, run_here: RunHere, train_here: TrainHere
) -> None:
    run, end = root / "reported", last_step(impatient)
    cut_back(impatient, run, step=end)
    assert run_here(main, "report", run).returncode == 0
    page = html.unescape((run / "report.html").read_text("utf-8"))
    [line] = re.findall(r"retinanet train (--config .*? --resume)", page)
    assert "training.patience=null" in line and "training.epochs" not in line
    done = train_here(*shlex.split(line), f"training.max_steps={end + 1}")
    assert done.code == 0 and f"finished after {end + 1} steps" in done.output


def test_more_patience_continues_a_finished_run(impatient: Path, train_here: TrainHere) -> None:
    again = train_here(*settings_in(impatient), "--resume")
    assert again.code == 0
    assert "increase training.patience to continue" in again.output
    check = train_here(*settings_in(impatient), "--resume", "--check")
    details = " ".join(check.output.replace("│", " ").split())  # folded, as the path is long
    assert "is the end of a finished run; raise training.patience to continue" in details
