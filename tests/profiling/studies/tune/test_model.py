"""The planner's models: step time, network and epochs."""

import random

import pytest

from profiling.studies.rounds import Shape
from profiling.studies.tune.gather import parse_network
from profiling.studies.tune.model import (
    EpochsModel,
    Network,
    Runs,
    StepTime,
    StepTimeModel,
    epochs_of_mlperf,
    fit_step_time,
    fitted_to,
    held_out,
)
from retinanet.mlperf.rules import NEWEST, expectation, reference_points

STEP = StepTimeModel(fixed=0.4, per_image=2.5, serial=0.05, contention=0.12, cores=56)
PAIRS = [(1, 56), (2, 28), (8, 7), (1, 28), (1, 7)]
SHAPES = [
    Shape(ranks=ranks, threads=threads, batch_size=images)
    for ranks, threads in PAIRS
    for images in (1, 2, 4)
]
NETWORK = Network(latency=30e-6, bandwidth=1.2e9, source="here")
EPOCHS = EpochsModel(
    runs=(
        Runs(batch_size=100, epochs=(2.0, 4.0, 4.0, 9.0)),
        Runs(batch_size=300, epochs=(6.0, 8.0, 10.0)),
    ),
    target="mAP 0.5",
    source="sample",
)


def step_times(noise: float = 0.0) -> list[StepTime]:
    noises = random.Random(0)
    times = [STEP.seconds(shape) * (1 + noises.uniform(-noise, noise)) for shape in SHAPES]
    return [StepTime(shape=shape, seconds=time) for shape, time in zip(SHAPES, times, strict=True)]


def test_fit_finds_the_parameters_of_the_step() -> None:
    fit = fit_step_time(step_times(), cores=56)
    for name in ("fixed", "per_image", "serial", "contention"):
        assert getattr(fit, name) == pytest.approx(getattr(STEP, name), rel=1e-4)
    assert 0.005 < fitted_to(step_times(noise=0.05), cores=56).largest_error < 0.1


def test_held_out_measurement_does_not_affect_its_prediction() -> None:
    exact = fitted_to(step_times(), cores=56)
    place = next(number for number, check in enumerate(exact.checked) if check.was_left_out)
    changed = step_times()
    changed[place] = StepTime(shape=changed[place].shape, seconds=2 * changed[place].seconds)
    after = fitted_to(changed, cores=56).checked[place]
    assert after.predicted == pytest.approx(exact.checked[place].predicted, rel=1e-4)
    assert after.error == pytest.approx(-0.5, rel=1e-3)


def test_fit_keeps_every_pair_and_every_batch_size() -> None:
    left_out = [time.shape for time in held_out(step_times())]
    fitted = [shape for shape in SHAPES if shape not in left_out]
    assert len(left_out) == len(SHAPES) / 3
    assert {(shape.ranks, shape.threads) for shape in fitted} == set(PAIRS)
    assert {shape.batch_size for shape in fitted} == {1, 2, 4}


def test_one_thread_shows_neither_contention_nor_serial_part() -> None:
    alone = [StepTime(shape=Shape(ranks=1, threads=1, batch_size=n), seconds=1 + n) for n in (1, 3)]
    fit = fit_step_time(alone, cores=2)
    assert fit.serial < 1e-6 and fit.contention < 1e-6
    assert fit.seconds(Shape(ranks=1, threads=1, batch_size=2)) == pytest.approx(3, rel=1e-3)
    single, full = (Shape(ranks=ranks, threads=7, batch_size=2) for ranks in (1, 8))
    assert STEP.seconds(full) == pytest.approx(1.12 * STEP.seconds(single))


@pytest.mark.parametrize(
    ("latency", "bandwidth", "size", "ranks", "seconds"),
    [(0.0, 1e9, 10**9, 2, 1.0), (0.0, 1e9, 10**9, 1000, 1.998), (1e-3, 1e30, 4, 5, 8e-3)],
)
def test_all_reduce_is_a_ring(
    latency: float, bandwidth: float, size: int, ranks: int, seconds: float
) -> None:
    network = Network(latency=latency, bandwidth=bandwidth, source="")
    assert network.all_reduce_seconds(size, ranks=ranks) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("25Gbit/s,20us", 3.125e9, 20e-6),
        ("1.2GB/s, 0.05ms", 1.2e9, 50e-6),
        ("100Mbps,1ms", 12.5e6, 1e-3),
    ],
)
def test_network_is_parsed(text: str, bandwidth: float, latency: float) -> None:
    network = parse_network(text)
    assert (network.bandwidth, network.latency) == pytest.approx((bandwidth, latency))


@pytest.mark.parametrize(
    ("batch_size", "low", "middle", "high"),
    [
        (100, 2.0, 4.0, 9.0),  # the mean without the best and the worst run
        (200, 4.0, 6.0, 9.5),  # on a line between two sizes
        (10, 2.0, 4.0, 9.0),  # as the smallest size
        (500, 10.0, 12.0, 11.0),  # the last line continued
    ],
)
def test_epochs_are_interpolated(batch_size: int, low: float, middle: float, high: float) -> None:
    estimate = EPOCHS.epochs(batch_size)
    assert (estimate.low, estimate.middle, estimate.high) == pytest.approx((low, middle, high))
    assert Runs(batch_size=8, epochs=(1.0, 3.0)).mean_epochs == 2.0  # of two runs both count


@pytest.mark.parametrize("batch_size", [100, 256, 448, 1536, 4096])
def test_epochs_of_mlperf_are_those_of_the_official_checker(batch_size: int) -> None:
    expected = expectation(reference_points(NEWEST), batch_size)
    epochs = epochs_of_mlperf(NEWEST).epochs(batch_size).middle
    assert epochs == pytest.approx(expected.mean_epochs)
