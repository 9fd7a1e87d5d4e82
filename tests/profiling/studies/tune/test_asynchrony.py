"""Compute groups in forecasts."""

from dataclasses import replace

import pytest

from common.errors import InputError
from profiling.studies.tune.command import training_arguments
from profiling.studies.tune.forecast import (
    Allocation,
    Constraints,
    Forecast,
    allocations,
    choose_allocation,
    forecast,
)
from profiling.studies.tune.model import Shape, WithGroups, epochs_of_mlperf
from retinanet.mlperf.rules import NEWEST, TRAINING_IMAGES
from tests.profiling.studies.tune.by_hand import (
    GRADIENT_BYTES,
    NETWORK,
    STEP,
    UPDATE_SECONDS,
    host,
    measurements,
)

SHAPE = Shape(ranks=1, threads=56, batch_size=2)
EPOCHS = epochs_of_mlperf(NEWEST)
HOST = host()


def of(hosts: int, groups: int, *, times: float = 1.0) -> Forecast:
    return forecast(
        Allocation(hosts=hosts, on_host=SHAPE, groups=groups),
        host=HOST,
        epochs=EPOCHS,
        with_groups=WithGroups(most=groups, epochs=times),
    )


def test_a_group_s_batch_decides_about_the_epochs_and_all_groups_about_the_images() -> None:
    plain, groups = of(512, 1), of(512, 4)
    assert (plain.allocation.global_batch, groups.allocation.global_batch) == (1024, 256)
    assert groups.epochs == EPOCHS.epochs(256)
    assert groups.images_per_second == pytest.approx(1024 / groups.step_seconds)
    steps = TRAINING_IMAGES // 1024
    evaluation = 24_781 * 1.5 / (512 * 56) + 25.0
    of_epoch = steps * groups.step_seconds + evaluation
    assert groups.hours.middle == pytest.approx(groups.epochs.middle * of_epoch / 3600)


def test_groups_need_as_many_more_epochs_as_was_told() -> None:
    assert of(512, 4, times=1.5).epochs.middle == pytest.approx(1.5 * of(512, 4).epochs.middle)
    assert of(512, 1, times=1.5).epochs == of(512, 1).epochs


def test_a_step_of_a_group_ends_with_gradients_there_a_step_and_weights_back() -> None:
    step = STEP.seconds(SHAPE)
    one_host_each = of(4, 4)
    travel = NETWORK.latency + GRADIENT_BYTES / NETWORK.bandwidth
    assert one_host_each.exchange_seconds == pytest.approx(2 * travel + UPDATE_SECONDS)
    two_hosts_each = of(8, 4)
    within = HOST.exchange_seconds(Allocation(hosts=2, on_host=SHAPE), step=step)
    expected = within + 2 * travel + UPDATE_SECONDS
    assert two_hosts_each.exchange_seconds == pytest.approx(expected)


def test_rank_0_serves_so_many_groups_and_no_more() -> None:
    busy = max(GRADIENT_BYTES / NETWORK.bandwidth, UPDATE_SECONDS)
    assert of(400, 400).step_seconds == pytest.approx(400 * busy)
    assert of(2, 2).step_seconds < 2 * STEP.seconds(SHAPE)


def test_groups_have_whole_hosts() -> None:
    found = {(one.hosts, one.groups) for one in allocations([SHAPE], most_hosts=6, most_groups=4)}
    assert {groups for hosts, groups in found if hosts == 6} == {1, 2, 3}
    assert {groups for hosts, groups in found if hosts == 5} == {1}
    assert {groups for hosts, groups in found if hosts == 2} == {1, 2}


def test_the_winner_s_command_has_its_groups() -> None:
    words = training_arguments(of(8, 4), config="openimages.yaml", settings=())
    assert "distributed.groups=4" in words
    plain = training_arguments(of(8, 1), config="openimages.yaml", settings=())
    assert not any("groups" in word for word in plain)


@pytest.mark.parametrize(("times", "wins"), [(1.0, True), (3.0, False)])
def test_where_large_batches_cost_epochs_groups_win_if_they_cost_less(
    times: float, wins: bool
) -> None:
    found = choose_allocation(
        measurements(),
        EPOCHS,
        hosts=64,
        network=NETWORK,
        constraints=Constraints(),
        with_groups=WithGroups(most=4, epochs=times),
    )
    assert (found.winner.allocation.groups > 1) == wins


def test_a_plan_without_the_optimizer_s_step_is_told_so() -> None:
    old = replace(measurements(), update_seconds=None)
    with pytest.raises(InputError, match="--groups: the plan"):
        choose_allocation(
            old,
            EPOCHS,
            hosts=4,
            network=NETWORK,
            constraints=Constraints(),
            with_groups=WithGroups(most=2),
        )
