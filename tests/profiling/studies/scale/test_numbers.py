import pytest

from profiling.studies.scale_study import (
    Combination,
    Measured,
    efficiency,
    smallest,
    times_the_throughput,
)
from tests.profiling.studies.scale.measured_by_hand import measured, rank_steps

TWO_RANKS = Measured(
    combination=Combination(ranks=2, threads=1, batch_size=3),
    jobs=[
        [
            rank_steps(0, [2.0, 3.0], data=[0.1, 0.0], exchange=[0.5, 0.03], held_back=[1.9, 2.5]),
            rank_steps(1, [1.8, 2.9], data=[0.2, 0.3], exchange=[0.1, 0.60], held_back=[1.0, 2.7]),
        ],
        [
            rank_steps(0, [1.0], data=[0.0], exchange=[0.04], held_back=[0.9]),
            rank_steps(1, [1.0], data=[0.0], exchange=[0.02], held_back=[1.1]),
        ],
    ],
)


def test_a_step_takes_as_long_as_on_its_slowest_rank() -> None:
    assert TWO_RANKS.step_seconds == 2.0  # of 2.0, 3.0, 1.0
    assert TWO_RANKS.images_per_second == 6 / 2.0


def test_waiting_for_data_is_that_of_the_rank_that_waited_longest() -> None:
    assert TWO_RANKS.data_share == pytest.approx(0.1)  # of 0.2/2, 0.3/3, 0


def test_waiting_for_gradients_is_that_of_the_rank_that_was_ready_last() -> None:
    assert TWO_RANKS.exposed_share == pytest.approx(0.02)  # of 0.1/2, 0.03/3, 0.02/1


def test_the_exchange_adds_what_the_next_step_without_it_lacks() -> None:
    assert TWO_RANKS.added_share == pytest.approx(0.05)  # of 1-1.9/2, 1-2.7/3, 1-1.1/1


def test_one_rank_exchanges_nothing() -> None:
    alone = measured(1, 1, 2.0)
    assert alone.exposed_share is None
    assert alone.added_share is None


def test_weak_scaling_efficiency_is_against_the_fewest_ranks_of_as_many_threads() -> None:
    one, two, four = measured(1, 1, 2.0), measured(2, 1, 2.5), measured(4, 1, 4.0)
    other_threads = measured(1, 2, 1.0)
    everything = [one, other_threads, two, four]
    assert efficiency(two, everything) == pytest.approx(0.8)
    assert efficiency(four, everything) == pytest.approx(0.5)
    assert efficiency(four, [two, four]) == pytest.approx(2.5 / 4)
    assert efficiency(one, everything) is None
    assert efficiency(other_threads, everything) is None


def test_the_smallest_has_the_fewest_ranks_before_the_fewest_threads() -> None:
    one, two = measured(1, 2, 1.0), measured(2, 1, 1.0)
    assert smallest([two, one]) is one


def test_throughputs_are_compared_by_all_steps_and_by_rounds() -> None:
    # As many images: 2 ranks of 1 against 1 rank of 2.
    two = measured(2, 1, 1.0, 2.0, batch_size=1)
    one = measured(1, 2, 1.2, 1.8, batch_size=2)
    ratio = times_the_throughput(two, one)
    assert ratio.median == pytest.approx(1.5 / 1.5)
    assert (ratio.lowest, ratio.highest) == pytest.approx((1.8 / 2.0, 1.2 / 1.0))
