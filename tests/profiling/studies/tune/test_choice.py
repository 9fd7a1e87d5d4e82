"""Which allocation is taken."""

import pytest

from common.errors import InputError
from profiling.studies.tune.forecast import Constraints, Plan, choose_allocation, why_it_loses
from profiling.studies.tune.model import epochs_of_mlperf
from retinanet.mlperf.rules import NEWEST
from tests.profiling.studies.tune.by_hand import NETWORK, measurements

EPOCHS = epochs_of_mlperf(NEWEST)


def asked(*, hosts: int = 256, constraints: Constraints = Constraints()) -> Plan:  # noqa: B008
    return choose_allocation(
        measurements(), EPOCHS, hosts=hosts, network=NETWORK, constraints=constraints
    )


def test_without_limits_the_soonest_is_taken() -> None:
    found = asked()
    assert found.winner.hours.middle == min(one.hours.middle for one in found.forecasts)


def test_more_hosts_never_make_the_choice_later() -> None:
    hours = [asked(hosts=hosts).winner.hours.middle for hosts in (1, 8, 64, 256, 512)]
    assert hours == sorted(hours, reverse=True)


def test_deadline_takes_the_cheapest_that_keeps_it_at_its_worst() -> None:
    limit = 2 * asked().winner.hours.high
    found = asked(constraints=Constraints(deadline_hours=limit))
    assert found.winner.hours.high <= limit
    in_time = [one for one in found.forecasts if one.hours.high <= limit]
    assert found.winner.core_hours.middle == min(one.core_hours.middle for one in in_time)
    assert found.winner.core_hours.middle < asked().winner.core_hours.middle


def test_budget_takes_the_soonest_that_keeps_it_at_its_worst() -> None:
    cheapest = min(one.core_hours.high for one in asked().forecasts)
    found = asked(constraints=Constraints(budget_core_hours=1.1 * cheapest))
    assert found.winner.core_hours.high <= 1.1 * cheapest
    paid = [one for one in found.forecasts if one.core_hours.high <= 1.1 * cheapest]
    assert found.winner.hours.middle == min(one.hours.middle for one in paid)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (Constraints(deadline_hours=0.001), "--deadline 0.001: the fastest"),
        (Constraints(budget_core_hours=1.0), "--budget 1: the cheapest"),
    ],
)
def test_what_cannot_be_kept_is_told_with_what_can(constraints: Constraints, words: str) -> None:
    with pytest.raises(InputError, match=words):
        asked(constraints=constraints)


def test_obvious_allocation_is_all_hosts_with_a_rank_a_socket() -> None:
    found = asked()
    assert found.obvious is not None
    assert found.obvious.allocation.hosts == 256
    assert found.obvious.allocation.on_host.ranks == 2
    assert found.obvious.allocation.on_host.batch_size == 8


def test_reason_names_epochs_and_throughput() -> None:
    found = asked()
    assert found.obvious is not None
    words = why_it_loses(found.obvious, found.winner)
    times = found.obvious.hours.middle / found.winner.hours.middle
    assert words.startswith(f"{times:.2f} times as long")
    assert "global batch of 4,096 images needs 15.2 epochs" in words
