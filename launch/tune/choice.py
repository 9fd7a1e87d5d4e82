"""Which allocation to take: the soonest, the cheapest in time, the soonest that can be paid."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.tune.forecast import Forecast

WORTH_SAYING = 0.05
"""A share of a step in waiting that is part of the reason."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user has to keep to; nothing: the soonest."""

    deadline_hours: float | None = None
    budget_core_hours: float | None = None

    def allows(self, one: Forecast) -> bool:
        """Whether even its worst case keeps to the limits."""
        in_time = self.deadline_hours is None or one.hours.high <= self.deadline_hours
        paid = self.budget_core_hours is None or one.core_hours.high <= self.budget_core_hours
        return in_time and paid


def best(forecasts: Sequence[Forecast], wish: Wish) -> list[Forecast]:
    """Those that the wish allows, the best first.

    With a deadline the cheapest is the best, else the soonest. Among those whose numbers are the
    same it is the one of the fewest hosts.
    """

    def cost(one: Forecast) -> tuple[float, int]:
        counted = one.hours if wish.deadline_hours is None else one.core_hours
        return counted.middle, one.allocation.hosts

    return sorted((one for one in forecasts if wish.allows(one)), key=cost)


def soonest_by_hosts(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """The soonest of each number of hosts, by number."""
    found: dict[int, Forecast] = {}
    for one in forecasts:
        kept = found.setdefault(one.allocation.hosts, one)
        if one.hours.middle < kept.hours.middle:
            found[one.allocation.hosts] = one
    return [found[hosts] for hosts in sorted(found)]


def turning_point(by_hosts: Sequence[Forecast]) -> Forecast | None:
    """The soonest, where more hosts make the training longer again; None where none does.

    Args:
        by_hosts: Of one shape of ranks, by number of hosts, ascending.
    """
    soonest = min(by_hosts, key=lambda one: one.hours.middle)
    return soonest if soonest is not by_hosts[-1] else None


def why_it_loses(one: Forecast, winner: Forecast) -> str:
    """What makes another allocation take longer than the winner, in a sentence."""
    times = one.hours.middle / winner.hours.middle
    epochs = one.epochs.middle / winner.epochs.middle
    throughput = one.images_per_second / winner.images_per_second
    cost = one.core_hours.middle / winner.core_hours.middle
    reasons = []
    if epochs > 1.0:
        reasons.append(
            f"its global batch of {one.allocation.global_batch:,} images needs "
            f"{one.epochs.middle:.1f} epochs, that of {winner.allocation.global_batch:,} "
            f"{winner.epochs.middle:.1f}"
        )
    faster = f"{throughput:.2f} times the images a second"
    reasons.append(f"it trains {faster}")
    waiting = one.exchange_seconds / one.step_seconds
    if waiting > WORTH_SAYING:
        reasons.append(f"{waiting:.0%} of its steps is waiting for gradients")
    return f"{times:.2f} times as long and {cost:.2f} times the core-hours: {'; '.join(reasons)}"
