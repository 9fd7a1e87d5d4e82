"""Training on two ranks under the real mpirun."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from retinanet.mlperf.log import read_events
from retinanet.mlperf.official import check_compliance
from tests.launch.ranks import Ended, TrainHere, ended, run_ranks, start_ranks
from tests.support.commands import run_program
from tests.support.processes import rank_processes, wait_until_gone
from tests.support.training_runs import assert_same_end, read_records, wait_for_steps

pytestmark = pytest.mark.whole_machine

STEPS = 6
SETTINGS = (
    "data.scenes.train=8",
    "data.scenes.validation=3",
    "data.image_size=64",
    "training.batch_size=1",
    "training.learning_rate=1e-3",
    # The loss is several times as high as without.
    "training.class_weights={Balloon: 40, Bus: 40, House: 40, Mushroom: 40, Umbrella: 40}",
    f"training.max_steps={STEPS}",
    "evaluation.pictures=1",
    "engine.precision=float32",
    "distributed.timeout_s=60",
)
"""Four steps of two images an epoch; evaluations after steps 4 and 6."""
SPLITS = ("train", "validation")
MANY_STEPS = ("training.epochs=100000", "training.max_steps=100000", "evaluation.every=100000")


def settings_in(root: Path, name: str, *changes: str) -> list[str]:
    return [*SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


@pytest.fixture(scope="module")
def finished(root: Path) -> Ended:
    """Return the outcome of a run of two ranks; each rank's final weights are in `root`."""
    job = run_ranks(2, "tests/support/trained_ranks.py", str(root), *settings_in(root, "whole"))
    assert job.code == 0, job.errors
    return job


def test_both_ranks_end_with_the_weights_of_the_checkpoint(finished: Ended, root: Path) -> None:
    first, second = (torch.load(root / f"rank{rank}.pt") for rank in (0, 1))
    checkpoint = load_file(root / "whole" / "checkpoints" / "last" / "model.safetensors")
    assert first.keys() == second.keys() == checkpoint.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        assert torch.equal(value, checkpoint[name]), name


def test_the_run_has_one_log_and_one_set_of_checkpoints(finished: Ended, root: Path) -> None:
    run = root / "whole"
    steps = read_records(run, kind="step")
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["step"] for record in read_records(run, kind="evaluation")] == [4, 6]
    assert len(list((run / "tensorboard").iterdir())) == 1
    assert sorted(path.name for path in (run / "eval").glob("*.json")) == [
        "step-000004.json",
        "step-000006.json",
    ]
    assert finished.output.count("finished after 6 steps") == 1
    assert finished.output.count("after step 4, epoch 1") == 1
    words = " ".join(finished.output.split())
    assert " ranks 2 on " in words and "gradients by shared memory" in words
    assert "3/3" in finished.output
    assert finished.errors == ""
    ranks = json.loads((run / "environment.json").read_text())["ranks"]
    assert (ranks["size"], ranks["launcher"], ranks["exchange"]) == (2, "mpich", "shared memory")


def test_first_loss_of_two_ranks_equals_that_of_one_rank_with_all_images(
    finished: Ended, root: Path, train_here: TrainHere
) -> None:
    # With trained norms only the first step is the same: each rank norms its own images. Weights
    # are the same then, the images too, and the loss is a mean over both.
    changes = ("training.max_steps=1", "training.batch_size=2", "evaluation.pictures=0")
    assert train_here(*settings_in(root, "alone", *changes, "launch.threads=1")).code == 0
    [alone] = read_records(root / "alone", kind="step")
    both = read_records(root / "whole", kind="step")[0]
    assert both["loss"] == pytest.approx(alone["loss"], rel=0.05)
    assert both["learning_rate"] == alone["learning_rate"]


def test_the_official_checker_accepts_the_log_of_two_ranks(finished: Ended, root: Path) -> None:
    log = root / "whole" / "mlperf.log"
    verdict = check_compliance(log, rules="5.1.0")
    assert verdict.passed and verdict.faults == verdict.warnings == ()
    lines = read_events(log)
    values = {line.key: line.value for line in lines}
    assert (values["global_batch_size"], values["train_samples"]) == (2, 8)
    assert [line.key for line in lines].count("run_start") == 1


@pytest.mark.exhaustive
def test_overlapped_evaluation_gives_the_same_run(finished: Ended, root: Path) -> None:
    job = run_ranks(2, "train.py", *settings_in(root, "beside", "evaluation.overlap=true"))
    assert (job.code, job.errors) == (0, "")
    assert_same_end(root / "beside", root / "whole", step=STEPS)
    for name in ("step-000004.json", "step-000006.json"):
        actual, expected = (root / run / "eval" / name for run in ("beside", "whole"))
        assert actual.read_bytes() == expected.read_bytes()
    assert [record["step"] for record in read_records(root / "beside", kind="evaluation")] == [4, 6]
    shutil.rmtree(root / "beside")


