import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinanet.training.distributed import merge_results
from retinanet.training.loop import StepResult
from tests.launch.ranks import run_ranks

PROGRAM = Path(__file__).with_name("agreeing_ranks.py")


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What each of two ranks said."""
    job = run_ranks(2, str(PROGRAM))
    assert job.code == 0, job.errors
    lines = [json.loads(line) for line in job.output.splitlines() if line]
    return sorted(lines, key=lambda line: line["rank"])


def test_all_start_with_the_weights_and_the_optimizer_of_the_first(
    ranks: list[dict[str, Any]],
) -> None:
    for one in ranks:
        assert one["weights"] == [1.0]
        assert one["optimizer steps"] == [1.0] * 4


def test_a_last_bit_that_differs_is_noticed_and_mended(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert (one["equal"], one["a bit apart"], one["together again"]) == (True, False, True)


def test_running_statistics_become_the_mean_of_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        assert one["mean"] == [1.5] * 4


def test_what_is_made_in_turn_is_there_for_all_before_the_first_goes_on(
    ranks: list[dict[str, Any]],
) -> None:
    for one in ranks:
        assert one["first before second"] and one["returned after both"]


def test_an_image_that_one_cannot_read_is_an_error_of_all_at_the_same_batch(
    ranks: list[dict[str, Any]],
) -> None:
    for one in ranks:
        assert one["batches"] == [1]
        assert one["error"] == "second.jpg: damaged"


STEP = StepResult(
    step=7,
    losses={"classification": 1.0, "bbox_regression": 0.5},
    gradient_norm=2.0,
    learning_rate=0.1,
    images=2,
    seconds=3.0,
    data_seconds=0.5,
    page_faults=10,
    resident_mb=100.0,
    peak_resident_mb=200.0,
    exchange_seconds=0.25,
    bad_images=("a.jpg: damaged",),
)


def test_a_step_of_all_ranks_is_their_mean_loss_and_the_slowest_time() -> None:
    other = replace(
        STEP,
        losses={"classification": 2.0, "bbox_regression": 0.0},
        images=2,
        seconds=2.5,
        data_seconds=0.75,
        page_faults=5,
        resident_mb=150.0,
        peak_resident_mb=150.0,
        exchange_seconds=0.5,
        bad_images=("b.jpg: damaged",),
    )
    assert merge_results([STEP, other]) == StepResult(
        step=7,
        losses={"classification": 1.5, "bbox_regression": 0.25},
        gradient_norm=2.0,
        learning_rate=0.1,
        images=4,
        seconds=3.0,
        data_seconds=0.75,
        page_faults=10,
        resident_mb=150.0,
        peak_resident_mb=200.0,
        exchange_seconds=0.25,
        bad_images=("a.jpg: damaged", "b.jpg: damaged"),
    )


def test_a_rank_with_more_images_counts_for_as_many_in_the_losses() -> None:
    other = replace(STEP, losses={"classification": 5.0, "bbox_regression": 0.0}, images=1)
    of_three = replace(STEP, images=3)
    found = merge_results([of_three, other])
    assert found.losses == {"classification": 2.0, "bbox_regression": 0.375}
    assert found.images == 4


def test_a_step_of_one_rank_is_its_own() -> None:
    assert merge_results([STEP]) == STEP
