"""Time and cost of a training on an allocation, with and without compute groups, and the choice."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from common.errors import InputError
from profiling.studies.rounds import Shape
from profiling.studies.tune.forecast import (
    Allocation,
    Constraints,
    Forecast,
    Plan,
    allocations,
    choose_allocation,
    forecast,
    host_counts,
    soonest_by_hosts,
    turning_point,
    why_it_loses,
)
from profiling.studies.tune.model import Estimate, Network, WithGroups, epochs_of_mlperf
from retinanet.mlperf.rules import NEWEST, TRAINING_IMAGES
from tests.profiling.studies.tune.samples import (
    GRADIENT_BYTES,
    NETWORK,
    STEP,
    UPDATE_SECONDS,
    host,
    measurements,
)

SHAPE = Shape(ranks=8, threads=7, batch_size=2)
ONE_RANK = Shape(ranks=1, threads=56, batch_size=2)
EPOCHS = epochs_of_mlperf(NEWEST)
HOST = host()


def of(hosts: int, shape: Shape = SHAPE) -> Forecast:
    return forecast(Allocation(hosts=hosts, on_host=shape), host=HOST, epochs=EPOCHS)


def grouped(hosts: int, groups: int, *, times: float = 1.0) -> Forecast:
    return forecast(
        Allocation(hosts=hosts, on_host=ONE_RANK, groups=groups),
        host=HOST,
        epochs=EPOCHS,
        with_groups=WithGroups(most=groups, epochs=times),
    )


@cache
def choose(
    hosts: int = 256,
    constraints: Constraints = Constraints(),  # noqa: B008
    with_groups: WithGroups = WithGroups(),  # noqa: B008
) -> Plan:
    return choose_allocation(
        measurements(),
        EPOCHS,
        hosts=hosts,
        network=NETWORK,
        constraints=constraints,
        with_groups=with_groups,
    )


def test_time_is_epochs_times_steps_and_evaluations() -> None:
    result = of(16)
    batch = 16 * 8 * 2
    evaluation = 24_781 * 1.5 / (16 * 56) + 25.0
    assert result.epochs.middle == pytest.approx(4.0)
    epoch_seconds = TRAINING_IMAGES // batch * result.step_seconds + evaluation
    assert result.hours.middle == pytest.approx(result.epochs.middle * epoch_seconds / 3600)
    assert result.core_hours.middle == pytest.approx(result.hours.middle * 16 * 56)
    assert result.images_per_second == pytest.approx(batch / result.step_seconds)


def test_evaluation_every_other_epoch_costs_half() -> None:
    rare = replace(HOST, measured=replace(HOST.measured, every=2))
    allocation = Allocation(hosts=1, on_host=SHAPE)
    hours = [forecast(allocation, host=model, epochs=EPOCHS).hours.middle for model in (HOST, rare)]
    evaluation = (24_781 * 1.5 / 56 + 25.0) / 3600
    assert hours[0] - hours[1] == pytest.approx(4.0 * evaluation / 2)


def test_range_has_the_best_and_worst_run_and_the_error_of_the_model() -> None:
    result = of(64)
    hours, epochs = result.hours, result.epochs
    assert hours.low / hours.middle == pytest.approx(0.95 * epochs.low / epochs.middle)
    assert hours.high / hours.middle == pytest.approx(1.05 * epochs.high / epochs.middle)


def test_exchange_uses_the_network_only_between_hosts() -> None:
    slow = replace(HOST, network=Network(latency=1.0, bandwidth=1.0, source=""))
    step = STEP.seconds(SHAPE)
    on_host = slow.exchange_seconds(Allocation(hosts=1, on_host=SHAPE), step=step)
    assert on_host == pytest.approx(0.01 * step)
    assert slow.exchange_seconds(Allocation(hosts=2, on_host=SHAPE), step=step) > 1e7
    assert HOST.exchange_seconds(Allocation(hosts=1, on_host=ONE_RANK), step=3.0) == 0.0


def test_exchange_is_that_of_a_group_of_hosts() -> None:
    allocation = Allocation(hosts=4, on_host=SHAPE)
    plain, groups = HOST.exchange(allocation), HOST.exchange(replace(allocation, groups=2))
    assert (plain.hosts, plain.ranks, plain.in_levels) == (4, 8, True)
    assert (groups.hosts, groups.ranks, groups.in_levels) == (2, 8, False)
    assert (plain.values, plain.network) == (GRADIENT_BYTES // 4, NETWORK)
    # Without peak rates, as in old plans, only the network takes time.
    assert plain.rank_bandwidth == plain.core_bandwidth == math.inf
    expected = plain.added_seconds(0.6) + 0.01  # measured on one host: waiting for the slowest rank
    assert HOST.exchange_seconds(allocation, step=1.0) == pytest.approx(expected)


def test_more_hosts_cost_more_and_finally_take_longer() -> None:
    """Fu et al. (2023), section on scaling and Figure 7, on MLPerf's own points."""
    line = soonest_by_hosts([of(count) for count in host_counts(512)])
    turn = turning_point(line)
    assert turn is not None
    large = [result for result in line if result.allocation.global_batch >= 256]
    assert large[-1].core_hours.middle > 2 * large[0].core_hours.middle
    assert turn.allocation.global_batch == pytest.approx(2560, rel=0.25)
    hosts = turn.allocation.hosts
    after = [result.hours.middle for result in line if result.allocation.hosts >= hosts]
    assert after == sorted(after)
    small = Shape(ranks=1, threads=56, batch_size=1)
    assert turning_point([of(count, small) for count in host_counts(256)]) is None


