"""Four real ranks in two groups: averages within a group, and steps of all groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch.ranks import run_ranks
from tests.retinanet.training.async_groups.grouped_ranks import STEPS

pytestmark = pytest.mark.whole_machine


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """Return the results of each rank."""
    job = run_ranks(4, str(Path(__file__).with_name("grouped_ranks.py")))
    assert (job.code, job.errors) == (0, "")
    lines = map(json.loads, filter(None, job.output.splitlines()))
    return sorted(lines, key=lambda line: line["job rank"])


@pytest.mark.parametrize("way", ["gloo", "gloo, bf16", "shared"])
def test_gradients_are_averages_over_the_ranks_of_a_group_alone(
    ranks: list[dict[str, Any]], way: str
) -> None:
    rounding = 2**-8 if "bf16" in way else 0
    for rank, mean in enumerate([(1 + 10) / 2] * 2 + [(100 + 1000) / 2] * 2):
        expected = [mean * step for step in (1, 2, 3)]
        assert ranks[rank][way] == pytest.approx(expected, rel=rounding)


def test_collectives_reach_only_the_ranks_of_a_group(ranks: list[dict[str, Any]]) -> None:
    assert [results["rank"] for results in ranks] == [0, 1, 0, 1]
    assert [results["first of its group"] for results in ranks] == [0, 0, 2, 2]
    assert [results["gathered"] for results in ranks] == [[0, 1], None, [2, 3], None]


def test_every_step_is_taken_once_and_all_ranks_get_the_weights(
    ranks: list[dict[str, Any]],
) -> None:
    first, second, third, fourth = (results["updates"] for results in ranks)
    assert first["taken"] == second["taken"] and third["taken"] == fourth["taken"]
    assert sorted(first["taken"] + third["taken"]) == list(range(STEPS))
    total = float(sum(4**step for step in range(STEPS)))
    for updates in (first, second, third, fourth):
        assert updates["weights"] == [total] * 3
        assert updates["equal in group"] and not updates["has gradients"]
    # Each step of another group comes between two steps at most once.
    assert sum(first["staleness"]) <= len(third["taken"])
    assert sum(third["staleness"]) <= len(first["taken"])
    staleness = [*first["staleness"], *third["staleness"]]
    assert len(staleness) == STEPS and min(staleness) >= 0
    assert second["staleness"] == [0] * len(first["taken"])  # only a group's first rank counts


def test_remaining_ranks_are_a_group_in_the_order_of_the_job(ranks: list[dict[str, Any]]) -> None:
    remaining = [ranks[rank]["remaining"] for rank in (0, 1, 3)]
    assert [results["rank"] for results in remaining] == [0, 1, 2]
    assert "remaining" not in ranks[2]
    for results in remaining:
        assert results["all"] == [0, 1, 3] and results["first"] == "made by 0"
        assert results["average"] == [pytest.approx(4 / 3)] * 2
    assert [results["rows"] for results in remaining] == [[[0, 0, 1]], [[]], [[]]]
