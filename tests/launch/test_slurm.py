"""The job script for Slurm on a real Slurm of two hosts."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launch.slurm import Slurm, started_slurm
from tests.launch.two_hosts import two_hosts
from tests.support.training_runs import read_records

pytestmark = [pytest.mark.whole_machine, pytest.mark.exhaustive]

SETTINGS = (
    "data.scenes.train=12",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=1",
    "training.epochs=2",
    "evaluation.every=100",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "checkpoint.every=100 steps",
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("s")
    with two_hosts(folder, names_are_loopback=False) as hosts, started_slurm(hosts, folder) as made:
        yield made


def submit(slurm: Slurm, folder: Path, name: str, *, minutes: int = 60) -> tuple[str, Path]:
    """Submit the recipe for one rank on each host; return the job and the file of its output."""
    output = folder / f"{name}.out"
    options = [f"--time={minutes}", "--nodes=2", "--ntasks-per-node=1", f"--output={output}"]
    command = [*options, "--parsable", "launch/recipes/slurm.sbatch", "--config", "demo.yaml"]
    run = [f"run.root={folder}", f"run.name={name}"]
    return slurm.call("sbatch", *command, *SETTINGS, *run), output


def test_job_that_was_signalled_is_queued_again_and_ends_with_equal_weights(
    slurm: Slurm, tmp_path: Path
) -> None:
    whole, _ = submit(slurm, tmp_path, "whole")
    slurm.wait_for(whole, "COMPLETED")
    job, output = submit(slurm, tmp_path, "stopped")
    end = time.monotonic() + 240
    while len(read_records(tmp_path / "stopped", kind="step")) < 3:
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.05)
    slurm.call("scancel", "--signal=USR1", job)
    slurm.wait_for(job, "PENDING")
    text = output.read_text()
    start = "srun -n 2 --nodes=2 --cpus-per-task=1 --cpu-bind=none"
    assert f"SIGUSR1: checkpoint written; continue with: {start} " in text
    steps = [record["step"] for record in read_records(tmp_path / "stopped", kind="step")]
    assert len(steps) < 12
    # Slurm waits for two minutes before it starts a job again.
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_for(job, "COMPLETED")
    assert f"resumed after step {steps[-1]}" in " ".join(output.read_text().split())
    steps = [record["step"] for record in read_records(tmp_path / "stopped", kind="step")]
    assert steps == list(range(1, 13))
    first, second = (
        load_file(tmp_path / name / "checkpoints/last/model.safetensors")
        for name in ("whole", "stopped")
    )
    assert all(tensor.equal(second[name]) for name, tensor in first.items())


def test_job_whose_limit_is_within_its_margin_does_not_start(slurm: Slurm, tmp_path: Path) -> None:
    job, output = submit(slurm, tmp_path, "short", minutes=8)
    slurm.wait_for(job, "FAILED")
    assert re.fullmatch(r"error: --time leaves this job 4\d\d s, .*\n", output.read_text())
    assert not (tmp_path / "short").exists()
