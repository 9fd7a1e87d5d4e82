"""`train.py --check`, and the checks of every start before anything is written."""

import json
import os
import signal
from pathlib import Path

import pytest

from launch.host_state import read_host_state
from launch.topology import read_topology
from tests.launch import host_trees
from tests.launch.ranks import TrainHere, run_ranks
from tests.support.mounts import needs_root, tmpfs

pytestmark = pytest.mark.slow

SETTINGS = (
    "data.scenes.train=8",
    "data.scenes.validation=3",
    "data.image_size=64",
    "engine.precision=float32",
    "training.max_steps=1",
)
SGD = "training.optimizer=sgd"  # whose checkpoints have a third of the size
SEVERAL_TASKS = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}
"""Variables in a job of eight tasks, without srun."""


@pytest.fixture
def train(train_here: TrainHere) -> TrainHere:
    return lambda *arguments: train_here(*SETTINGS, *arguments)


def test_check_of_a_valid_run_passes_and_leaves_no_files(train: TrainHere, tmp_path: Path) -> None:
    outcome = train("--check", f"run.root={tmp_path / 'runs'}")
    assert (outcome.code, outcome.errors) == (0, "")
    assert "the run can start" in outcome.output
    for subject in ("placement", "/dev/shm", "memory", "versions", "data", "disk space", "weights"):
        assert f"\n{subject} " in outcome.output, subject
    assert list(tmp_path.iterdir()) == []


def test_slurm_job_of_several_tasks_without_srun_gets_a_warning(
    train: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SEVERAL_TASKS.items():
        monkeypatch.setenv(name, value)
    checked = train("--check", f"run.root={tmp_path}")
    assert (checked.code, checked.errors) == (0, "")
    [line] = [line for line in checked.output.splitlines() if "SLURM_NTASKS=8" in line]
    assert "warning" in line
    assert "SLURM_NTASKS" not in train("--check", "--check-ranks=2", f"run.root={tmp_path}").output


def test_core_that_srun_withholds_is_a_warning(
    train: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = os.sched_getaffinity(0)
    cores = {cpu.core for cpu in read_topology().restricted(cpus).cpus}
    if len(cores) < 2:
        pytest.skip("a single core")
    kept = {cpu.cpu for cpu in read_topology().restricted(cpus).cpus if cpu.core != max(cores)}
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    step |= {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_CPUS_PER_NODE": str(len(cpus))}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    os.sched_setaffinity(0, kept)
    try:
        checked = train("--check", f"run.root={tmp_path}")
    finally:
        os.sched_setaffinity(0, cpus)
    assert (checked.code, checked.errors) == (0, "")
    text = " ".join(checked.output.split())
    assert f"bound to {len(cores) - 1} of the {len(cores)} cores that this host offers" in text
    assert f"srun --cpus-per-task={len(cpus)}" in text


def test_state_of_the_host_is_checked_noted_and_kept(
    train: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = read_host_state(host_trees.laptop(tmp_path / "laptop"))
    monkeypatch.setattr("retinanet.preflight.check.read_host_state", lambda: state)
    monkeypatch.setattr("retinanet.preflight.check.free_memory", lambda: None)
    runs = tmp_path / "runs"
    checked = train("--check", f"run.root={runs}")
    assert (checked.code, checked.errors) == (0, "")
    assert "host state" in checked.output and "energy preference balance_power" in checked.output
    assert "with 3 warnings" in checked.output
    for name, value in SEVERAL_TASKS.items():
        monkeypatch.setenv(name, value)
    trained = train(f"run.root={runs}", "run.name=x", "evaluation.pictures=0", SGD)
    assert trained.code == 0, trained.errors
    notes = [line for line in trained.output.splitlines() if line.startswith("note: ")]
    for subject in ("frequency", "turbo", "swap"):
        [line] = [line for line in notes if f"note: {subject}: " in line]
        assert "sudo " in line
    [line] = [line for line in notes if "SLURM_NTASKS=8" in line]
    assert "srun" in line
    environment = json.loads((runs / "x" / "environment.json").read_text())
    [kept] = environment["host_state"].values()
    assert kept["turbo"] == "off" and kept["huge_pages"] == "never" and kept["swap_used"] > 0


def test_each_failure_is_one_line(train: TrainHere, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    outcome = train(
        "--check",
        f"run.root={tmp_path / 'runs'}",
        "data.root=/nowhere",
        "model.norm=frozen",
        "launch.threads=4096",
    )
    assert outcome.code == 2
    lines = outcome.errors.splitlines()
    assert [line.split(":")[:2] for line in lines] == [
        ["error", " placement"],
        ["error", " data.root"],
        ["error", " writing"],
        ["error", " weights"],
    ]
    assert "the run cannot start: 4 failures" in outcome.output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--check-ranks", "4096"), "error: placement: 4096 ranks are more than"),
        (("--check-ranks", "9" * 12), "train.py: error: argument --check-ranks: expected"),
        (
            ("training.gradient_accumulation=1000",),
            "error: steps: training.gradient_accumulation: 1000 batches",
        ),
    ],
    ids=["ranks that are not started", "absurd number of ranks", "longer than an epoch"],
)
def test_impossible_plan_is_refused(
    arguments: tuple[str, ...], error: str, train: TrainHere, tmp_path: Path
) -> None:
    outcome = train("--check", *arguments, f"run.root={tmp_path}")
    assert outcome.code == 2
    assert [line.startswith(error) for line in outcome.errors.splitlines()].count(True) == 1


@pytest.mark.parametrize("start", [["--check"], []])
@pytest.mark.parametrize("field", ["training.batch_size", "evaluation.batch_size"])
def test_batch_larger_than_memory_is_refused(
    field: str, start: list[str], train: TrainHere, tmp_path: Path
) -> None:
    outcome = train(
        *start, f"{field}=900000", "data.scenes.validation=900000", f"run.root={tmp_path}"
    )
    assert outcome.code == 2
    [line] = [line for line in outcome.errors.splitlines() if field in line]
    assert line.startswith(f"error: memory: {field}: 900,000 images ")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_with_130_and_leaves_no_files(
    train: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_unused: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("retinanet.preflight.host.check_compiler", interrupted)
    outcome = train("--check", f"run.root={tmp_path / 'runs'}")
    assert (outcome.code, outcome.errors) == (130, "interrupted\n")
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_full_disk_is_refused_before_anything_is_written(train: TrainHere, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=64m") as folder:
        outcome = train(f"run.root={folder / 'runs'}")
        assert list(folder.iterdir()) == []
    assert outcome.code == 2
    [line] = outcome.errors.splitlines()
    assert line.startswith("error: disk space: a checkpoint takes 38")


@needs_root
def test_read_only_folder_is_named(train: TrainHere, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "fixed", "ro") as folder:
        outcome = train(f"run.root={folder}")
    assert outcome.code == 2
    assert outcome.errors == (
        f"error: writing: {folder}: cannot be written: Read-only file system; set run.root to a "
        "folder that can be written\n"
    )


@pytest.mark.whole_machine
def test_ranks_of_one_host_are_checked_once(tmp_path: Path) -> None:
    job = run_ranks(2, "train.py", "--check", *SETTINGS, f"run.root={tmp_path / 'runs'}")
    assert (job.code, job.errors) == (0, "")
    assert job.output.count("\nplacement ") == 1
    assert "2 ranks of 1 thread on CPUs" in job.output
    assert job.output.count("the run can start") == 1
    assert list(tmp_path.iterdir()) == []