def test_every_image_is_evaluated_once(finished: Ended, root: Path) -> None:
    actual = json.loads((root / "whole" / "eval" / "step-000006.json").read_text())
    ids = [box["image_id"] for box in actual]
    assert ids == sorted(ids) and set(ids) <= {1, 2, 3}


@pytest.mark.exhaustive
def test_sigterm_to_one_rank_stops_all_ranks(root: Path) -> None:
    job = start_ranks(2, "train.py", *settings_in(root, "signalled", *MANY_STEPS))
    wait_for_steps(root / "signalled", job, count=2)
    os.kill(rank_process(1, root / "signalled"), signal.SIGTERM)
    assert ended(job).code == 75


def test_rank_killed_during_a_step_ends_the_job(root: Path) -> None:
    job = start_ranks(2, "train.py", *settings_in(root, "killed", *MANY_STEPS))
    wait_for_steps(root / "killed", job, count=2)
    os.kill(rank_process(1, root / "killed"), signal.SIGKILL)
    begin = time.monotonic()
    outcome = ended(job)
    assert time.monotonic() - begin < 30
    assert outcome.code not in (0, 75)
    wait_until_gone(f"run.root={root}")


def is_writing(run: Path) -> bool:
    """Whether a checkpoint is being written, under its temporary name."""
    return any((run / "checkpoints").glob(".step-*"))


def is_evaluating(run: Path) -> bool:
    """Whether the step before the first evaluation has ended."""
    return (run / "metrics.jsonl").exists() and len(read_records(run, kind="step")) == 4


