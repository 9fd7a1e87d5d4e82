"""Time and price of a training on an allocation."""

from dataclasses import replace
from itertools import pairwise

import pytest

from profiling.studies.tune.forecast import (
    Allocation,
    Forecast,
    allocations,
    forecast,
    host_counts,
    soonest_by_hosts,
    turning_point,
)
from profiling.studies.tune.model import Network, Shape, epochs_of_mlperf
from retinanet.mlperf.rules import NEWEST, TRAINING_IMAGES
from tests.profiling.studies.tune.by_hand import GRADIENT_BYTES, LAST_BYTES, NETWORK, STEP, host

SHAPE = Shape(ranks=8, threads=7, batch_size=2)
EPOCHS = epochs_of_mlperf(NEWEST)
HOST = host()


def of(allocation: Allocation) -> Forecast:
    return forecast(allocation, host=HOST, epochs=EPOCHS)


def test_hours_are_epochs_times_steps_times_their_seconds_and_evaluations() -> None:
    found = of(Allocation(hosts=16, on_host=SHAPE))
    batch = 16 * 8 * 2
    steps = TRAINING_IMAGES // batch
    evaluation = 24_781 * 1.5 / (16 * 56) + 25.0
    assert found.epochs.middle == pytest.approx(4.0)
    of_epoch = steps * found.step_seconds + evaluation
    assert found.hours.middle == pytest.approx(found.epochs.middle * of_epoch / 3600)
    assert found.core_hours.middle == pytest.approx(found.hours.middle * 16 * 56)
    assert found.images_per_second == pytest.approx(batch / found.step_seconds)


def test_evaluations_every_other_epoch_cost_half() -> None:
    rare = replace(HOST, measured=replace(HOST.measured, every=2))
    one = Allocation(hosts=1, on_host=SHAPE)
    hours = [forecast(one, host=model, epochs=EPOCHS).hours.middle for model in (HOST, rare)]
    evaluation = (24_781 * 1.5 / 56 + 25.0) / 3600
    assert hours[0] - hours[1] == pytest.approx(4.0 * evaluation / 2)


def test_range_is_that_of_the_best_and_worst_run_and_of_the_models_error() -> None:
    found = of(Allocation(hosts=64, on_host=SHAPE))
    assert found.hours.low / found.hours.middle == pytest.approx(
        0.95 * found.epochs.low / found.epochs.middle
    )
    assert found.hours.high / found.hours.middle == pytest.approx(
        1.05 * found.epochs.high / found.epochs.middle
    )


def test_one_host_does_not_use_the_network() -> None:
    slow = replace(HOST, network=Network(latency=1.0, bandwidth=1.0, source=""))
    step = STEP.seconds(SHAPE)
    assert slow.exchange_seconds(Allocation(hosts=1, on_host=SHAPE), step=step) == pytest.approx(
        0.01 * step
    )
    assert slow.exchange_seconds(Allocation(hosts=2, on_host=SHAPE), step=step) > 1e7


def test_backward_pass_hides_the_exchange_but_for_its_last_bucket() -> None:
    two = Allocation(hosts=2, on_host=Shape(ranks=1, threads=56, batch_size=1))
    last = NETWORK.all_reduce_seconds(LAST_BYTES, ranks=2)
    whole = NETWORK.all_reduce_seconds(GRADIENT_BYTES, ranks=2)
    assert HOST.exchange_seconds(two, step=100.0) == pytest.approx(last)
    assert HOST.exchange_seconds(two, step=0.0) == pytest.approx(whole)


def test_a_rank_alone_exchanges_nothing() -> None:
    alone = Allocation(hosts=1, on_host=Shape(ranks=1, threads=56, batch_size=2))
    assert HOST.exchange_seconds(alone, step=3.0) == 0.0


def test_more_ranks_at_a_fixed_local_batch_cost_more_core_hours_and_finally_more_time() -> None:
    """Fu et al. (2023), section on scaling and Figure 7, on MLPerf's own points."""
    line = soonest_by_hosts([of(one) for one in allocations([SHAPE], most_hosts=512)])
    turn = turning_point(line)
    assert turn is not None
    known = [one for one in line if one.allocation.global_batch >= 256]
    prices = [one.core_hours.middle for one in known]
    assert prices[-1] > 2 * prices[0]
    assert turn.allocation.global_batch == pytest.approx(2560, rel=0.25)
    after = [one.hours.middle for one in line if one.allocation.hosts >= turn.allocation.hosts]
    assert after == sorted(after)


def test_time_falls_to_the_end_where_the_batch_stays_small() -> None:
    shape = Shape(ranks=1, threads=56, batch_size=1)
    line = soonest_by_hosts([of(one) for one in allocations([shape], most_hosts=256)])
    assert turning_point(line) is None


def test_numbers_of_hosts_grow_by_a_quarter_at_most() -> None:
    counts = host_counts(1000)
    assert counts[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16] and counts[-1] == 1000
    assert all(after <= max(before + 1, 1.25 * before) for before, after in pairwise(counts))
    assert host_counts(1) == [1]