def test_numbers_of_hosts_grow_by_a_quarter_at_most() -> None:
    counts = host_counts(1000)
    assert counts[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16] and counts[-1] == 1000
    assert all(after <= max(before + 1, 1.25 * before) for before, after in pairwise(counts))
    assert host_counts(1) == [1]


def test_batch_of_a_group_sets_the_epochs_and_all_groups_the_images() -> None:
    plain, groups = grouped(512, 1), grouped(512, 4)
    assert (plain.allocation.global_batch, groups.allocation.global_batch) == (1024, 256)
    assert groups.epochs == EPOCHS.epochs(256)
    assert groups.images_per_second == pytest.approx(1024 / groups.step_seconds)
    evaluation = 24_781 * 1.5 / (512 * 56) + 25.0
    epoch_seconds = TRAINING_IMAGES // 1024 * groups.step_seconds + evaluation
    assert groups.hours.middle == pytest.approx(groups.epochs.middle * epoch_seconds / 3600)
    longer = grouped(512, 4, times=1.5)
    assert longer.epochs.middle == pytest.approx(1.5 * groups.epochs.middle)
    assert grouped(512, 1, times=1.5).epochs == plain.epochs


def test_step_of_a_group_adds_the_update_at_rank_0() -> None:
    travel = NETWORK.latency + GRADIENT_BYTES / NETWORK.bandwidth
    assert grouped(4, 4).exchange_seconds == pytest.approx(2 * travel + UPDATE_SECONDS)
    step = STEP.seconds(ONE_RANK)
    two_groups = Allocation(hosts=4, on_host=ONE_RANK, groups=2)  # of two hosts, as four of eight
    within = HOST.exchange_seconds(two_groups, step=step)
    expected = within + 2 * travel + UPDATE_SECONDS
    assert grouped(8, 4).exchange_seconds == pytest.approx(expected)


def test_rank_0_serves_one_group_at_a_time() -> None:
    busy = max(GRADIENT_BYTES / NETWORK.bandwidth, UPDATE_SECONDS)
    assert grouped(400, 400).step_seconds == pytest.approx(400 * busy)
    assert grouped(2, 2).step_seconds < 2 * STEP.seconds(ONE_RANK)


@pytest.mark.parametrize(("hosts", "groups"), [(6, {1, 2, 3}), (5, {1}), (2, {1, 2})])
def test_groups_have_whole_hosts(hosts: int, groups: set[int]) -> None:
    every = allocations([SHAPE], most_hosts=6, most_groups=4)
    assert {allocation.groups for allocation in every if allocation.hosts == hosts} == groups


@pytest.mark.parametrize(("times", "wins"), [(1.0, True), (3.0, False)])
def test_groups_win_if_they_cost_fewer_epochs(times: float, wins: bool) -> None:
    plan = choose(64, with_groups=WithGroups(most=4, epochs=times))
    assert (plan.winner.allocation.groups > 1) == wins


def test_groups_need_the_optimizer_step_in_the_plan() -> None:
    old, groups = replace(measurements(), update_seconds=None), WithGroups(most=2)
    limits = Constraints()
    with pytest.raises(InputError, match="--groups: "):
        choose_allocation(
            old, EPOCHS, hosts=4, network=NETWORK, constraints=limits, with_groups=groups
        )


def test_fastest_allocation_wins_without_limits() -> None:
    plan = choose()
    assert plan.winner.hours.middle == min(result.hours.middle for result in plan.forecasts)
    hours = [choose(hosts).winner.hours.middle for hosts in (1, 8, 64, 256, 512)]
    assert hours == sorted(hours, reverse=True)


@pytest.mark.parametrize(("limit", "wanted"), [("hours", "core_hours"), ("core_hours", "hours")])
def test_limit_selects_the_best_in_the_worst_case(limit: str, wanted: str) -> None:
    """A deadline selects the cheapest, a budget the fastest."""

    def of(result: Forecast, name: str) -> Estimate:
        return getattr(result, name)

    forecasts = choose().forecasts
    most = 1.5 * min(of(result, limit).high for result in forecasts)
    name = "deadline_hours" if limit == "hours" else "budget_core_hours"
    plan = choose(constraints=Constraints(**{name: most}))
    allowed = [result for result in forecasts if of(result, limit).high <= most]
    assert 1 < len(allowed) < len(forecasts)
    assert plan.winner == min(allowed, key=lambda result: of(result, wanted).middle)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"deadline_hours": 0.001}, "--deadline 0.001: the fastest"),
        ({"budget_core_hours": 1.0}, "--budget 1: the cheapest"),
        ({"deadline_hours": 4.0, "budget_core_hours": 7e4}, "--deadline, --budget: "),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, float], error: str) -> None:
    if len(limits) == 2:  # each can be met, but not both
        plan = choose()
        limits = {
            "deadline_hours": 1.01 * min(result.hours.high for result in plan.forecasts),
            "budget_core_hours": 1.01 * min(result.core_hours.high for result in plan.forecasts),
        }
    with pytest.raises(InputError, match=error):
        choose(constraints=Constraints(**limits))


def test_obvious_allocation_is_compared_with_the_winner() -> None:
    plan = choose()
    obvious = plan.obvious
    assert obvious is not None and obvious.allocation.hosts == 256
    assert obvious.allocation.on_host == Shape(ranks=2, threads=28, batch_size=8)
    reason = why_it_loses(obvious, plan.winner)
    times = obvious.hours.middle / plan.winner.hours.middle
    assert reason.startswith(f"{times:.2f} times as long")
    assert "global batch of 4,096 images needs 15.2 epochs" in reason
