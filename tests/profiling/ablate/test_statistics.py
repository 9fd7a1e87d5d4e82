from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy.stats import binom  # type: ignore[import-untyped]

from profiling.ablate.analysis import (
    Interval,
    Ratio,
    are_alike,
    confidence,
    interval_of_median,
    paired_ratio,
    still_holds,
)


def ratio(median: float, low: float, high: float) -> Ratio:
    return Ratio(median, Interval(low, high, 0.94), rounds=5)


@pytest.mark.parametrize("count", range(1, 30))
def test_confidence_is_that_of_the_sign_test(count: int) -> None:
    for place in range(1, (count + 1) // 2 + 1):
        expected = 1 - 2 * binom.cdf(place - 1, count, 0.5)
        assert confidence(count, place) == pytest.approx(max(0.0, expected))


def test_five_rounds_give_the_lowest_and_the_highest_and_nine_leave_two_out() -> None:
    five = interval_of_median([3.0, 1.0, 5.0, 2.0, 4.0])
    assert five == Interval(1.0, 5.0, 1 - 2 / 2**5)
    nine = interval_of_median(list(range(1, 10)))
    left_out = 1 + comb(9, 1)
    assert nine == Interval(2, 8, 1 - 2 * left_out / 2**9)


def test_one_round_has_no_confidence() -> None:
    assert interval_of_median([1.3]) == Interval(1.3, 1.3, 0.0)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    samples = random.lognormal(sigma=0.5, size=(4000, 7))  # of median 1
    intervals = [interval_of_median(list(sample)) for sample in samples]
    held = np.mean([one.low <= 1 <= one.high for one in intervals])
    assert held == pytest.approx(intervals[0].confidence, abs=0.02)


def test_more_rounds_never_make_the_range_wider() -> None:
    values = list(np.random.default_rng(1).lognormal(size=40))
    widths = []
    for count in (5, 10, 20, 40):
        found = interval_of_median(values[:count])
        assert found.confidence >= 0.9
        widths.append(found.high - found.low)
    assert all(later <= earlier for earlier, later in pairwise(widths))


def test_a_ratio_is_taken_round_by_round() -> None:
    # The second round was disturbed, for both alike.
    found = paired_ratio([2.0, 6.0, 2.2], [1.0, 3.0, 1.0])
    assert found.median == 2.0
    assert (found.interval.low, found.interval.high) == (2.0, 2.2)


@pytest.mark.parametrize(
    ("one", "is_clear"),
    [
        (ratio(1.3, 1.2, 1.4), True),
        (ratio(0.7, 0.6, 0.8), True),
        (ratio(1.3, 0.9, 1.6), False),  # chance could have made it
        (ratio(1.02, 1.01, 1.03), False),  # sure, and next to nothing
    ],
)
def test_a_difference_is_clear_where_it_is_neither_chance_nor_small(
    one: Ratio, is_clear: bool
) -> None:
    assert one.is_clear is is_clear


@pytest.mark.parametrize(
    ("first", "second", "holds"),
    [
        (ratio(1.3, 1.2, 1.4), ratio(1.4, 1.3, 1.5), True),
        (ratio(1.3, 1.2, 1.4), ratio(1.9, 1.8, 2.0), False),  # another size
        (ratio(1.1, 1.06, 1.2), ratio(0.95, 0.9, 1.0), False),  # another sign
        (ratio(1.1, 1.06, 1.2), ratio(1.06, 0.9, 1.2), True),  # the same one, less sure
        (ratio(1.01, 0.99, 1.02), ratio(0.99, 0.97, 1.01), True),  # nothing twice
        (ratio(1.1, 0.8, 1.3), ratio(0.9, 0.7, 1.2), True),
        (ratio(0.98, 0.96, 1.02), ratio(1.2, 1.1, 1.3), False),  # nothing, then something
        (ratio(1.1, 0.7, 1.3), ratio(0.7, 0.6, 1.2), False),  # neither is sure, and far apart
    ],
)
def test_a_conclusion_holds_with_equal_sign_and_rough_size(
    first: Ratio, second: Ratio, holds: bool
) -> None:
    assert still_holds(first, second) is holds


def test_alike_is_a_factor_either_way() -> None:
    assert are_alike(1.0, 1.14) and are_alike(1.14, 1.0)
    assert not are_alike(1.0, 1.16) and not are_alike(1.16, 1.0)
