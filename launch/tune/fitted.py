"""From measurements to the model of a host, and how far it can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from launch.tune.asynchrony import Update
from launch.tune.forecast import Exchange, HostModel, Workload
from launch.tune.measurements import Measurements
from launch.tune.network import Network
from launch.tune.step_time import StepTime, StepTimeModel, fit_step_time, held_out

LEAST_TO_FIT = 4
"""As many measurements as the model has numbers."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured step beside what the model says of it."""

    time: StepTime
    predicted: float
    """Seconds, by the fit to all measurements, or without this one where it was left out."""
    was_left_out: bool

    @property
    def error(self) -> float:
        """Above the measurement (or below: negative), as a share of it."""
        return self.predicted / self.time.seconds - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The model of a step, and its test."""

    model: StepTimeModel
    """From all measurements."""
    checked: tuple[Checked, ...]

    @property
    def largest_error(self) -> float:
        """Of the predictions of what was left out; of all where nothing could be. As a share."""
        tested = [one for one in self.checked if one.was_left_out] or self.checked
        return max(abs(one.error) for one in tested)


def fitted_to(times: Sequence[StepTime], *, cores: int) -> Fitted:
    """Fit without a third of the measurements, predict these; then fit to all.

    Args:
        times: Measured steps.
        cores: Of the host.
    """
    left_out = held_out(times)
    kept = [one for one in times if one not in left_out]
    if len(kept) < LEAST_TO_FIT:
        left_out, kept = [], list(times)
    before = fit_step_time(kept, cores=cores)
    model = fit_step_time(times, cores=cores)
    checked = [
        Checked(
            time=one,
            predicted=(before if one in left_out else model).seconds(one.shape),
            was_left_out=one in left_out,
        )
        for one in times
    ]
    return Fitted(model=model, checked=tuple(checked))


def workload_of(measured: Measurements) -> Workload:
    """What forecasts need of the data."""
    return Workload(
        images=measured.images,
        evaluated_images=measured.evaluated_images,
        every=measured.every,
        evaluation_seconds=measured.evaluation_seconds,
        metric_seconds=measured.metric_seconds,
    )


def host_model(measured: Measurements, fitted: Fitted, network: Network) -> HostModel:
    """What forecasts need of a host."""
    shares = [one.share for one in measured.added]
    return HostModel(
        step_time=fitted.model,
        exchange=Exchange(
            gradient_bytes=measured.gradient_bytes,
            last_bytes=measured.last_bytes,
            on_one_host=max(0.0, median(shares)) if shares else 0.0,
            hidden_share=measured.backward_share,
            network=network,
        ),
        update=update_of(measured, network),
        error=fitted.largest_error,
    )


def update_of(measured: Measurements, network: Network) -> Update | None:
    """Of the common weights of groups; None where the optimizer's step was not measured."""
    if measured.update_seconds is None:
        return None
    return Update(
        weight_bytes=measured.gradient_bytes * (2 if measured.compress == "bf16" else 1),
        seconds=measured.update_seconds,
        network=network,
    )