@pytest.mark.parametrize(
    ("victim", "moment"),
    [(0, is_writing), pytest.param(1, is_evaluating, marks=pytest.mark.exhaustive)],
)
def test_run_killed_while_writing_or_evaluating_and_then_stopped_resumes_exactly(
    victim: int, moment: Callable[[Path], bool], finished: Ended, root: Path
) -> None:
    run = root / f"killed-{victim}-{moment.__name__}"
    arguments = settings_in(root, run.name, "checkpoint.every=2 steps")
    job = start_ranks(2, "train.py", *arguments)
    end = time.monotonic() + 300
    while not moment(run):
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    os.kill(rank_process(victim, run), signal.SIGKILL)
    assert ended(job).code not in (0, 75)
    wait_until_gone(f"run.name={run.name}", seconds=30)
    job = start_ranks(2, "train.py", *arguments, "--resume")
    wait_for_steps(run, job, count=5)  # more than before
    job.send_signal(signal.SIGTERM)
    stopped = ended(job)
    assert stopped.code == 75, stopped.errors
    assert stopped.output.count("SIGTERM: checkpoint written; continue with: mpirun -np 2 ") == 1
    step = read_records(run, kind="step")[-1]["step"]
    saving = ("tests/support/trained_ranks.py", str(run))
    resumed = run_ranks(2, *saving, *arguments, "--resume")
    assert resumed.code == 0, resumed.errors
    assert f"resumed after step {step}" in " ".join(resumed.output.split())
    assert_same_end(run, root / "whole", step=STEPS)
    first, second = (torch.load(run / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    steps = [record["step"] for record in read_records(run, kind="step")]
    assert steps == list(range(1, STEPS + 1))
    assert [record["step"] for record in read_records(run, kind="evaluation")] == [4, 6]
    shutil.rmtree(run)


def rank_process(rank: int, run: Path) -> int:
    return rank_processes(f"run.name={run.name}", rank)[0]


def test_nonfinite_loss_ends_all_ranks_with_one_report(root: Path) -> None:
    changes = ("training.learning_rate=1e30", "training.warmup_epochs=0")
    job = run_ranks(2, "train.py", *settings_in(root, "diverged", *changes))
    assert job.code == 3
    assert job.errors.count("loss not finite at step") == 1
    assert job.errors.count("\n") == 1 and " rank 0: " in job.errors and " rank 1: " in job.errors
    [autopsy] = (root / "diverged" / "checkpoints").glob("nonfinite-*")
    assert str(autopsy) in job.errors
    report = json.loads((autopsy / "report.json").read_text())
    images = [rank["batches"][0]["images"] for rank in report["ranks"]]
    assert len(images) == 2 and images[0] != images[1]
    assert report["weights_not_finite_before"]["count"] == 0
    steps = read_records(root / "diverged", kind="step")
    assert [step["step"] for step in steps] == list(range(1, report["step"]))


@pytest.mark.exhaustive
def test_unreadable_image_of_one_rank_ends_all_ranks_after_a_checkpoint(root: Path) -> None:
    arguments = settings_in(root, "damaged", "training.epochs=2", "training.max_steps=8")
    assert run_ranks(2, "train.py", *arguments).code == 0
    image = sorted((root / "damaged" / "scenes" / "train" / "data").iterdir())[3]
    image.write_bytes(image.read_bytes()[:100])
    job = run_ranks(2, "train.py", *arguments, "--overwrite", "training.epochs=3")
    assert job.code == 2
    [line] = [line for line in job.errors.splitlines() if "error: " in line]
    assert image.name in line and "then continue with: mpirun -np 2 " in line


FLAGS: list[tuple[list[str], list[pytest.MarkDecorator]]] = [
    ([], []),
    *(([flag], [pytest.mark.exhaustive]) for flag in ("--dry-run", "--check")),
]
GROUPS = "distributed.groups: 2 groups cannot be of equal size: there are 3 ranks; use 1 or 3\n"
SPLIT = (
    "distributed.batch_split: expected 2 numbers with the sum 4 (ranks × training.batch_size=2), "
    "even or speed, found [3, 2]\n"
)


@pytest.mark.parametrize(
    ("ranks", "arguments", "message"),
    [
        (2, ["--nonsense"], "unrecognized arguments: --nonsense"),
        (2, ["training.batch=1"], "training.batch: no such field"),
        (2, ["data.reserve_cores=1"], "data.reserve_cores=1 leaves none to compute"),
        (2, ["data.root=/nowhere"], "data.root: /nowhere is given together with data.scenes"),
        *(
            pytest.param(ranks, [*words, *flags], message, marks=marks)
            for ranks, words, message in (
                (3, ["distributed.groups=2"], GROUPS),
                (2, ["training.batch_size=2", "distributed.batch_split=[3, 2]"], SPLIT),
            )
            for flags, marks in FLAGS
        ),
    ],
)
def test_configuration_error_is_printed_once(
    root: Path, ranks: int, arguments: list[str], message: str
) -> None:
    job = run_ranks(ranks, "train.py", *settings_in(root, "mistaken"), *arguments)
    # mpirun may tell how it ended the supervisors of groups.
    assert job.code == 2 or (message == GROUPS and job.code == signal.SIGKILL)
    assert job.errors.count(message) == 1
    assert not (root / "mistaken").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("word", "comment"),
    [
        ("groups=2", "# compute groups: 2 of 1 rank, asynchronous"),
        (
            "batch_split=speed",
            "# batches: 4 images, split by the speed of each rank, measured at the start",
        ),
        ("batch_split=[1, 3]", "# batches: 1 image on rank 0, 3 on rank 1"),
    ],
)
def test_dry_run_prints_the_work_of_the_ranks(word: str, comment: str) -> None:
    changes = ("training.batch_size=2", f"distributed.{word}")
    job = run_ranks(2, "train.py", *SETTINGS, *changes, "--dry-run")
    assert (job.code, job.errors) == (0, "")
    assert comment in job.output.splitlines()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9" * 5000}, "error: MASTER_PORT: "),
        (
            ["data.scenes=null", *(f"data.{split}_annotations={{file}}" for split in SPLITS)]
            + [f"data.{split}_images={{folder}}" for split in SPLITS],
            {},
            "broken.json: annotations[0].bbox: expected [x, y, width, height]",
        ),
    ],
    ids=["environment", "annotations"],
)
def test_hostile_input_ends_all_ranks_in_seconds_with_one_error(
    root: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 64}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1e308, -1]}],
        "categories": [{"id": 1, "name": "\u001b[2J"}],
    }
    file = root / "broken.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    given = [word.format(file=file, folder=root) for word in arguments]
    begin = time.monotonic()
    job = ended(start_ranks(2, "train.py", *settings_in(root, "hostile"), *given, **variables))
    assert time.monotonic() - begin < 30
    assert job.code == 2, job.errors
    assert job.errors.count(message) == 1 and job.errors.count("error: ") == 1
    assert not (root / "hostile").exists()


def test_bad_weights_leave_no_files_behind(tmp_path: Path) -> None:
    weights = tmp_path / "other.safetensors"
    save_file({"conv1.weight": torch.zeros(3)}, weights)
    changes = (f"model.pretrained_backbone={weights}", "model.norm=frozen")
    arguments = settings_in(tmp_path / "runs", "bad", *changes, "model.trainable_layers=3")
    job = run_ranks(2, "train.py", *arguments)
    assert job.code == 2, job.errors
    [line] = job.errors.strip().splitlines()
    assert str(weights) in line and "model.pretrained_backbone" in line
    assert list(tmp_path.iterdir()) == [weights]


@pytest.mark.exhaustive
def test_torchrun_starts_ranks(root: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    arguments = settings_in(root, "elastic", "training.max_steps=2", "evaluation.pictures=0")
    done = run_program(torchrun, "--nproc-per-node=2", "train.py", *arguments, timeout=120)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert " ranks 2 on " in words and "gradients by shared memory (auto: one host)" in words, words
    assert len(read_records(root / "elastic", kind="step")) == 2
