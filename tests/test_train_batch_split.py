"""Batches split among two ranks under the real mpirun: by speed, by a list, and when resumed."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from profiling.bench.jobs import cpus_of_last_rank
from profiling.bench.worker_pool import busy_cores
from retinanet.config_file import load_config
from retinanet.training.checkpoint import read_checkpoint
from tests.launch.ranks import Ended, ended, run_ranks, start_ranks
from tests.support.training_runs import read_records

pytestmark = pytest.mark.whole_machine

SETTINGS = (
    "data.scenes.train=16",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=2",
    "training.learning_rate=1e-3",
    "training.warmup_epochs=0",
    "training.schedule=constant",
    "training.gradient_accumulation=2",
    "training.epochs=2",
    "evaluation.every=1",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "launch.threads=1",
    "distributed.timeout_s=60",
)
"""Two steps an epoch, each of two batches of four images."""


def arguments(root: Path, name: str, *changes: str) -> list[str]:
    return ["train.py", *SETTINGS, f"run.root={root}", f"run.name={name}", *changes]


def checked(job: Ended) -> Ended:
    assert (job.code, job.errors) == (0, "")
    return job


def trained(root: Path, name: str, *changes: str) -> Ended:
    return checked(run_ranks(2, *arguments(root, name, *changes)))


def read_ranks(run: Path) -> dict[str, Any]:
    """Return the description of the ranks in a run's environment.json."""
    ranks: dict[str, Any] = json.loads((run / "environment.json").read_text())["ranks"]
    return ranks


def wait_for_file(path: Path, job: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        assert job.poll() is None and time.monotonic() < end, path
        time.sleep(0.01)


@pytest.fixture(scope="module")
def slowed(root: Path) -> Ended:
    """Return two steps of a run split by speed, with a background load on the core of rank 1."""
    cpus = cpus_of_last_rank(load_config("demo.yaml", SETTINGS))
    changes = ("distributed.batch_split=speed", "training.max_steps=2")
    job = start_ranks(2, *arguments(root, "by-speed", *changes))
    # Starting Python under the load would take half a minute. The folder comes before the model,
    # and what describes the ranks after their speed is known.
    wait_for_file(root / "by-speed", job)
    # Three processes, so that rank 1 is slower than rank 0 even if another job shares a core.
    with busy_cores(cpus * 3):
        wait_for_file(root / "by-speed" / "environment.json", job)
    return checked(ended(job))


@pytest.fixture(scope="module")
def resumed(slowed: Ended, root: Path) -> Ended:
    """Return the same run, resumed without the background load."""
    return trained(root, "by-speed", "distributed.batch_split=speed", "--resume")


@pytest.fixture(scope="module")
def listed(root: Path) -> Ended:
    """Return an uninterrupted run whose list of images equals the split by speed."""
    return trained(root, "listed", "distributed.batch_split=[3, 1]")


def test_slower_rank_gets_fewer_images(slowed: Ended, root: Path) -> None:
    line = next(row for row in slowed.output.splitlines() if row.startswith("batches "))
    text = "3 images on rank 0, 1 on rank 1, by measured speed "
    assert line.removeprefix("batches").strip().startswith(text)


@pytest.mark.exhaustive
def test_resumed_run_keeps_its_split(resumed: Ended, root: Path) -> None:
    assert (
        "3 images on rank 0, 1 on rank 1, by the speed measured at an earlier start"
        in resumed.output
    )
    assert "other conditions" not in resumed.output
    ranks = read_ranks(root / "by-speed")
    assert ranks["images_of_a_batch"] == [3, 1]
    assert ranks["measured_images_per_second"] is None


@pytest.mark.exhaustive
def test_measuring_and_resuming_do_not_change_the_weights(
    resumed: Ended, listed: Ended, root: Path
) -> None:
    whole, pieces = (root / name / "checkpoints" / "last" for name in ("listed", "by-speed"))
    for part in ("model.safetensors", "optimizer.safetensors", "ranks.safetensors"):
        assert (pieces / part).read_bytes() == (whole / part).read_bytes(), part
    expected, actual = (read_checkpoint(folder).state for folder in (whole, pieces))
    assert actual.position == expected.position and actual.position.step == 4
    assert actual.random_states == expected.random_states
    assert actual.setup == expected.setup and actual.setup["split of batches"] == [3, 1]


@pytest.mark.exhaustive
def test_split_keeps_the_global_batch_size(listed: Ended, root: Path) -> None:
    steps = read_records(root / "listed", kind="step")
    images = [record["images_per_second"] * record["seconds"] for record in steps]
    assert images == [pytest.approx(8)] * 4
    assert "batches  3 images on rank 0, 1 on rank 1\n" in listed.output
