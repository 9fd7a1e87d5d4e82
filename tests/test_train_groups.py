"""Compute groups under the real mpirun: whole runs, resumed runs, and killed ranks."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retinanet.mlperf.official import check_compliance
from tests.launch.ranks import Ended, ended, run_ranks, start_ranks
from tests.support.processes import rank_processes, wait_until_gone
from tests.support.training_runs import read_records, wait_for_steps

pytestmark = pytest.mark.whole_machine

EPOCH = 6
"""Steps, each of one image and one group."""
SETTINGS = (
    f"data.scenes.train={EPOCH}",
    "data.scenes.validation=3",
    "data.image_size=64",
    "training.batch_size=1",
    "training.learning_rate=1e-5",
    "training.schedule=constant",
    "training.epochs=2",
    "evaluation.every=1",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "launch.threads=1",
    "distributed.groups=2",
    "distributed.timeout_s=60",
)
LONG = ("training.epochs=100000", "evaluation.every=100000")
TOTAL = 2 * EPOCH


def run_arguments(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


def step_numbers(run: Path) -> list[int]:
    """Return the sorted step numbers of a run; within a group they must be in order."""
    steps = read_records(run, kind="step")
    for group in (0, 1):
        numbers = [record["step"] for record in steps if record.get("group") == group]
        assert numbers == sorted(numbers)
    return sorted(record["step"] for record in steps)


def parent_process(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def rank_process(rank: int, run: Path) -> int:
    """Return the process of a rank. Ranks outside the first group have a supervisor process too."""
    processes = rank_processes(f"run.name={run.name}", rank)
    [eldest] = [process for process in processes if parent_process(process) not in processes]
    if rank == 0:
        return eldest
    [child] = [process for process in processes if parent_process(process) == eldest]
    return child


def last_checkpoint(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((run / "checkpoints" / "last" / "state.json").read_text())
    return state


@pytest.fixture(scope="module")
def whole(root: Path) -> Ended:
    """Return the outcome of an undisturbed run; each rank's final weights are in `root`."""
    arguments = run_arguments(root, "whole", "checkpoint.every=3 steps", "checkpoint.keep=9")
    return run_ranks(2, "tests/support/trained_ranks.py", str(root), *arguments)


def test_groups_take_every_step_once(whole: Ended, root: Path) -> None:
    assert (whole.code, whole.errors) == (0, "")
    run = root / "whole"
    assert step_numbers(run) == list(range(1, TOTAL + 1))
    steps = read_records(run, kind="step")
    assert {record["group"] for record in steps} == {0, 1}
    assert (
        max(record["staleness"] for record in steps)
        > 0
        <= min(record["staleness"] for record in steps)
    )
    assert [record["step"] for record in read_records(run, kind="evaluation")] == [EPOCH, TOTAL]
    assert whole.output.count(f"finished after {TOTAL} steps") == 1


def test_all_ranks_end_with_the_weights_of_the_last_checkpoint(whole: Ended, root: Path) -> None:
    first, second = (torch.load(root / f"rank{rank}.pt") for rank in (0, 1))
    checkpoint = load_file(root / "whole" / "checkpoints" / "last" / "model.safetensors")
    assert first.keys() == second.keys() == checkpoint.keys()
    assert any(name.endswith("running_var") for name in first)
    for name, value in first.items():
        is_per_group = name.endswith("num_batches_tracked")  # without use in training
        assert is_per_group or torch.equal(value, second[name]), name
        assert torch.equal(value, checkpoint[name]), name
    assert last_checkpoint(root / "whole")["position"]["step"] == TOTAL


def test_optimizer_counts_the_steps_of_all_groups(whole: Ended, root: Path) -> None:
    checkpoint = load_file(root / "whole" / "checkpoints" / "last" / "optimizer.safetensors")
    counts = {float(value) for name, value in checkpoint.items() if name.endswith("step")}
    assert counts == {float(TOTAL)}


def test_checkpoints_are_written_while_groups_train(whole: Ended, root: Path) -> None:
    names = (path.name for path in (root / "whole" / "checkpoints").glob("step-*"))
    between = {int(name.removeprefix("step-")) for name in names} - {EPOCH, TOTAL}
    assert between and max(between) < TOTAL


def test_console_and_environment_describe_the_groups(whole: Ended, root: Path) -> None:
    rows = [" ".join(line.split()) for line in whole.output.splitlines()]
    [message] = [row for row in rows if row.startswith("groups ")]
    assert message.startswith("groups 2 of 1 rank, asynchronous; beta1 0.4, since 1 − 1/2 ")
    assert any(row.startswith(f"steps {TOTAL} of 1 × 1 images") for row in rows)
    facts = json.loads((root / "whole" / "environment.json").read_text())["ranks"]
    assert (facts["size"], facts["compute_groups"]) == (2, 2)
    setup = last_checkpoint(root / "whole")["setup"]
    assert (setup["compute groups"], setup["beta1"]) == (2, 0.4)


