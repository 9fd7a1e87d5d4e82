from dataclasses import replace

import pytest

from common.errors import InputError
from retinanet.training.schedule import Position, StepPlan


def plan(
    *,
    images: int = 10,
    batch: int = 1,
    accumulation: int = 1,
    epochs: int = 3,
    max_steps: int | None = None,
    every: int = 1,
) -> StepPlan:
    return StepPlan(
        images_per_epoch=images,
        images_per_batch=batch,
        gradient_accumulation=accumulation,
        epochs=epochs,
        max_steps=max_steps,
        evaluate_every=every,
    )


def evaluations(one: StepPlan) -> list[int]:
    steps = range(one.start.step, one.total_steps + 1)
    return [step for step in steps if one.evaluation_is_due(step)]


def positions(one: StepPlan, *steps: int) -> list[tuple[int, int]]:
    return [(one.position(step).epoch, one.position(step).images) for step in steps]


def test_evaluation_comes_after_every_epoch_and_not_before_the_first() -> None:
    assert plan().total_steps == 30
    assert evaluations(plan()) == [10, 20, 30]


def test_evaluation_every_second_epoch_and_at_the_end() -> None:
    assert evaluations(plan(every=2)) == [20, 30]


def test_max_steps_end_the_run_with_an_evaluation() -> None:
    assert plan(max_steps=14).total_steps == 14
    assert evaluations(plan(max_steps=14)) == [10, 14]
    assert plan(max_steps=3).total_steps == 3
    assert evaluations(plan(max_steps=3)) == [3]


def test_max_steps_never_lengthen_a_run() -> None:
    assert plan(max_steps=1000).total_steps == 30


def test_an_accumulated_step_takes_several_batches_and_drops_the_rest() -> None:
    one = plan(images=21, batch=2, accumulation=3)
    assert (one.steps_per_epoch, one.total_steps) == (3, 9)
    assert evaluations(one) == [3, 6, 9]
    assert positions(one, *range(4)) == [(0, 0), (0, 6), (0, 12), (1, 0)]


def test_an_epoch_with_fewer_images_than_a_batch_has_one_step() -> None:
    one = plan(images=3, batch=8)
    assert (one.steps_per_epoch, one.total_steps) == (1, 3)
    assert positions(one, 0, 1, 2) == [(0, 0), (1, 0), (2, 0)]


def test_an_epoch_without_a_whole_step_is_refused() -> None:
    with pytest.raises(InputError, match="6 batches per step, but an epoch has only 5"):
        plan(accumulation=6, batch=2)


def test_the_position_is_the_next_epoch_and_image() -> None:
    assert positions(plan(batch=1), 0, 9, 10, 25) == [(0, 0), (0, 9), (1, 0), (2, 5)]
    assert positions(plan(images=11, batch=2), 4, 5, 6) == [(0, 8), (1, 0), (1, 2)]


def test_an_epoch_ends_at_its_last_step() -> None:
    assert [plan().end_of_epoch(step) for step in (0, 9, 10, 19, 20)] == [10, 10, 20, 20, 30]
    assert plan(max_steps=14).end_of_epoch(12) == 14


@pytest.mark.parametrize("step", range(16))
def test_a_resumed_plan_is_that_of_the_whole_run(step: int) -> None:
    whole = plan(images=23, batch=2, accumulation=2)
    rest = replace(whole, start=whole.position(step))
    assert rest.total_steps == whole.total_steps == 15
    for later in range(step, 16):
        assert rest.position(later) == whole.position(later)
        assert rest.evaluation_is_due(later) == whole.evaluation_is_due(later)
        assert rest.schedule_step(later) == later
        if later < 15:
            assert rest.end_of_epoch(later) == whole.end_of_epoch(later)


def test_other_batches_go_on_from_the_same_image_and_end_in_the_same_epoch() -> None:
    one = replace(plan(images=100, batch=8), start=Position(step=7, epoch=1, images=20))
    assert (one.steps_per_epoch, one.first_steps) == (12, 10)  # 80 images are left of the epoch
    assert positions(one, 7, 8, 16, 17, 18) == [(1, 20), (1, 28), (1, 92), (2, 0), (2, 8)]
    assert one.total_steps == 7 + 10 + 12
    assert evaluations(one) == [17, 29]
    assert [one.end_of_epoch(step) for step in (7, 16, 17)] == [17, 17, 29]


def test_the_schedule_goes_on_where_the_epochs_are() -> None:
    one = replace(plan(images=100, batch=10), start=Position(step=70, epoch=1, images=50))
    assert [one.schedule_step(step) for step in (70, 71, 75, 85)] == [15, 16, 20, 30]
    assert [one.epochs_done(step) for step in (70, 75)] == [1.5, 2.0]


def test_an_epoch_of_which_too_little_is_left_for_a_step_is_over() -> None:
    one = replace(plan(images=100, batch=64), start=Position(step=9, epoch=0, images=50))
    assert one.first_steps == 0 and positions(one, 9, 10) == [(1, 0), (2, 0)]
    assert evaluations(one) == [9, 10, 11]
    few = replace(plan(images=3, batch=8), start=Position(step=1, epoch=0, images=2))
    assert positions(few, 1, 2) == [(1, 0), (2, 0)]


def test_a_finished_run_has_no_step_left() -> None:
    one = replace(plan(batch=2), start=Position(step=33, epoch=3, images=0))
    assert one.total_steps == 33
