"""The training step and the steps of an epoch.

TODO-DOC Who is told where each training step is: nobody, unless a profile was asked for.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import torch
from torch.optim import Optimizer

from common.errors import NonFiniteLossError
from common.machine import page_faults, peak_resident_mb, resident_mb
from data.dataset import Batch
from data.transforms import normalize
from launch.compute_threads import calling_thread_on
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.engine.gradient_sync import GradientExchange
from retinanet.engine.optimizers import clip_gradients, gradient_norm
from retinanet.loss.detection import detection_loss
from retinanet.training.nonfinite import BatchTerms, NonFiniteStep, find_nonfinite

Update = Callable[[float], int]
"""Takes a step at a learning rate with the gradients, lets go of them; returns its staleness."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did."""

    step: int
    """Optimizer steps done, this one included."""
    losses: dict[str, float]
    """`classification` and `bbox_regression`, averaged over the step's batches."""
    gradient_norm: float
    """L2 norm of all gradients, averaged over batches and ranks, before they were clipped."""
    learning_rate: float
    images: int
    seconds: float
    """Waiting for data included."""
    data_seconds: float
    """Waiting for data alone."""
    page_faults: int
    """Pages that the kernel gave to this process anew; loading processes not counted."""
    resident_mb: float
    """Memory in RAM after the step. [10⁶ bytes]"""
    peak_resident_mb: float
    """The most so far, evaluations included. [10⁶ bytes]"""
    exchange_seconds: float = 0.0
    """Averaging gradients over the ranks, beyond what the backward pass hides."""
    forward_seconds: float = 0.0
    """Forward passes and losses, in which no rank waits for another."""
    bad_images: tuple[str, ...] = ()
    """Images that could not be read and that others stood in for, a line each."""
    nonfinite: tuple[NonFiniteStep, ...] = ()
    """Of each rank, where the loss or a gradient was not finite: nothing was updated then."""
    notes: tuple[str, ...] = ()
    """Lines for the log about what slowed the step down, of all ranks."""
    group: int | None = None
    """The compute group whose step it was; None where all ranks are one."""
    groups_at_work: int = 1
    """That took steps at the same time, this one included."""
    staleness: int = 0
    """Steps of other groups that came between its reading the weights and its updating them."""

    @property
    def loss(self) -> float:
        """The sum that was minimized."""
        return sum(self.losses.values())

    @property
    def images_per_second(self) -> float:
        """Of all groups, if they are as fast as this one."""
        return self.images * self.groups_at_work / self.seconds


NOTHING = nullcontext()


class Unwatched:
    """`Phases` that does nothing."""

    def notes(self, steps: range) -> list[str]:
        """None."""
        return []

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Nothing."""
        return NOTHING

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Nothing."""
        return NOTHING


NO_PROFILER = Unwatched()


class StepProfiler(Protocol):
    """Is told where each step begins and ends, and each phase in it.

    A step is one of the optimizer: from waiting for its images until its weights are there. Its
    phases are `data` (the wait, also for other ranks' images), `forward`, `loss`, `backward` (the
    exchange of gradients included) and `optimizer`; where a step has several batches, the middle
    three come once for each. What the run does between two steps belongs to neither.
    """

    def notes(self, steps: range) -> list[str]:
        """What there is to say before a run takes these steps."""

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Around a step, counted from 1 over the whole run, of this model."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Around a phase of the step."""


def batch_losses(
    prepared: PreparedTraining,
    batch: Batch,
    *,
    focal_form: str = "auto",
    phases: StepProfiler = NO_PROFILER,
) -> dict[str, torch.Tensor]:
    """Forward pass and losses of one batch: the model as its engine runs it, losses in float32."""
    with phases.phase("forward"):
        images = normalize(batch.images)
        outputs = prepared.forward(images)
    with phases.phase("loss"):
        height, width = images.shape[-2:]
        anchors = prepared.model.anchors((height, width), outputs.feature_sizes)
        return detection_loss(outputs, anchors, batch.targets, focal_form=focal_form)


