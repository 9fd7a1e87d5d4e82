"""The interface of strategies for the steps of an epoch, and synchronous training.

The trainer drives an `EpochStrategy`. In `SynchronousEpoch` all ranks take every step together. The
other strategy is in `retinanet.training.async_groups`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from common.errors import InputError, NonFiniteLossError
from launch.process_group import ProcessGroup
from retinanet.training.agreement import agreed_batches, merge_results
from retinanet.training.data import Loading
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite import NonFiniteGuard, NonFiniteReport
from retinanet.training.schedule import StepPlan
from retinanet.training.signals import StopRequest
from retinanet.training.slow_hosts import BackgroundLoad, SlowRank


@dataclass(frozen=True, kw_only=True)
class EpochStep:
    """A step that the ranks have agreed on, or a point at which all ranks are synchronized."""

    result: StepResult | None = None
    """The merged step of all ranks that took it; None: there is nothing to log."""
    nonfinite: NonFiniteReport | None = None  # If the step was not finite
    bad_images: tuple[str, ...] = ()  # The step's, unless they were known before, a line each
    done: int = 0  # Steps of the run that are done, for the progress bar
    step: int | None = None
    """Steps of the run in the weights, if all ranks have the same weights now; else None."""
    group: ProcessGroup | None = None  # The remaining ranks, if some have ended
    checkpoint_is_due: bool = False
    metric_is_ready: bool = False  # The metric of an evaluation in the background
    problem: InputError | NonFiniteLossError | None = None  # Why the run ends after this


class EpochStrategy(Protocol):
    """Takes the steps of an epoch on several ranks. All ranks call all methods."""

    def train_epoch(self, step: int, *, last: int, stop: StopRequest) -> Iterator[EpochStep]:
        """Train from after `step` to `last`, and yield each step that the ranks have agreed on.

        The caller logs each before it requests the next, and may close the generator only when
        `EpochStep.step` is given.

        Raises:
            InputError: An image cannot be read, by any rank.
        """

    def describe(self) -> dict[str, object]:
        """Return additional rows for the console."""
        return {}

    def close(self) -> None:
        """Release shared resources after the last epoch."""


@dataclass(frozen=True, kw_only=True)
class EpochContext:
    """The components of a run that every strategy uses."""

    take_steps: Callable[..., Iterator[StepResult]]
    """`train_one_epoch` of the run's model, under its settings."""
    loading: Loading
    plan: StepPlan
    learning_rate: Callable[[int], float]  # From completed steps of the run to the next one's
    guard: NonFiniteGuard
    background_load: BackgroundLoad
    checkpoint_is_due: Callable[[int], bool]  # After so many steps, as this rank sees it
    metric_is_ready: Callable[[], bool]
    """The metric of an evaluation in the background, as this rank sees it."""
    print_note: Callable[[str], None]  # Prints a line above the progress bar

    def with_load(self, result: StepResult) -> StepResult:
        """Return this rank's step, with a note if other programs use its cores."""
        note = self.background_load.note()
        return replace(result, notes=(note,)) if note else result

    def check(self, result: StepResult, *, is_decided: bool = False) -> NonFiniteReport | None:
        """Return a report if a step was not finite; see `NonFiniteGuard.check`."""
        return self.guard.check(
            result.step,
            result.nonfinite,
            gradient_norm=result.gradient_norm,
            learning_rate=result.learning_rate,
            is_decided=is_decided,
        )

    def new_bad_images(self, result: StepResult) -> tuple[tuple[str, ...], InputError | None]:
        """Return the new unreadable images of a step, and an error if there are too many."""
        try:
            return tuple(self.loading.bad_images.note(result.bad_images)), None
        except InputError as problem:
            # The error is returned, not raised: the caller still logs the step before the run ends.
            return (), problem

    def loading_moved_out(self, result: StepResult) -> bool:
        """Return whether the epoch must continue from a loading process, as its steps show."""
        reason = self.loading.move_out_if_needed(result)
        if reason:
            self.print_note(reason)
        return reason is not None


class SynchronousEpoch(EpochStrategy):
    """All ranks take every step together, and average their gradients."""

    def __init__(self, context: EpochContext, *, group: ProcessGroup, slow_rank: SlowRank) -> None:
        self._context = context
        self._group = group
        self._slow_rank = slow_rank

    def train_epoch(self, step: int, *, last: int, stop: StopRequest) -> Iterator[EpochStep]:
        """See `EpochStrategy`: the ranks are synchronized after every step."""
        context = self._context
        while step < last:
            position = context.plan.position(step)
            context.loading.batches.set_position(position.epoch, position.images)
            for result in context.take_steps(
                agreed_batches(self._group, context.loading.train),
                learning_rate=context.learning_rate,
                first_step=step,
            ):
                yield self._agree(result, stop)
                step = result.step
                if step >= last:
                    return
                if context.loading_moved_out(result):
                    # The iteration over batches starts again at the next step, now in a loading
                    # process.
                    break

    def _agree(self, own_result: StepResult, stop: StopRequest) -> EpochStep:
        """Exchange the ranks' results and signals, and whether a checkpoint or metric is due."""
        context = self._context
        # One exchange for everything that must be the same on all ranks, once per step: each rank
        # would otherwise decide by its own clock, and take part in a collective alone.
        shared = self._group.all_gather(
            (
                context.with_load(own_result),
                stop.received,
                context.checkpoint_is_due(own_result.step),
                context.metric_is_ready(),
            ),
            tuple[StepResult, str, bool, bool],
        )
        results, signals, due, ready = zip(*shared, strict=True)
        stop.agree(signals)
        result = merge_results(results)
        slow = self._slow_rank.note(results)
        if slow is not None:
            result = replace(result, notes=(slow, *result.notes))
        bad_images, problem = context.new_bad_images(result)
        return EpochStep(
            result=result,
            nonfinite=context.check(result),
            bad_images=bad_images,
            done=result.step,
            step=result.step,
            checkpoint_is_due=any(due),
            metric_is_ready=any(ready),
            problem=problem,
        )

    def close(self) -> None:
        """Do nothing: there are no shared resources."""
