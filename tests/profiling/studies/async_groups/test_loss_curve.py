import math
from typing import Any

import pytest

from profiling.studies.async_groups_search import (
    Evaluated,
    Point,
    images_per_second,
    loss_at,
    map_curve,
    mean_staleness,
    step_points,
)


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": 1.0, "seconds": 1.0, "images": 4, **values}


def test_groups_work_side_by_side_from_the_start_on() -> None:
    records = [
        step(1, group=0, seconds=1.0),
        step(2, group=1, seconds=2.5),
        step(3, group=0, seconds=1.0),
        {"kind": "evaluation", "step": 3},
        step(4, group=0, seconds=1.0),
    ]
    points = step_points(records)
    assert [one.seconds for one in points] == [1.0, 2.0, 2.5, 3.0]
    assert images_per_second(points) == pytest.approx(16 / 3)


def test_groups_begin_when_the_last_step_of_all_has_ended() -> None:
    records = [
        step(1, seconds=5.0),
        step(2, group=1, seconds=2.0),
        step(3, group=0, seconds=3.0),
        step(4, group=1, seconds=2.0),
        step(5, seconds=1.0),
    ]
    assert [one.seconds for one in step_points(records)] == [5.0, 7.0, 8.0, 9.0, 10.0]


def test_steps_of_the_cold_start_and_skipped_ones_do_not_count() -> None:
    records = [
        step(1),
        step(2, loss=None),
        step(3, group=1, staleness=2),
        step(4, group=0, staleness=1),
    ]
    assert [one.seconds for one in step_points(records, after_step=1)] == [1.0, 1.0]
    assert mean_staleness(records) == 1.5
    assert mean_staleness([]) == 0.0


def test_the_loss_is_the_mean_of_the_last_quarter_of_the_time() -> None:
    points = [Point(seconds=float(at), loss=float(at), images=1) for at in range(1, 13)]
    found = loss_at(points, 8.0)
    assert found.mean == 7.5 and found.error == pytest.approx(math.sqrt(0.5) / math.sqrt(2))


def test_a_training_without_steps_in_that_time_has_no_loss() -> None:
    assert loss_at([], 8.0).mean == math.inf
    assert images_per_second([]) == 0.0


def test_an_evaluation_has_the_time_of_all_steps_and_evaluations_before() -> None:
    metric = {"kind": "evaluation", "seconds": 10.0, "map": 0.25, "map_50": None}
    records = [
        step(1, seconds=5.0),
        {**metric, "epoch": 1.0},
        step(2, group=0, seconds=2.0),
        step(3, group=1, seconds=3.0),
        {**metric, "epoch": 2.0},
    ]
    assert map_curve(records) == [
        Evaluated(epoch=1.0, seconds=15.0, map=0.25, map_50=0.0),
        Evaluated(epoch=2.0, seconds=28.0, map=0.25, map_50=0.0),
    ]