def train_one_epoch(
    prepared: PreparedTraining,
    batches: Iterable[Batch],
    *,
    learning_rate: Callable[[int], float],
    first_step: int,
    gradient_accumulation: int = 1,
    longest_gradient: float | None = None,
    focal_form: str = "auto",
    exchange: GradientExchange | None = None,
    update: Update | None = None,
    phases: StepProfiler = NO_PROFILER,
    main_cpus: tuple[int, ...] = (),
) -> Iterator[StepResult]:
    """Train on the batches, yielding after every optimizer step.

    A generator, so that whoever drives it may log, write a checkpoint or stop between any two
    steps. Batches left over that do not fill a step are not used. A step whose loss or gradients
    are not finite leaves weights, optimizer and running statistics as they were, and says so in
    its result, on all ranks; it is for the caller to go on or not.

    Args:
        prepared: The model and its optimizer, see `prepare_training`.
        batches: The rest of the epoch; see `data.training_loader`.
        learning_rate: From the number of steps done to the next step's rate.
        first_step: Optimizer steps done before.
        gradient_accumulation: Batches averaged into one step.
        longest_gradient: The norm to which a step's gradients are clipped; None: they are not.
        focal_form: See `focal_loss`.
        exchange: Averages the gradients over the ranks, where there are several.
        update: Takes the optimizer's step instead of the prepared optimizer.
        phases: Is told where each step is; an exchange was made with the same.
        main_cpus: Where the calling thread computes, see `launch.shares.Share.main_cpus`.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    update = update or partial(update_weights, prepared.optimizer)
    stream = iter(batches)
    step = first_step
    while True:
        with phases.step(step + 1, prepared):
            start = time.perf_counter()
            faults = page_faults()
            with phases.phase("data"):
                group = list(islice(stream, gradient_accumulation))
            if len(group) < gradient_accumulation:
                return
            data_seconds = time.perf_counter() - start
            rate = learning_rate(step)
            step += 1
            statistics.keep()
            # Only now: loading processes were started while waiting for data, and are not bound.
            with calling_thread_on(main_cpus):
                terms = accumulate_gradients(
                    prepared, group, focal_form=focal_form, exchange=exchange, phases=phases
                )
                with phases.phase("optimizer"):
                    norm, staleness = gradient_norm(prepared.model.parameters()), 0
                    if math.isfinite(norm):
                        clip_gradients(
                            prepared.model.parameters(), norm=norm, longest=longest_gradient
                        )
                        staleness = update(rate)
                        nonfinite = []
                    else:
                        statistics.put_back()
                        nonfinite = [give_up_step(prepared, terms)]
            result = StepResult(
                step=step,
                losses=mean_losses(terms),
                gradient_norm=norm,
                learning_rate=rate,
                images=sum(len(batch.image_ids) for batch in group),
                seconds=time.perf_counter() - start,
                data_seconds=data_seconds,
                page_faults=page_faults() - faults,
                resident_mb=resident_mb(),
                peak_resident_mb=peak_resident_mb(),
                exchange_seconds=exchange.exposed_seconds if exchange else 0.0,
                forward_seconds=sum(one.forward_seconds for one in terms),
                bad_images=tuple(problem for batch in group for problem in batch.bad_images),
                nonfinite=tuple(nonfinite),
                staleness=staleness,
            )
        yield result


def accumulate_gradients(
    prepared: PreparedTraining,
    group: list[Batch],
    *,
    focal_form: str = "auto",
    exchange: GradientExchange | None = None,
    phases: StepProfiler = NO_PROFILER,
) -> list[BatchTerms]:
    """Add the average gradient of the batches to the parameters; return each batch's losses.

    Where a loss is not finite, the gradients become NaN, so that the average over the ranks does
    on all of them: none waits for another, and all see it in the norm.
    """
    own = partial(batch_losses, prepared, focal_form=focal_form, phases=phases)
    losses_of = exchange or own
    found = []
    for number, batch in enumerate(group, start=1):
        held_back = exchange.held_back() if exchange and number < len(group) else nullcontext()
        with held_back:
            start = time.perf_counter()
            losses = losses_of(batch)
            values = {name: value.item() for name, value in losses.items()}
            terms = BatchTerms(
                losses=values,
                image_ids=tuple(batch.image_ids),
                forward_seconds=time.perf_counter() - start,
            )
            loss = sum(losses.values(), torch.zeros(())) / len(group)
            if not terms.is_finite:  # an infinite loss may have finite gradients
                loss = loss * math.nan
            with phases.phase("backward"):
                exchange.backward(loss) if exchange else loss.backward()
        found.append(terms)
    return found


def mean_losses(batches: Sequence[BatchTerms]) -> dict[str, float]:
    """Each term's mean over batches."""
    return {
        name: sum(one.losses[name] / len(batches) for one in batches) for name in batches[0].losses
    }


def update_weights(optimizer: Optimizer, learning_rate: float) -> int:
    """Take an optimizer step at the given rate, and let go of the gradients; 0: no staleness."""
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return 0


def give_up_step(prepared: PreparedTraining, terms: Sequence[BatchTerms]) -> NonFiniteStep:
    """Let go of gradients that are not finite, having looked where they are."""
    found = find_nonfinite(prepared.model, terms)
    prepared.optimizer.zero_grad(set_to_none=True)
    return found


def require_finite(result: StepResult) -> StepResult:
    """Refuse a step that changed nothing, where no run decides about it.

    Raises:
        NonFiniteLossError: Its loss or its gradients were not finite.
    """
    if result.nonfinite:
        raise NonFiniteLossError(f"loss or gradients not finite at step {result.step}")
    return result
