from pathlib import Path

import pytest

from profiling.ablate.measure import JobRunner, summarize_job
from profiling.bench.job import JobFailedError, RankSteps
from profiling.bench.variant import Variant, Workload


def rank(number: int, *, seconds: list[float], waiting: list[float]) -> RankSteps:
    return RankSteps(
        rank=number,
        host="here",
        seconds=seconds,
        data_seconds=[0.1] * len(seconds),
        forward_seconds=[0.5] * len(seconds),
        exchange_seconds=waiting,
        held_back_seconds=[],
        images=2,
        way="shared memory",
        notes=[],
    )


def test_a_step_is_as_long_as_that_of_its_slowest_rank() -> None:
    run = summarize_job(
        [
            rank(0, seconds=[2.0, 2.2, 4.0], waiting=[0.3, 0.1, 0.5]),
            rank(1, seconds=[1.9, 2.4, 2.1], waiting=[0.2, 0.4, 0.6]),
        ],
        images=3,
        faults=7,
    )
    assert run.seconds == 2.4
    assert run.page_faults == 7
    assert run.details == {
        "images a second": pytest.approx(2 * 3 / 2.4),
        "waiting for data": 0.1,
        "waiting for gradients": 0.2,
    }


def job(folder: Path, **options: int | str) -> JobRunner:
    variant = Variant(
        name="some",
        about="",
        recipe="mpirun",
        options={"ranks": 2, "threads": 1, "precision": "float32", "steps": 2, **options},
    )
    workload = Workload(images=1, image_size=64)
    return JobRunner(variant, workload, scenes=folder / "scenes", print_line=lambda line: None)


@pytest.mark.whole_machine
def test_two_ranks_train_and_tell_their_steps(tmp_path: Path) -> None:
    run = job(tmp_path, warm_up_steps=1).run()
    assert run.details["images a second"] == pytest.approx(2 / run.seconds)
    assert 0 < run.details["waiting for gradients"] < run.seconds


@pytest.mark.whole_machine
def test_a_job_that_cannot_run_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailedError, match="exit status 2"):
        job(tmp_path, threads=10**4).run()
    assert "error" in capfd.readouterr().err
