from collections.abc import Sequence

import pytest

from profiling.studies.async_groups_search import RATES, Setting, for_whole, search, settings_grid


def searched(ranks: int, best: dict[int, float]) -> list[Setting]:
    """What is probed where so much momentum is the best of each number of groups."""

    def choose_best(settings: Sequence[Setting]) -> Setting:
        return Setting(settings[0].groups, best[settings[0].groups])

    return list(search(ranks, choose_best=choose_best))


def test_the_grid_has_the_rule_s_own_momentum_with_each_learning_rate() -> None:
    assert list(dict.fromkeys(one.beta1 for one in settings_grid(2))) == [0.0, 0.4, 0.6, 0.9]
    assert list(dict.fromkeys(one.beta1 for one in settings_grid(16))) == [0.0, 0.6, 0.9]
    assert {one.rate for one in settings_grid(2) if one.beta1 == 0.4} == set(RATES)


def test_plain_training_is_probed_first_with_its_own_momentum_and_each_learning_rate() -> None:
    assert settings_grid(1) == [Setting(1, 0.9, rate) for rate in RATES]
    assert searched(8, {8: 0.4})[: len(RATES)] == settings_grid(1)


def test_as_many_groups_as_ranks_are_enough_where_some_momentum_is_the_best() -> None:
    assert {one.groups for one in searched(8, {8: 0.4})} == {1, 8}


@pytest.mark.parametrize(("ranks", "groups"), [(8, [8, 4, 2]), (6, [6, 3]), (2, [2])])
def test_groups_are_halved_while_no_momentum_is_the_best(ranks: int, groups: list[int]) -> None:
    found = searched(ranks, dict.fromkeys(range(1, ranks + 1), 0.0))
    assert list(dict.fromkeys(one.groups for one in found)) == [1, *groups]


def test_halving_ends_where_some_momentum_is_the_best() -> None:
    found = searched(8, {8: 0.0, 4: 0.6, 2: 0.0})
    assert list(dict.fromkeys(one.groups for one in found)) == [1, 8, 4]


def test_a_whole_training_takes_the_next_larger_learning_rate_up_to_the_configured_one() -> None:
    assert for_whole(Setting(2, 0.4, 0.03)) == Setting(2, 0.4, 0.1)
    assert for_whole(Setting(1, 0.9, 0.3)) == for_whole(Setting(1, 0.9)) == Setting(1, 0.9)