def test_the_official_checker_accepts_the_log(whole: Ended, root: Path) -> None:
    verdict = check_compliance(root / "whole" / "mlperf.log", rules="5.1.0")
    assert verdict.passed and verdict.faults == verdict.warnings == ()


class Pieces:
    """A run that is stopped and resumed under other conditions."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "pieces"

    def resume(self, *changes: str, steps: int, nan_at: int = 0) -> Ended:
        """Resume up to step `steps`; batch number `nan_at` of rank 1 has a NaN (0: none)."""
        arguments = run_arguments(
            self.root, "pieces", *LONG, f"training.max_steps={steps}", *changes
        )
        program = ("tests/support/nan_in_groups.py", "1", str(nan_at)) if nan_at else ("train.py",)
        return run_ranks(2, *program, *arguments, "--resume")

    @property
    def step(self) -> int:
        """The step of the last checkpoint."""
        step: int = last_checkpoint(self.run)["position"]["step"]
        return step

    def has_finite_weights(self) -> bool:
        weights = load_file(self.run / "checkpoints" / "last" / "model.safetensors")
        return all(bool(torch.isfinite(value).all()) for value in weights.values())


@pytest.fixture(scope="module")
def pieces(root: Path) -> Pieces:
    return Pieces(root)


@pytest.fixture(scope="module")
def interrupted(pieces: Pieces) -> Ended:
    """SIGTERM after some steps."""
    job = start_ranks(2, "train.py", *run_arguments(pieces.root, "pieces", *LONG))
    wait_for_steps(pieces.run, job, count=3)
    job.send_signal(signal.SIGTERM)
    return ended(job)


@pytest.fixture(scope="module")
def without_groups(interrupted: Ended, pieces: Pieces) -> Ended:
    """The same run, two steps of two images that both ranks take together."""
    return pieces.resume("distributed.groups=1", steps=pieces.step + 2)


def test_sigterm_writes_a_checkpoint_of_all_groups_steps(
    interrupted: Ended, pieces: Pieces
) -> None:
    assert interrupted.code == 75, interrupted.errors
    message = "SIGTERM: checkpoint written; continue with: mpirun -np 2 "
    assert interrupted.output.count(message) == 1
    assert step_numbers(pieces.run)[:3] == [1, 2, 3]


def test_run_of_groups_resumes_synchronously_and_reports_the_change(
    without_groups: Ended, pieces: Pieces
) -> None:
    assert (without_groups.code, without_groups.errors) == (0, "")
    message = " ".join(without_groups.output.split())
    assert "compute groups was 2, is now 1" in message and "beta1 was 0.4, is now 0.9" in message
    steps = read_records(pieces.run, kind="step")
    assert [("group" in record, "staleness" in record) for record in steps[-2:]] == [
        (False, False)
    ] * 2
    assert step_numbers(pieces.run) == list(range(1, pieces.step + 1))


@pytest.fixture(scope="module")
def unreadable(without_groups: Ended, pieces: Pieces) -> tuple[str, Ended]:
    """The name of an image, and the end of a run of groups in which it could not be read."""
    image = sorted((pieces.run / "scenes" / "train" / "data").iterdir())[3]
    content = image.read_bytes()
    image.write_bytes(content[:100])
    job = pieces.resume(steps=pieces.step + 2 * EPOCH)
    image.write_bytes(content)
    return image.name, job


@pytest.mark.exhaustive
def test_unreadable_image_of_one_group_stops_all_after_a_checkpoint(
    unreadable: tuple[str, Ended], pieces: Pieces
) -> None:
    image, job = unreadable
    assert "compute groups was 1, is now 2" in " ".join(job.output.split())
    assert job.code == 2
    [line] = [line for line in job.errors.splitlines() if "error: " in line]
    assert image in line and "then continue with: mpirun -np 2 " in line
    assert step_numbers(pieces.run)[: pieces.step] == list(range(1, pieces.step + 1))


@pytest.fixture(scope="module")
def not_finite(unreadable: tuple[str, Ended], pieces: Pieces) -> Ended:
    """The image is mended; now a batch of rank 1 brings a NaN."""
    job = pieces.resume(steps=pieces.step + 2 * EPOCH, nan_at=2)
    assert pieces.has_finite_weights()
    return job


@pytest.mark.exhaustive
def test_nonfinite_loss_of_one_group_stops_all_after_a_checkpoint(
    not_finite: Ended, pieces: Pieces
) -> None:
    assert "other conditions" not in not_finite.output
    assert not_finite.code == 3
    [line] = not_finite.errors.splitlines()
    assert line.startswith("error: loss not finite at step ")
    assert "training.on_nonfinite=skip; the current weights are in a checkpoint" in line
    assert line.endswith("--resume")
    assert step_numbers(pieces.run)[: pieces.step] == list(range(1, pieces.step + 1))


@pytest.mark.exhaustive
def test_skipped_step_is_recorded_and_all_others_are_taken_once(
    not_finite: Ended, pieces: Pieces
) -> None:
    end = pieces.step + EPOCH
    job = pieces.resume("training.on_nonfinite=skip", steps=end, nan_at=2)
    assert (job.code, job.errors) == (0, "")
    assert step_numbers(pieces.run) == list(range(1, end + 1))
    [report] = read_records(pieces.run, kind="nonfinite")
    [step] = [record for record in read_records(pieces.run, kind="step") if record["loss"] is None]
    assert report["step"] == step["step"] and step["group"] == 1
    assert job.output.count("; the step was skipped, training continues\n") == 1
    assert pieces.has_finite_weights()


def test_other_groups_finish_the_run_after_a_rank_is_killed(root: Path) -> None:
    run = root / "killed"
    arguments = run_arguments(root, "killed", "data.on_bad_image=skip", "data.bad_image_limit=9")
    job = start_ranks(2, "train.py", *arguments)
    wait_for_steps(run, job, count=1)
    images = sorted((run / "scenes" / "validation" / "data").iterdir())
    for image in images:  # so that each evaluated image is reported
        image.write_bytes(b"no image")
    os.kill(rank_process(1, run), signal.SIGKILL)
    outcome = ended(job)
    assert outcome.code == 0, outcome.errors
    [warning] = outcome.errors.splitlines()
    assert warning.startswith("warning: rank 1 on ")
    assert warning.endswith(": group 1 (rank 1) ends, the other groups continue")
    steps = step_numbers(run)
    assert steps[-1] == TOTAL and len(steps) == len(set(steps)) > TOTAL / 2
    assert [record["step"] for record in read_records(run, kind="evaluation")] == [EPOCH, TOTAL]
    problems = [record["problem"] for record in read_records(run, kind="bad_image")]
    assert [any(image.name in problem for problem in problems) for image in images] == [True] * 3
    assert last_checkpoint(run)["setup"]["ranks"] == 1
    wait_until_gone(f"run.name={run.name}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["rank 0", "mpirun"])
def test_killed_rank_0_or_launcher_ends_all_processes(root: Path, victim: str) -> None:
    run = root / f"killed-{victim.replace(' ', '-')}"
    job = start_ranks(2, "train.py", *run_arguments(root, run.name, *LONG))
    wait_for_steps(run, job, count=2)
    os.kill(rank_process(0, run) if victim == "rank 0" else job.pid, signal.SIGKILL)
    outcome = ended(job)
    assert outcome.code not in (0, 75)
    wait_until_gone(f"run.name={run.name}", seconds=20)


@pytest.mark.exhaustive
def test_killed_rank_ends_its_group_of_two_ranks(root: Path) -> None:
    run = root / "four"
    epoch = 12  # long enough that rank 3 ends within it: where groups come together all need all
    arguments = (f"data.scenes.train={2 * epoch}", "launch.pin=false")
    job = start_ranks(4, "train.py", *run_arguments(root, run.name, *arguments))
    wait_for_steps(run, job, count=1)
    os.kill(rank_process(3, run), signal.SIGKILL)
    outcome = ended(job)
    assert outcome.code == 0, outcome.errors
    [warning] = outcome.errors.splitlines()
    assert warning.startswith("warning: rank 3 on ")
    assert warning.endswith(": group 1 (ranks 2-3) ends, the other groups continue")
    assert "groups  2 of 2 ranks, asynchronous; beta1 0.4" in outcome.output
    steps = step_numbers(run)
    assert steps[-1] == 2 * epoch and len(steps) == len(set(steps))
    assert last_checkpoint(run)["setup"]["ranks"] == 2
    wait_until_gone(f"run.name={run.name}")


@pytest.mark.exhaustive
def test_unreadable_images_of_all_groups_count_towards_one_limit(root: Path) -> None:
    """Rank 0 alone knows of all: those that share its group must not be left waiting for it."""
    arguments = run_arguments(
        root, "unreadable", *LONG, "launch.pin=false", "distributed.timeout_s=30"
    )
    skips = ("data.on_bad_image=skip", "data.bad_image_limit=1", "data.workers=1")
    job = start_ranks(4, "train.py", *arguments, *skips)
    wait_for_steps(root / "unreadable", job, count=1)
    images = sorted((root / "unreadable" / "scenes" / "train" / "data").iterdir())
    for image in images[:2]:
        image.write_bytes(b"no image")
    outcome = ended(job)
    assert outcome.code in (2, signal.SIGKILL), outcome.errors
    [line] = outcome.errors.splitlines()
    assert "more than data.bad_image_limit=1 images could not be read" in line
    assert len(read_records(root / "unreadable", kind="bad_image")) == 1
