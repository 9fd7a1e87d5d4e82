"""Which allocation to take: the soonest, the cheapest in time, the soonest that can be paid.

TODO-DOC What a user asks the planner, as the command line has read it.

TODO-DOC From a host's measurements to the allocation to take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from common.errors import InputError
from profiling.studies.tune.forecast import (
    PLAIN,
    Allocation,
    Fitted,
    Forecast,
    allocations,
    fitted_to,
    forecast,
    host_model,
    workload_of,
)
from profiling.studies.tune.measurements import Measurements
from profiling.studies.tune.model import EpochsModel, Network, Shape, WithGroups
from retinanet.mlperf.rules import Rules

WORTH_SAYING = 0.05
"""A share of a step in waiting that is part of the reason."""


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a user has to keep to; nothing: the soonest."""

    deadline_hours: float | None = None
    budget_core_hours: float | None = None

    def allows(self, one: Forecast) -> bool:
        """Whether even its worst case keeps to the limits."""
        in_time = self.deadline_hours is None or one.hours.high <= self.deadline_hours
        paid = self.budget_core_hours is None or one.core_hours.high <= self.budget_core_hours
        return in_time and paid


def best(forecasts: Sequence[Forecast], wish: Constraints) -> list[Forecast]:
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


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """Fields are options of `python -m launch tune`."""

    hosts: int
    network: Network | None
    measure_hosts: str | None
    hostfile: Path | None
    data: str | None
    """None: the plan's, else OpenImages."""
    rules: Rules
    overrides: list[str]
    probe: tuple[int, ...] | None
    """Global batch sizes, ascending; None: the plan's."""
    probe_target: float | None
    """mAP; None: the plan's, else the configuration's."""
    probe_seeds: int | None
    """None: the plan's, else `probing.SEEDS`."""
    groups: WithGroups
    deadline: float | None
    budget: float | None
    plan: Path | None
    chart: Path | None
    slurm: Path | None
    json_file: Path | None
    mpirun: Path | None

    @property
    def outputs(self) -> list[Path]:
        """Files that must not be there yet."""
        return [file for file in (self.chart, self.slurm, self.json_file) if file is not None]

    @property
    def wish(self) -> Constraints:
        """What the choice has to keep to."""
        return Constraints(deadline_hours=self.deadline, budget_core_hours=self.budget)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All forecasts, and which of them to take."""

    fitted: Fitted
    network: Network
    forecasts: Sequence[Forecast]
    """Of every allocation."""
    ranking: Sequence[Forecast]
    """Those that the wish allows, the best first; at least one."""
    obvious: Forecast | None
    """All hosts, a rank a socket, the configuration's batch; None where that does not fit."""

    @property
    def winner(self) -> Forecast:
        """The best."""
        return self.ranking[0]


def answer(
    measured: Measurements,
    epochs: EpochsModel,
    *,
    hosts: int,
    network: Network,
    wish: Constraints,
    with_groups: WithGroups = PLAIN,
) -> Plan:
    """Forecast every allocation, and rank them.

    Args:
        measured: Of one host, like which all are.
        epochs: Until the target.
        hosts: That there are.
        network: Between them.
        wish: What the choice has to keep to.
        with_groups: Groups that are allowed.

    Raises:
        InputError: Groups are asked for, and the plan lacks what they need; or nothing keeps to
            the wish; names the field, and what would.
    """
    fitted = fitted_to(measured.steps, cores=measured.cores)
    host = host_model(measured, fitted, network)
    workload = workload_of(measured)
    if with_groups.most > 1 and host.update is None:
        raise InputError(
            "--groups: the plan has no optimizer's step, as it is from before there were groups; "
            "measure anew, into another --plan"
        )
    forecasts = {
        one: forecast(one, host=host, epochs=epochs, workload=workload, with_groups=with_groups)
        for one in allocations(measured.shapes, most_hosts=hosts, most_groups=with_groups.most)
    }
    plain = Allocation(hosts=hosts, on_host=plain_shape(measured))
    found = list(forecasts.values())
    return Plan(
        fitted=fitted,
        network=network,
        forecasts=found,
        ranking=best(found, wish) or refuse(found, wish),
        obvious=forecasts.get(plain),
    )


def plain_shape(measured: Measurements) -> Shape:
    """A rank a socket with the configuration's batch, which most people would start."""
    threads = [one.threads for one in measured.shapes if one.ranks == measured.sockets]
    return Shape(
        ranks=measured.sockets, threads=max(threads, default=0), batch_size=measured.batch_size
    )


def refuse(forecasts: Sequence[Forecast], wish: Constraints) -> NoReturn:
    """Say that no allocation keeps to the wish, and what the nearest ones need.

    Raises:
        InputError: Always.
    """
    soonest = min(forecasts, key=lambda one: one.hours.high)
    cheapest = min(forecasts, key=lambda one: one.core_hours.high)
    if wish.deadline_hours is not None and soonest.hours.high > wish.deadline_hours:
        raise InputError(
            f"--deadline {wish.deadline_hours:g}: the soonest, {soonest.allocation.name}, may take "
            f"{soonest.hours.high:.1f} hours; give more --hosts or a later deadline"
        )
    if wish.budget_core_hours is not None and cheapest.core_hours.high > wish.budget_core_hours:
        raise InputError(
            f"--budget {wish.budget_core_hours:g}: the cheapest, {cheapest.allocation.name}, may "
            f"take {cheapest.core_hours.high:,.0f} core-hours; give more"
        )
    raise InputError("--deadline, --budget: no allocation keeps to both; give up one of them")
