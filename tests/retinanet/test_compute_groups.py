from typing import Any

import pytest

from common.errors import InputError
from retinanet.config import config_to_tree
from retinanet.config_file import config_from_tree, load_config
from retinanet.config_types import group_of_rank, planned_groups, ranks_of_groups, require_groups


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (2, 1), (2, 2), (8, 2), (6, 3), (12, 12)])
def test_every_rank_is_in_the_one_group_of_its_neighbours(ranks: int, groups: int) -> None:
    parts = ranks_of_groups(ranks, groups)
    assert [rank for part in parts for rank in part] == list(range(ranks))
    assert {len(part) for part in parts} == {ranks // groups} and len(parts) == groups
    for number, part in enumerate(parts):
        assert {group_of_rank(rank, ranks=ranks, groups=groups) for rank in part} == {number}


@pytest.mark.parametrize(
    ("groups", "ranks", "told"),
    [
        (2, 3, "2 groups cannot be of equal size: there are 3 ranks; use 1 or 3"),
        (4, 6, "4 groups cannot be of equal size: there are 6 ranks; use 1, 2, 3 or 6"),
        (2, 1, "2 groups cannot be of equal size: there is 1 rank; use 1"),
        (8, 4, "8 groups cannot be of equal size: there are 4 ranks; use 1, 2 or 4"),
    ],
)
def test_groups_of_unequal_size_are_refused_with_all_that_fit(
    groups: int, ranks: int, told: str
) -> None:
    for refuse in (require_groups, planned_groups):
        with pytest.raises(InputError) as caught:
            refuse(groups, ranks=ranks)
        assert str(caught.value) == f"distributed.groups: {told}"


@pytest.mark.parametrize(
    ("groups", "ranks", "words"),
    [
        (1, 1, ""),
        (1, 8, ""),
        (2, 2, "2 of 1 rank, asynchronous"),
        (2, 8, "2 of 4 ranks, asynchronous"),
    ],
)
def test_a_plan_tells_groups_only_where_there_are_several(
    groups: int, ranks: int, words: str
) -> None:
    assert planned_groups(groups, ranks=ranks) == words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["distributed.batch_split=speed"], "distributed.batch_split: is even where "),
        (["distributed.batch_split=[3, 1]"], "distributed.batch_split: is even where "),
        (["engine.name=ipex"], "distributed: groups above 1 need engine.name=torch: ipex "),
    ],
)
def test_what_does_not_go_with_groups_is_refused_in_a_line(words: list[str], told: str) -> None:
    groups = "distributed.groups=2"
    for order in ([*words, groups], [groups, *words]):
        with pytest.raises(InputError) as caught:
            load_config("demo.yaml", order)
        message = str(caught.value)
        assert message.startswith(f"command line: {told}") and "\n" not in message
        assert "groups" in message
    load_config("demo.yaml", words)  # it is the groups that it does not go with
    load_config("demo.yaml", [groups])


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "two", "null"])
def test_a_number_of_groups_is_whole_and_positive(value: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config("demo.yaml", [f"distributed.groups={value}"])
    assert str(caught.value).startswith("command line: distributed.groups: ")


@pytest.mark.parametrize("beta1", ["auto", 0.5])
def test_groups_are_the_same_after_they_were_kept_with_the_configuration(beta1: Any) -> None:
    config = load_config("demo.yaml", ["distributed.groups=4", f"training.beta1={beta1}"])
    assert config_from_tree(config_to_tree(config), source="kept") == config
    assert (config.distributed.groups, config.training.beta1) == (4, beta1)
