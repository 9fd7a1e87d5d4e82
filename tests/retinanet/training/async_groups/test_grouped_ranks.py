"""Four real ranks in two groups: who averages with whom, and the steps that all take."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch.ranks import run_ranks
from tests.retinanet.training.async_groups.grouped_ranks import STEPS

pytestmark = pytest.mark.whole_machine


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """What each rank has to say, in their order."""
    job = run_ranks(4, str(Path(__file__).with_name("grouped_ranks.py")))
    assert (job.code, job.errors) == (0, "")
    lines = map(json.loads, filter(None, job.output.splitlines()))
    return sorted(lines, key=lambda line: line["job rank"])


@pytest.mark.parametrize("way", ["gloo", "gloo, bf16", "shared"])
def test_gradients_are_averages_over_the_ranks_of_a_group_alone(
    said: list[dict[str, Any]], way: str
) -> None:
    rounding = 2**-8 if "bf16" in way else 0
    for rank, mean in enumerate([(1 + 10) / 2] * 2 + [(100 + 1000) / 2] * 2):
        expected = [mean * step for step in (1, 2, 3)]
        assert said[rank][way] == pytest.approx(expected, rel=rounding)


def test_ranks_of_a_group_hear_each_other_and_nobody_else(said: list[dict[str, Any]]) -> None:
    assert [one["rank"] for one in said] == [0, 1, 0, 1]
    assert [one["first of its group"] for one in said] == [0, 0, 2, 2]
    assert [one["gathered"] for one in said] == [[0, 1], None, [2, 3], None]


def test_every_step_is_taken_once_and_all_have_the_weights_of_all(
    said: list[dict[str, Any]],
) -> None:
    updates = [one["updates"] for one in said]
    assert updates[0]["taken"] == updates[1]["taken"] and updates[2]["taken"] == updates[3]["taken"]
    assert sorted(updates[0]["taken"] + updates[2]["taken"]) == list(range(STEPS))
    total = float(sum(4**step for step in range(STEPS)))
    for one in updates:
        assert one["weights"] == [total] * 3
        assert one["same in group"] and not one["gradients left"]


def test_the_first_rank_of_a_group_counts_the_others_steps(said: list[dict[str, Any]]) -> None:
    first, second = (said[rank]["updates"] for rank in (0, 2))
    assert sum(first["staleness"]) <= len(second["taken"])  # each comes between two at most once
    assert sum(second["staleness"]) <= len(first["taken"])
    together = [*first["staleness"], *second["staleness"]]
    assert len(together) == STEPS and min(together) >= 0
    assert said[1]["updates"]["staleness"] == [0] * len(first["taken"])


def test_ranks_that_are_left_are_a_group_in_the_order_of_the_job(
    said: list[dict[str, Any]],
) -> None:
    left = [said[rank]["left"] for rank in (0, 1, 3)]
    assert [one["rank"] for one in left] == [0, 1, 2] and "left" not in said[2]
    for one in left:
        assert one["all"] == [0, 1, 3] and one["first"] == "made by 0"
        assert one["average"] == [pytest.approx(4 / 3)] * 2
    assert [one["rows"] for one in left] == [[[0, 0, 1]], [[]], [[]]]
