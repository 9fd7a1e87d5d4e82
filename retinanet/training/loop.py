"""The training step: forward, loss, backward, all-reduce, clipping, optimizer.

`train_one_epoch` is the loop over an epoch's batches, and has the whole step but for the gradients
of a batch, which `accumulate_gradients` computes.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
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
from retinanet.engine.optimizers import (
    RATE_FACTOR,
    clip_gradients,
    gradient_norm,
    set_learning_rate,
)
from retinanet.loss.detection import detection_loss
from retinanet.training.ema import WeightAverage
from retinanet.training.nonfinite import BatchTerms, NonFiniteStep, find_nonfinite

NOTHING = nullcontext()


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of the steps of a run."""

    gradient_accumulation: int = 1  # Batches a step
    max_grad_norm: float | None = None  # Longer gradients are shortened to it; None: never
    focal_form: str = "auto"  # See `retinanet.loss.focal`
    class_weights: torch.Tensor | None = None  # [classes], see `focal_loss`
    main_cpus: tuple[int, ...] = ()
    """CPUs of the thread that computes, see `launch.shares.Share.main_cpus`."""


@dataclass(frozen=True)
class StepResult:
    """Losses, times and memory of one optimizer step."""

    step: int  # Optimizer steps done, this one included
    losses: dict[str, float]
    """`classification` and `bbox_regression`, averaged over the step's batches."""
    gradient_norm: float
    """L2 norm of all gradients, averaged over batches and ranks, before they were clipped."""
    learning_rate: float
    images: int
    seconds: float  # Waiting for data included
    data_seconds: float  # Waiting for data alone
    page_faults: int
    """Pages that the kernel newly mapped into this process; loading processes not counted."""
    resident_mb: float  # Memory in RAM after the step. [10⁶ bytes]
    peak_resident_mb: float  # The most so far, evaluations included. [10⁶ bytes]
    exchange_seconds: float = 0.0
    """Averaging gradients over the ranks, beyond what the backward pass hides."""
    forward_seconds: float = 0.0  # Forward passes and losses, in which no rank waits for another
    body_learning_rate: float | None = None  # Of the backbone's body, if it has one of its own
    bad_images: tuple[str, ...] = ()
    """Images that could not be read and were replaced by others, a line each."""
    nonfinite: tuple[NonFiniteStep, ...] = ()
    """Each rank's record, if the loss or a gradient was not finite: nothing was updated then."""
    notes: tuple[str, ...] = ()  # Lines for the log about what slowed the step down, of all ranks
    facts: Mapping[str, int] = field(default_factory=dict)
    """Further numbers for `metrics.jsonl`, under their names there."""
    parallel: int = 1  # Steps that were taken at the same time, this one included

    @property
    def loss(self) -> float:
        """The sum that was minimized."""
        return sum(self.losses.values())

    @property
    def run_seconds(self) -> float:
        """The step's share of the run's time: steps that are taken in parallel divide a second."""
        return self.seconds / self.parallel

    @property
    def images_per_second(self) -> float:
        """The throughput of the complete run."""
        return self.images / self.run_seconds


class StepProfiler(Protocol):
    """The interface of profilers: contexts around each step and each of its phases.

    A step is an optimizer step, from waiting for its images until its weights are updated. Its
    phases are `data` (waiting, also for other ranks' images), `forward`, `loss`, `backward`
    (averaging of gradients included) and `optimizer`. The middle three occur once per batch. Work
    between two steps belongs to neither. The methods here do nothing.
    """

    def notes(self, steps: range) -> list[str]:
        """Return notes on what cannot be measured in a run that takes these steps."""
        return []

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Return the context of a step of this model, counted from 1 in the run."""
        return NOTHING

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return the context of a phase of the step."""
        return NOTHING


class NullProfiler(StepProfiler):
    """A profiler without any effect."""


NO_PROFILER = NullProfiler()
DEFAULT_OPTIONS = StepOptions()


