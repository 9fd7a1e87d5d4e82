"""Epochs by global batch size."""

import pytest

from profiling.studies.tune.model import EpochsModel, Runs, epochs_of_mlperf
from retinanet.mlperf.rules import NEWEST, expectation, reference_points

MODEL = EpochsModel(
    runs=(
        Runs(batch_size=100, epochs=(2.0, 4.0, 4.0, 9.0)),
        Runs(batch_size=300, epochs=(6.0, 8.0, 10.0)),
    ),
    target="mAP 0.5",
    source="by hand",
)


def test_measured_sizes_have_the_mean_without_best_and_worst() -> None:
    found = MODEL.epochs(100)
    assert (found.low, found.middle, found.high) == (2.0, 4.0, 9.0)


def test_between_two_sizes_epochs_lie_on_a_line() -> None:
    found = MODEL.epochs(200)
    assert (found.low, found.middle, found.high) == (4.0, 6.0, 9.5)


def test_below_the_smallest_size_nothing_is_hoped_for() -> None:
    assert MODEL.epochs(10) == MODEL.epochs(100)


def test_beyond_the_largest_size_the_line_goes_on() -> None:
    assert MODEL.epochs(500).middle == pytest.approx(12.0)


def test_two_runs_are_both_counted() -> None:
    assert Runs(batch_size=8, epochs=(1.0, 3.0)).mean_epochs == 2.0


@pytest.mark.parametrize("batch_size", [100, 256, 448, 1536, 4096])
def test_mlperfs_epochs_are_those_of_the_official_checkers_points(batch_size: int) -> None:
    known = expectation(reference_points(NEWEST), batch_size)
    assert epochs_of_mlperf(NEWEST).epochs(batch_size).middle == pytest.approx(known.mean_epochs)
