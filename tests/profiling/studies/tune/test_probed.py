"""What short trainings tell of the epochs until a target."""

import math
from dataclasses import replace

import pytest

from common.errors import InputError
from profiling.studies.tune.measurements import (
    Evaluated,
    ProbeRun,
    Probes,
    RateRule,
    epochs_of_probes,
    probe_settings,
)
from tests.profiling.studies.tune.by_hand import probed, probes


def of(*scores: tuple[float, float]) -> ProbeRun:
    evaluations = tuple(Evaluated(epoch=epoch, score=score) for epoch, score in scores)
    return ProbeRun(batch_size=8, seed=0, evaluations=evaluations, is_over=True, seconds=1.0)


def test_target_is_reached_between_two_evaluations() -> None:
    assert of((1, 0.1), (2, 0.2), (3, 0.4)).epochs_until(0.3) == pytest.approx(2.5)
    assert of((1, 0.6)).epochs_until(0.3) == pytest.approx(0.5)


def test_target_that_is_not_reached_takes_for_ever() -> None:
    assert math.isinf(of((1, 0.1), (2, 0.29)).epochs_until(0.3))


def test_epochs_are_the_mean_of_the_seeds_and_their_spread_is_the_range() -> None:
    found = epochs_of_probes(probes(), config="demo.yaml").epochs(8)
    assert (found.low, found.middle, found.high) == pytest.approx((1.0, 1.5, 2.0))


def test_between_two_probed_batches_epochs_lie_on_a_line_and_beyond_it_goes_on() -> None:
    model = epochs_of_probes(probes(), config="demo.yaml")
    middle = [model.epochs(size).middle for size in (4, 8, 12, 16, 32, 64)]
    assert middle == pytest.approx([1.5, 1.5, 2.0, 2.5, 4.5, 8.5])


def test_source_names_seeds_and_the_rule_of_the_learning_rate() -> None:
    source = epochs_of_probes(probes(), config="demo.yaml").source
    assert "6 probe runs of demo.yaml (2 seeds each" in source
    assert "0.0003 at 8, with the square root" in source


def test_run_that_ends_below_the_target_is_told_with_a_target_that_it_reaches() -> None:
    one = probed(batch_size=32, seed=1, epochs_to_030=100.0)
    short = replace(probes(), runs=(*probes().runs[:-1], one))
    with pytest.raises(InputError) as told:
        epochs_of_probes(short, config="demo.yaml")
    for text in ("--probe-target 0.3: 1 of 6", "epoch 10", "mAP 0.030", "give --probe-target 0.03"):
        assert text in str(told.value)
    lower = replace(short, target_map=0.03)
    assert not lower.missing
    assert epochs_of_probes(lower, config="demo.yaml").epochs(32).high == pytest.approx(10.0)


def test_only_a_run_that_ended_early_trains_on_for_a_higher_target() -> None:
    first, *others = probes().runs
    early = replace(first, is_over=False, evaluations=first.evaluations[:1])
    assert early.best == pytest.approx(0.3)
    all_runs = replace(probes(), runs=(early, *others))
    assert replace(all_runs, target_map=0.2).missing == []
    assert replace(all_runs, target_map=0.4).missing == [(8, 0)]


def test_more_seeds_and_more_batches_need_only_what_is_missing() -> None:
    assert replace(probes(), seeds=3).missing == [(8, 2), (16, 2), (32, 2)]
    assert replace(probes(), batch_sizes=(8, 64)).missing == [(64, 0), (64, 1)]


def test_adams_rate_grows_with_the_square_root_of_the_batch_and_sgds_with_the_batch() -> None:
    rule = RateRule(rate=3e-4, batch_size=8, is_linear=False)
    assert rule.scaled(8) == pytest.approx(3e-4)
    assert rule.scaled(32) == pytest.approx(6e-4)
    assert replace(rule, is_linear=True).scaled(32) == pytest.approx(12e-4)


def test_command_has_the_target_and_the_rate_of_the_same_rule() -> None:
    settings = probe_settings(probes(), batch_size=32)
    assert settings == ["training.learning_rate=0.0006", "training.target_map=0.3"]


def test_one_batch_size_alone_makes_no_curve() -> None:
    with pytest.raises(ValueError, match="batch_sizes"):
        Probes(target_map=0.3, batch_sizes=(8,), seeds=1, rule=probes().rule)
