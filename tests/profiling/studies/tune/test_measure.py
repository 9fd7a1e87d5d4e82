"""What the planner measures, with the real mpirun and real training steps."""

from pathlib import Path

import pytest
from rich.console import Console

from launch.mpirun import choose_mpirun
from profiling.bench.job import JobFailedError, MeasuredJob, measure_all_reduces
from profiling.studies.tune.measure import (
    STEPS,
    WARM_UP,
    TrainedData,
    added,
    evaluation_seconds,
    measure_steps,
    step_time,
    what_to_measure,
)
from profiling.studies.tune.model import Shape
from tests.launch.ranks import MPIRUN
from tests.support.fast_precision import FAST_PRECISION

SMALL = (
    "data.scenes={train: 8, validation: 1}",
    "data.image_size=64",
    f"engine.precision={FAST_PRECISION}",
)
SHAPES = [Shape(ranks=ranks, threads=1, batch_size=1) for ranks in (1, 2)]


def job(folder: Path, overrides: tuple[str, ...]) -> MeasuredJob:
    return MeasuredJob(
        ranks=1,
        config="demo.yaml",
        overrides=overrides,
        warm_up=WARM_UP,
        steps=STEPS,
        alternate=True,
        scenes=folder / "scenes",
        own_model=True,
    )


@pytest.mark.whole_machine
def test_steps_of_each_shape_are_measured_without_their_exchange(tmp_path: Path) -> None:
    found = measure_steps(
        SHAPES,
        job(tmp_path, SMALL),
        rounds=1,
        mpirun=choose_mpirun(MPIRUN),
        console=Console(quiet=True),
    )
    times = [step_time(one) for one in found]
    assert [one.shape for one in times] == SHAPES
    (one,), (two,) = (measured.jobs for measured in found)
    assert min(one[0].seconds) <= times[0].seconds <= max(one[0].seconds)
    held_back = [seconds for rank in two for seconds in rank.held_back_seconds]
    assert min(held_back) <= times[1].seconds <= max(held_back)
    assert all(
        0 < part < whole for part, whole in zip(one[0].forward_seconds, one[0].seconds, strict=True)
    )
    assert [(share.ranks, share.batch_size) for share in added(found)] == [(2, 1)]


@pytest.mark.whole_machine
def test_job_that_fails_is_told_with_its_status(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError) as failed:
        measure_steps(
            SHAPES[:1],
            job(tmp_path, ("data.image_size=63",)),
            rounds=1,
            mpirun=choose_mpirun(MPIRUN),
            console=Console(quiet=True),
        )
    assert failed.value.code == 2


@pytest.mark.whole_machine
def test_larger_all_reduces_take_longer() -> None:
    found = measure_all_reduces(sizes=(2**12, 2**25), ranks=2, mpirun=choose_mpirun(MPIRUN))
    times = found.times
    assert [(one.ranks, one.size) for one in times] == [(2, 2**12), (2, 2**25)]
    assert 0 < times[0].seconds < times[1].seconds
    assert found.over == "measured over sockets of one host, gloo"


def test_evaluation_is_that_of_the_configurations_own_model() -> None:
    overrides = ("model.norm=batch", *SMALL)
    data = TrainedData(
        name="demo.yaml", config="demo.yaml", images=8, evaluated_images=1, classes=4
    )
    assert 0 < evaluation_seconds(what_to_measure(data, overrides=overrides)) < 60
