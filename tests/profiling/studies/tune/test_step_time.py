"""The fit of a step's time."""

import random

import pytest

from profiling.studies.tune.model import (
    Shape,
    StepTime,
    StepTimeModel,
    fit_step_time,
    fitted_to,
    held_out,
)

MODEL = StepTimeModel(fixed=0.4, per_image=2.5, serial=0.05, contention=0.12, cores=56)
PAIRS = [(1, 56), (2, 28), (8, 7), (1, 28), (1, 7)]
SHAPES = [
    Shape(ranks=ranks, threads=threads, batch_size=images)
    for ranks, threads in PAIRS
    for images in (1, 2, 4)
]


def times(noise: float = 0.0) -> list[StepTime]:
    chance = random.Random(0)
    return [
        StepTime(shape=one, seconds=MODEL.seconds(one) * (1 + chance.uniform(-noise, noise)))
        for one in SHAPES
    ]


def test_fit_finds_the_numbers_that_made_the_times() -> None:
    found = fit_step_time(times(), cores=56)
    for name in ("fixed", "per_image", "serial", "contention"):
        assert getattr(found, name) == pytest.approx(getattr(MODEL, name), rel=1e-4)


def test_prediction_of_what_was_left_out_is_not_made_from_it() -> None:
    exact = fitted_to(times(), cores=56)
    place = next(number for number, one in enumerate(exact.checked) if one.was_left_out)
    changed = times()
    changed[place] = StepTime(shape=changed[place].shape, seconds=2 * changed[place].seconds)
    after = fitted_to(changed, cores=56).checked[place]
    assert after.predicted == pytest.approx(exact.checked[place].predicted, rel=1e-4)
    assert after.error == pytest.approx(-0.5, rel=1e-3)


def test_what_is_left_out_leaves_every_pair_and_every_batch_size() -> None:
    left_out = [one.shape for one in held_out(times())]
    kept = [one for one in SHAPES if one not in left_out]
    assert len(left_out) == len(SHAPES) / 3
    assert {(one.ranks, one.threads) for one in kept} == set(PAIRS)
    assert {one.batch_size for one in kept} == {1, 2, 4}


def test_error_of_noisy_times_is_about_their_noise() -> None:
    assert 0.005 < fitted_to(times(noise=0.05), cores=56).largest_error < 0.1


def test_one_rank_of_one_thread_shows_neither_contention_nor_serial_part() -> None:
    alone = [StepTime(shape=Shape(ranks=1, threads=1, batch_size=n), seconds=1 + n) for n in (1, 3)]
    found = fit_step_time(alone, cores=2)
    assert found.serial < 1e-6 and found.contention < 1e-6
    assert found.seconds(Shape(ranks=1, threads=1, batch_size=2)) == pytest.approx(3, rel=1e-3)


def test_more_ranks_on_a_full_host_take_longer_each() -> None:
    one, full = (Shape(ranks=ranks, threads=7, batch_size=2) for ranks in (1, 8))
    assert MODEL.seconds(full) == pytest.approx(1.12 * MODEL.seconds(one))
