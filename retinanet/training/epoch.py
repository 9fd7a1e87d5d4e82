"""The steps of an epoch, which all ranks take together: what they agree on after each of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from common.errors import InputError, NonFiniteLossError
from retinanet.training.agreement import agreed_batches, merge_results
from retinanet.training.components import RunComponents
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite import NonFiniteReport
from retinanet.training.signals import StopRequest
from retinanet.training.slow_hosts import SlowRank, advice_on_slow_rank


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
    checkpoint_is_due: bool = False
    metric_is_ready: bool = False  # The metric of an evaluation in the background
    problem: InputError | NonFiniteLossError | None = None  # Why the run ends after this


class SynchronousEpochs:
    """All ranks take every step together, and average their gradients. All ranks call it."""

    def __init__(self, run: RunComponents) -> None:
        self.rows: Mapping[str, object] = {}
        """Rows for the console about how the ranks train."""
        self._run = run
        self._slow_rank = SlowRank(run.group.hosts, advice=advice_on_slow_rank(run.config))

    def train_epoch(self, step: int, *, last: int, stop: StopRequest) -> Iterator[EpochStep]:
        """Train from after `step` to `last`, and yield each step that the ranks have agreed on.

        The caller logs each before it requests the next, and may close the generator only when
        `EpochStep.step` is given: here after every step.

        Raises:
            InputError: An image cannot be read, by any rank.
        """
        run = self._run
        while step < last:
            run.loading.batches.set_position(*run.plan.position(step))
            batches = agreed_batches(run.group, run.loading.train)
            for result in run.take_steps(batches, first_step=step):
                yield self._agree(result, stop)
                step = result.step
                if step >= last:
                    return
                if run.has_moved_loading(result):
                    # The iteration over batches starts again at the next step, now in a loading
                    # process.
                    break

    def _agree(self, own_result: StepResult, stop: StopRequest) -> EpochStep:
        """Exchange the ranks' results and signals, and whether a checkpoint or metric is due."""
        run = self._run
        # One exchange for everything that must be the same on all ranks, once per step: each rank
        # would otherwise decide by its own clock, and take part in a collective alone.
        shared = run.group.all_gather(
            (
                run.with_load(own_result),
                stop.received,
                run.checkpoint_is_due(own_result.step),
                run.metric_is_ready,
            ),
            tuple[StepResult, str, bool, bool],
        )
        results, signals, due, ready = zip(*shared, strict=True)
        stop.agree(signals)
        result = merge_results(results)
        slow = self._slow_rank.note(results)
        if slow is not None:
            result = replace(result, notes=(slow, *result.notes))
        bad_images, problem = run.new_bad_images(result)
        return EpochStep(
            result=result,
            nonfinite=run.check_finite(result),
            bad_images=bad_images,
            done=result.step,
            step=result.step,
            checkpoint_is_due=any(due),
            metric_is_ready=any(ready),
            problem=problem,
        )
