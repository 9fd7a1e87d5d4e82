from retinanet.training.plan import StepPlan


def plan(
    *,
    batches: int = 10,
    accumulation: int = 1,
    epochs: int = 3,
    max_steps: int | None = None,
    every: int = 1,
) -> StepPlan:
    return StepPlan(
        batches_per_epoch=batches,
        gradient_accumulation=accumulation,
        epochs=epochs,
        max_steps=max_steps,
        evaluate_every=every,
    )


def evaluations(one: StepPlan) -> list[int]:
    return [step for step in range(one.total_steps + 1) if one.evaluation_is_due(step)]


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
    one = plan(batches=10, accumulation=3)
    assert (one.steps_per_epoch, one.total_steps) == (3, 9)
    assert evaluations(one) == [3, 6, 9]


def test_the_position_is_the_next_epoch_and_batch() -> None:
    assert [plan().position(step) for step in (0, 9, 10, 25)] == [(0, 0), (0, 9), (1, 0), (2, 5)]


def test_the_position_counts_batches_where_steps_accumulate() -> None:
    one = plan(batches=10, accumulation=3)
    assert [one.position(step) for step in range(4)] == [(0, 0), (0, 3), (0, 6), (1, 0)]
