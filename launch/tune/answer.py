"""From a host's measurements to the allocation to take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from launch.tune.allocation import Allocation, allocations
from launch.tune.asynchrony import WithGroups
from launch.tune.choice import Wish, best
from launch.tune.epochs import EpochsModel
from launch.tune.fitted import Fitted, fitted_to, host_model, workload_of
from launch.tune.forecast import PLAIN, Forecast, forecast
from launch.tune.measurements import Measurements
from launch.tune.network import Network
from launch.tune.step_time import Shape
from retinanet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Answer:
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
    wish: Wish,
    with_groups: WithGroups = PLAIN,
) -> Answer:
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
    return Answer(
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


def refuse(forecasts: Sequence[Forecast], wish: Wish) -> NoReturn:
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
