"""`python -m launch groups`: probes under the real mpirun, and what it refuses."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from profiling.studies.async_groups_search import Job, Setting, cold_start, log_file, probe, whole
from tests.launch.processes_left import wait_until_gone
from tests.launch.ranks import REPOSITORY

SMALL = (
    "data.scenes.train=16",
    "data.scenes.validation=2",
    "data.image_size=64",
    "training.batch_size=1",
    "engine.precision=float32",
    "training.warmup_epochs=0",
    "launch.threads=1",
    "distributed.timeout_s=60",
)


def job_in(folder: Path, *changes: str) -> Job:
    return Job(
        ranks=2,
        config="demo.yaml",
        overrides=(*SMALL, *changes),
        learning_rate=3e-4,
        where=(),
        folder=folder,
    )


def nothing(done: int, note: str) -> None:
    """In the place of a bar."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, int]:
    """Trainings whose cold start is there, and its steps."""
    job = job_in(tmp_path_factory.mktemp("groups"))
    return job, cold_start(job, seconds=1, advance=nothing)


@pytest.mark.whole_machine
def test_a_probe_goes_on_from_the_cold_start_which_is_left_as_it_is(begun: tuple[Job, int]) -> None:
    job, step = begun
    assert step > 0
    before = (job.folder / "cold-start" / "metrics.jsonl").read_bytes()
    records = probe(job, Setting(2, 0.3, 0.1), seconds=1, after_step=step, advance=nothing)
    assert min(one["step"] for one in records) == step + 1
    assert {one["group"] for one in records} == {0, 1}
    assert [one["learning_rate"] for one in records] == [pytest.approx(3e-5)] * len(records)
    assert "beta1 0.3" in log_file(job.folder / "groups2-beta0.3-rate0.1").read_text()
    assert not (job.folder / "groups2-beta0.3-rate0.1" / "checkpoints").exists()
    assert (job.folder / "cold-start" / "metrics.jsonl").read_bytes() == before
    assert cold_start(job, seconds=1, advance=nothing) == step  # not again


@pytest.mark.whole_machine
def test_a_whole_training_of_groups_goes_on_from_the_cold_start_to_the_end(
    begun: tuple[Job, int],
) -> None:
    job, cold = begun
    epochs = 2 * cold // 16 + 1  # a step of the cold start has two images, an epoch 16
    ended = (f"training.epochs={epochs}", f"evaluation.every={epochs}")
    records = whole(
        replace(job, overrides=(*job.overrides, *ended)), Setting(2, 0.4), advance=nothing
    )
    steps = [one for one in records if one["kind"] == "step"]
    assert [one["step"] for one in steps if "group" not in one] == list(range(1, cold + 1))
    assert sum(one["images"] for one in steps) == 16 * epochs
    assert records[-1]["kind"] == "evaluation"


@pytest.mark.whole_machine
def test_ctrl_c_stops_the_training_too_and_leaves_nothing_behind(tmp_path: Path) -> None:
    words = ["-m", "launch", "groups", "--np", "2", "--out", str(tmp_path), *SMALL]
    started = subprocess.Popen(
        [sys.executable, *words], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 90
    metrics = tmp_path / "cold-start" / "metrics.jsonl"
    while not metrics.exists() or '"kind": "step"' not in metrics.read_text():
        assert time.monotonic() < end and started.poll() is None
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130 and "Traceback" not in errors
    wait_until_gone(f"run.root={tmp_path}")
    assert (tmp_path / "cold-start" / "checkpoints" / "last").exists()


@pytest.mark.whole_machine
def test_a_training_that_fails_is_told_with_its_own_last_line(tmp_path: Path) -> None:
    job = job_in(tmp_path, "data.root=/nowhere", "data.scenes=null")
    with pytest.raises(InputError, match=r"ended with status 2: error: .*/nowhere"):
        cold_start(job, seconds=1, advance=nothing)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--np", "1", "--out", "x"], "groups need at least 2 ranks"),
        (["--np", "2"], "the following arguments are required: --out"),
        (["--np", "2", "--out", "x", "trainig.epochs=1"], "did you mean training"),
        (["--np", "2", "--out", "x", "--mpirun", "/nowhere"], "/nowhere"),
    ],
)
def test_what_is_wrong_is_told_in_a_line_and_nothing_is_written(
    tmp_path: Path, words: list[str], line: str
) -> None:
    command = [sys.executable, "-m", "launch", "groups", *words]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert line in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_probes_is_refused(tmp_path: Path) -> None:
    content = {"about": {"config": "coco.yaml"}, "probes": [], "trained": []}
    (tmp_path / "probes.json").write_text(json.dumps(content))
    words = [sys.executable, "-m", "launch", "groups", "--np", "2", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "config was coco.yaml, is now demo.yaml" in done.stderr


def test_a_file_in_the_folder_s_place_is_told_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    words = [sys.executable, "-m", "launch", "groups", "--np", "2", "--out", str(file)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: {file}/probes.json: cannot be written: ")
    assert file.read_text() == "mine"
