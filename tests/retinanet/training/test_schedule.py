from dataclasses import replace
from typing import Any

import pytest
import torch

from common.errors import InputError
from retinanet.config_sections import TrainingConfig
from retinanet.training.progress import START
from retinanet.training.schedule import (
    StepPlan,
    learning_rate,
    learning_rate_factor,
)


def make_plan(
    *,
    images: int = 10,
    batch: int = 1,
    accumulation: int = 1,
    epochs: int = 3,
    max_steps: int | None = None,
    every: int = 1,
    start: tuple[int, int, int] = (0, 0, 0),
) -> StepPlan:
    return StepPlan(
        images_per_epoch=images,
        images_per_batch=batch,
        gradient_accumulation=accumulation,
        epochs=epochs,
        max_steps=max_steps,
        evaluate_every=every,
        start=replace(START, step=start[0], epoch=start[1], images=start[2]),
    )


def evaluations(plan: StepPlan) -> list[int]:
    steps = range(plan.start.step, plan.total_steps + 1)
    return [step for step in steps if plan.evaluation_is_due(step)]


def positions(plan: StepPlan, *steps: int) -> list[tuple[int, int]]:
    return [plan.position(step) for step in steps]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (make_plan(), [10, 20, 30]),
        (make_plan(every=2), [20, 30]),
        (make_plan(max_steps=14), [10, 14]),
        (make_plan(max_steps=3), [3]),
        (make_plan(max_steps=1000), [10, 20, 30]),
        (make_plan(images=21, batch=2, accumulation=3), [3, 6, 9]),
        (make_plan(images=3, batch=8), [1, 2, 3]),
    ],
)
def test_evaluations_follow_epochs_and_the_last_step(plan: StepPlan, expected: list[int]) -> None:
    assert evaluations(plan) == expected and plan.total_steps == expected[-1]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (make_plan(), {0: (0, 0), 9: (0, 9), 10: (1, 0), 25: (2, 5)}),
        (make_plan(images=11, batch=2), {4: (0, 8), 5: (1, 0), 6: (1, 2)}),
        (
            make_plan(images=21, batch=2, accumulation=3),
            {0: (0, 0), 1: (0, 6), 2: (0, 12), 3: (1, 0)},
        ),
        (make_plan(images=3, batch=8), {0: (0, 0), 1: (1, 0), 2: (2, 0)}),
    ],
)
def test_position_is_the_next_epoch_and_image(
    plan: StepPlan, expected: dict[int, tuple[int, int]]
) -> None:
    assert positions(plan, *expected) == list(expected.values())


def test_epoch_without_a_whole_step_is_refused() -> None:
    with pytest.raises(InputError, match=r"training\.gradient_accumulation: 6 .* only 5"):
        make_plan(accumulation=6, batch=2)


def test_epoch_ends_at_its_last_step() -> None:
    assert [make_plan().end_of_epoch(step) for step in (0, 9, 10, 19, 20)] == [10, 10, 20, 20, 30]
    assert make_plan(max_steps=14).end_of_epoch(12) == 14


@pytest.mark.parametrize("step", range(16))
def test_resumed_plan_equals_the_uninterrupted_plan(step: int) -> None:
    whole = make_plan(images=23, batch=2, accumulation=2)
    resumed = replace(whole, start=START.after(step, whole.position(step)))
    assert resumed.total_steps == whole.total_steps == 15
    for later in range(step, 16):
        assert resumed.position(later) == whole.position(later)
        assert resumed.evaluation_is_due(later) == whole.evaluation_is_due(later)
        assert resumed.schedule_step(later) == later
        if later < 15:
            assert resumed.end_of_epoch(later) == whole.end_of_epoch(later)


def test_other_batches_continue_at_the_same_image_and_end_in_the_same_epoch() -> None:
    plan = make_plan(images=100, batch=8, start=(7, 1, 20))
    assert (plan.steps_per_epoch, plan.first_steps) == (12, 10)  # 80 images remain in the epoch
    assert positions(plan, 7, 8, 16, 17, 18) == [(1, 20), (1, 28), (1, 92), (2, 0), (2, 8)]
    assert plan.total_steps == 7 + 10 + 12
    assert evaluations(plan) == [17, 29]
    assert [plan.end_of_epoch(step) for step in (7, 16, 17)] == [17, 17, 29]


