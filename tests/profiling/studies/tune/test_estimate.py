"""Numbers within a range."""

from profiling.studies.tune.model import Estimate

ONE = Estimate(low=1.0, middle=2.0, high=4.0)


def test_a_range_grows_to_both_sides() -> None:
    assert ONE.widened(0.5) == Estimate(low=0.5, middle=2.0, high=6.0)


def test_a_factor_scales_all_three() -> None:
    assert ONE.times(3) == Estimate(low=3.0, middle=6.0, high=12.0)