def train_one_epoch(
    prepared: PreparedTraining,
    batches: Iterable[Batch],
    *,
    learning_rate: Callable[[int], float],
    first_step: int,
    options: StepOptions = DEFAULT_OPTIONS,
    exchange: GradientExchange | None = None,
    average: WeightAverage | None = None,
    profiler: StepProfiler = NO_PROFILER,
) -> Iterator[StepResult]:
    """Train on the batches, and yield after every optimizer step.

    A generator, so that the caller may log, write a checkpoint or stop between any two steps.
    Remaining batches that do not fill a step are not used. A step whose loss or gradients are not
    finite leaves weights, optimizer and running statistics unchanged, on all ranks; its result has
    `nonfinite`, and the caller decides whether to continue.

    `learning_rate` maps the number of completed steps, `first_step` of them before the call, to the
    next step's rate. `average` follows the weights.
    """
    model = prepared.model
    model.train()
    statistics = RunningStatistics(model)
    body_factor = prepared.optimizer.param_groups[0].get(RATE_FACTOR)
    stream = iter(batches)
    for step in count(first_step):
        with profiler.step(step + 1, prepared):
            start, faults = time.perf_counter(), page_faults()
            with profiler.phase("data"):
                step_batches = list(islice(stream, options.gradient_accumulation))
            if len(step_batches) < options.gradient_accumulation:
                return
            data_seconds = time.perf_counter() - start
            rate = learning_rate(step)
            # The forward pass updates running statistics before the loss shows that it must not.
            statistics.keep()
            nonfinite: tuple[NonFiniteStep, ...] = ()
            # Not around the data phase: loading processes that start there inherit the affinity.
            with calling_thread_on(options.main_cpus):
                # Forward, loss, backward and all-reduce.
                terms = accumulate_gradients(
                    prepared,
                    step_batches,
                    focal_form=options.focal_form,
                    class_weights=options.class_weights,
                    exchange=exchange,
                    profiler=profiler,
                )
                with profiler.phase("optimizer"):
                    norm = gradient_norm(model.parameters())
                    if math.isfinite(norm):
                        clip_gradients(model.parameters(), norm=norm, longest=options.max_grad_norm)
                        optimizer_step(prepared.optimizer, rate)
                        if average is not None:
                            average.update(step)
                    else:
                        # Averaged gradients have one norm on all ranks, so all skip this step, and
                        # no flag needs to be exchanged.
                        statistics.put_back()
                        nonfinite = (find_nonfinite(model, terms),)
                        prepared.optimizer.zero_grad(set_to_none=True)
            result = StepResult(
                step=step + 1,
                losses={
                    name: sum(part.losses[name] * part.share / len(step_batches) for part in terms)
                    for name in terms[0].losses
                },
                gradient_norm=norm,
                learning_rate=rate,
                body_learning_rate=rate * body_factor if body_factor else None,
                images=sum(batch.total for batch in step_batches),
                seconds=time.perf_counter() - start,
                data_seconds=data_seconds,
                page_faults=page_faults() - faults,
                resident_mb=resident_mb(),
                peak_resident_mb=peak_resident_mb(),
                exchange_seconds=exchange.exposed_seconds if exchange else 0.0,
                forward_seconds=sum(batch.forward_seconds for batch in terms),
                bad_images=tuple(
                    line
                    for batch in step_batches
                    for part in batch.parts()
                    for line in part.bad_images
                ),
                nonfinite=nonfinite,
            )
        yield result


def accumulate_gradients(
    prepared: PreparedTraining,
    batches: Sequence[Batch],
    *,
    focal_form: str = "auto",
    class_weights: torch.Tensor | None = None,
    exchange: GradientExchange | None = None,
    profiler: StepProfiler = NO_PROFILER,
) -> list[BatchTerms]:
    """Run forward, loss and backward; return the losses of each batch, of its parts one by one.

    The gradients are averages over the batches and, with an exchange, over the ranks: the
    all-reduce runs during the last backward pass. A batch's loss is the mean over its images, so
    that its parts count by their images.
    """
    forward_and_loss = exchange or partial(
        batch_losses,
        prepared,
        focal_form=focal_form,
        class_weights=class_weights,
        profiler=profiler,
    )
    parts = [(part, len(part.image_ids) / each.total) for each in batches for part in each.parts()]
    all_terms = []
    for number, (batch, share) in enumerate(parts, start=1):
        is_last = number == len(parts)
        # Gradients of earlier batches stay on this rank: one exchange per step, with the last one.
        with exchange.held_back() if exchange and not is_last else NOTHING:
            start = time.perf_counter()
            losses = forward_and_loss(batch)
            terms = BatchTerms(
                losses={name: value.item() for name, value in losses.items()},
                image_ids=tuple(batch.image_ids),
                share=share,
                forward_seconds=time.perf_counter() - start,
            )
            # Gradients of the batches add up, and the step uses those of the mean loss.
            loss = sum(losses.values(), torch.zeros(())) * share / len(batches)
            if not terms.is_finite:
                # An infinite loss can have finite gradients. As NaN it makes the averaged gradients
                # NaN on every rank, so that all skip the step; leaving out the backward pass here
                # would make the other ranks wait for the all-reduce.
                loss = loss * math.nan
            with profiler.phase("backward"):
                exchange.backward(loss) if exchange else loss.backward()
        all_terms.append(terms)
    return all_terms


def batch_losses(
    prepared: PreparedTraining,
    batch: Batch,
    *,
    focal_form: str = "auto",
    class_weights: torch.Tensor | None = None,
    profiler: StepProfiler = NO_PROFILER,
) -> dict[str, torch.Tensor]:
    """Run the model forward as its engine does, and return the losses of a batch in float32."""
    with profiler.phase("forward"):
        # Images arrive as uint8, a quarter of the bytes of float32, because loading processes send
        # them through shared memory.
        images = normalize(batch.images)
        outputs = prepared.forward(images)
    with profiler.phase("loss"):
        height, width = images.shape[-2:]
        anchors = prepared.model.anchors((height, width), outputs.feature_sizes)
        return detection_loss(
            outputs,
            anchors,
            batch.targets,
            focal_form=focal_form,
            box_loss=prepared.model.variant.box_loss,
            class_weights=class_weights,
        )


def optimizer_step(optimizer: Optimizer, learning_rate: float) -> None:
    """Run one optimizer step at the given rate and clear the gradients."""
    # The rate is set at every step and is a function of the step, so no scheduler has a state that
    # a checkpoint would need.
    set_learning_rate(optimizer, learning_rate)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def require_finite(result: StepResult) -> StepResult:
    """Return the step of a benchmark or a study, which cannot skip steps as a run can.

    Raises:
        NonFiniteLossError: Its loss or its gradients were not finite.
    """
    if result.nonfinite:
        raise NonFiniteLossError(f"loss or gradients not finite at step {result.step}")
    return result