def test_schedule_continues_by_epochs() -> None:
    plan = make_plan(images=100, batch=10, start=(70, 1, 50))
    assert [plan.schedule_step(step) for step in (70, 71, 75, 85)] == [15, 16, 20, 30]
    assert [plan.epochs_done(step) for step in (70, 75)] == [1.5, 2.0]


def test_epoch_with_too_few_remaining_images_is_over() -> None:
    plan = make_plan(images=100, batch=64, start=(9, 0, 50))
    assert plan.first_steps == 0 and positions(plan, 9, 10) == [(1, 0), (2, 0)]
    assert evaluations(plan) == [9, 10, 11]
    assert positions(make_plan(images=3, batch=8, start=(1, 0, 2)), 1, 2) == [(1, 0), (2, 0)]
    assert make_plan(batch=2, start=(33, 3, 0)).total_steps == 33  # a finished run


def factors(
    *, schedule: str = "constant", warmup_steps: int = 4, total: int = 20, **milestones: Any
) -> list[float]:
    return [
        learning_rate_factor(
            step,
            warmup_steps=warmup_steps,
            warmup_factor=0.2,
            total_steps=20,
            schedule=schedule,
            **milestones,
        )
        for step in range(total)
    ]


def test_cosine_falls_from_the_end_of_the_warmup_to_zero() -> None:
    values = factors(schedule="cosine", total=31)
    assert values[:4] == factors()[:4]
    assert values[4] == factors(warmup_steps=0, schedule="cosine")[0] == 1.0
    assert values[12] == pytest.approx(0.5)  # half-way between 4 and 20
    assert values[8] == pytest.approx(0.5 + 0.5 * 0.5**0.5)
    assert 0 < values[19] < 0.01
    assert values[4:] == sorted(values[4:], reverse=True)
    assert values[30] == pytest.approx(0)  # past the end


def test_rate_falls_at_milestones() -> None:
    values = factors(schedule="step", total=12, milestones=(2, 6, 9), milestone_factor=0.5)
    assert values == pytest.approx(
        [0.2, 0.4, 0.6 / 2, 0.8 / 2, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125]
    )


def test_milestones_are_epochs_whatever_the_batch_size() -> None:
    settings = TrainingConfig(
        epochs=4, schedule="step", milestones=(0.5, 2), learning_rate=1.0, warmup_epochs=0
    )
    whole = make_plan(images=100, batch=10, epochs=4)
    rates = [learning_rate(settings, whole, step) for step in range(40)]
    assert rates == pytest.approx([1.0] * 5 + [0.1] * 15 + [0.01] * 20)
    # Resumed after 1.5 epochs with batches of half the size.
    resumed = make_plan(images=100, batch=5, epochs=4, start=(15, 1, 50))
    rates = [learning_rate(settings, resumed, step) for step in range(15, 15 + 10 + 40)]
    assert rates == pytest.approx([0.1] * 10 + [0.01] * 40)


def test_evaluations_since_the_best_are_counted() -> None:
    progress, counts = START, []
    for value in (0.0, 0.0, 0.2, 0.1, 0.2, 0.3):
        progress = progress.evaluated(value)
        counts.append((progress.best_map, progress.evaluations_since_best))
    assert counts == [(0.0, 0), (0.0, 1), (0.2, 0), (0.2, 1), (0.2, 2), (0.3, 0)]


def test_warmup_may_be_longer_than_the_run() -> None:
    values = factors(warmup_steps=40, schedule="cosine")
    assert values == pytest.approx([0.2 + 0.8 * step / 40 for step in range(20)])


@pytest.mark.parametrize("warmup_steps", [1, 7])
def test_warmup_equals_torchs_linear_lr(warmup_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=0.2, total_iters=warmup_steps
    )
    expected = []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors(warmup_steps=warmup_steps, total=12) == pytest.approx(expected)
