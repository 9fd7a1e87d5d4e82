from dataclasses import replace

import pytest

from retinanet.config_file import load_config
from retinanet.training.distributed import STEPS, SlowRank, advice_on_slow_rank
from retinanet.training.loop import StepResult

RESULT = StepResult(
    step=1,
    losses={"classification": 1.0},
    learning_rate=0.1,
    images=1,
    seconds=2.0,
    data_seconds=0.0,
    page_faults=0,
    resident_mb=1.0,
    peak_resident_mb=1.0,
    gradient_norm=1.0,
)


def step(*times: float) -> list[StepResult]:
    """Of ranks whose forward passes took so long."""
    return [replace(RESULT, forward_seconds=one) for one in times]


def notes(slow: SlowRank, *steps: list[StepResult]) -> list[str]:
    return [note for one in steps if (note := slow.note(one))]


def test_a_rank_for_which_the_others_wait_is_named_once() -> None:
    slow = SlowRank(["a", "b", "c"])
    told = notes(slow, *[step(1.1, 1.5, 0.9)] * 3 * STEPS)
    assert told == [
        "note: rank 1 on b is slow, and all wait for it: its forward passes took 50% longer than "
        "the others' in the last 20 steps"
    ]
    assert len(notes(slow, *[step(0.9, 0.8, 2.0)] * STEPS)) == 1


def test_ranks_that_are_last_in_turn_are_not_slow() -> None:
    assert notes(SlowRank(["a", "b"]), *[step(0.9, 0.1), step(0.1, 0.9)] * STEPS) == []


def test_a_little_more_time_and_a_few_slow_steps_are_not_told() -> None:
    assert notes(SlowRank(["a", "b"]), *[step(1.2, 1.0)] * 2 * STEPS) == []
    assert notes(SlowRank(["a", "b"]), *[step(1.9, 0.1)] * (STEPS // 2)) == []


def test_one_rank_alone_is_never_slow() -> None:
    assert notes(SlowRank(["a"]), *[step(0.0)] * 2 * STEPS) == []


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (["training.batch_size=2"], True),
        (["training.batch_size=1"], False),
        (["training.batch_size=2", "distributed.batch_split=speed"], False),
        (["training.batch_size=2", "distributed.batch_split=[3, 1]"], False),
    ],
)
def test_a_split_by_speed_is_advised_where_batches_are_even_and_can_be_split(
    words: list[str], advised: bool
) -> None:
    slow = SlowRank(["a", "b"], advice=advice_on_slow_rank(load_config("demo.yaml", words)))
    [told] = notes(slow, *[step(1.0, 1.5)] * STEPS)
    assert ("distributed.batch_split=speed" in told) == advised
