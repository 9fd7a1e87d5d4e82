"""The training step and the steps of an epoch."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch.optim import Optimizer

from data.dataset import Batch
from data.transforms import normalize
from launch.resources import page_faults, peak_resident_mb, resident_mb
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.gradient_exchange import GradientExchange
from retinanet.errors import NonFiniteLossError
from retinanet.loss import detection_loss
from retinanet.training.phases import UNWATCHED, Phases


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did."""

    step: int
    """Optimizer steps done, this one included."""
    losses: dict[str, float]
    """`classification` and `bbox_regression`, averaged over the step's batches."""
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
    bad_images: tuple[str, ...] = ()
    """Images that could not be read and that others stood in for, a line each."""

    @property
    def loss(self) -> float:
        """The sum that was minimized."""
        return sum(self.losses.values())


def batch_losses(
    prepared: PreparedTraining,
    batch: Batch,
    *,
    focal_form: str = "auto",
    phases: Phases = UNWATCHED,
) -> dict[str, torch.Tensor]:
    """Forward pass and losses of one batch: the model as its engine runs it, losses in float32."""
    with phases.phase("forward"):
        images = normalize(batch.images)
        outputs = prepared.forward(images)
    with phases.phase("loss"):
        height, width = images.shape[-2:]
        anchors = prepared.model.anchors((height, width), outputs.feature_sizes)
        return detection_loss(outputs, anchors, batch.targets, focal_form=focal_form)


def require_finite(losses: dict[str, torch.Tensor], *, step: int, image_ids: list[int]) -> None:
    """Stop before a broken loss reaches the weights.

    Raises:
        NonFiniteLossError: Names the step, the terms and the images.
    """
    if all(bool(torch.isfinite(value)) for value in losses.values()):
        return
    terms = ", ".join(f"{name} {value.item():g}" for name, value in losses.items())
    images = ", ".join(map(str, image_ids))
    raise NonFiniteLossError(f"loss not finite at step {step}: {terms}; images {images}")


def train_one_epoch(
    prepared: PreparedTraining,
    batches: Iterable[Batch],
    *,
    learning_rate: Callable[[int], float],
    first_step: int,
    gradient_accumulation: int = 1,
    focal_form: str = "auto",
    exchange: GradientExchange | None = None,
    phases: Phases = UNWATCHED,
) -> Iterator[StepResult]:
    """Train on the batches, yielding after every optimizer step.

    A generator, so that whoever drives it may log, write a checkpoint or stop between any two
    steps. Batches left over that do not fill a step are not used.

    Args:
        prepared: The model and its optimizer, see `prepare_training`.
        batches: The rest of the epoch; see `data.training_loader`.
        learning_rate: From the number of steps done to the next step's rate.
        first_step: Optimizer steps done before.
        gradient_accumulation: Batches averaged into one step.
        focal_form: See `focal_loss`.
        exchange: Averages the gradients over the ranks, where there are several.
        phases: Is told where each step is; an exchange was made with the same.

    Raises NonFiniteLossError before the weights are touched.
    """
    prepared.model.train()
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
            losses = accumulate_gradients(
                prepared, group, step=step, focal_form=focal_form, exchange=exchange, phases=phases
            )
            with phases.phase("optimizer"):
                update_weights(prepared.optimizer, learning_rate=rate)
            result = StepResult(
                step=step,
                losses=losses,
                learning_rate=rate,
                images=sum(len(batch.image_ids) for batch in group),
                seconds=time.perf_counter() - start,
                data_seconds=data_seconds,
                page_faults=page_faults() - faults,
                resident_mb=resident_mb(),
                peak_resident_mb=peak_resident_mb(),
                exchange_seconds=exchange.exposed_seconds if exchange else 0.0,
                bad_images=tuple(problem for batch in group for problem in batch.bad_images),
            )
        yield result


def update_weights(optimizer: Optimizer, *, learning_rate: float) -> None:
    """Take an optimizer step at the given rate, and let go of the gradients."""
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def accumulate_gradients(
    prepared: PreparedTraining,
    group: list[Batch],
    *,
    step: int,
    focal_form: str = "auto",
    exchange: GradientExchange | None = None,
    phases: Phases = UNWATCHED,
) -> dict[str, float]:
    """Add the average gradient of the batches to the parameters; return the average losses."""
    own = partial(batch_losses, prepared, focal_form=focal_form, phases=phases)
    losses_of = exchange or own
    totals: dict[str, float] = {}
    for number, batch in enumerate(group, start=1):
        held_back = exchange.held_back() if exchange and number < len(group) else nullcontext()
        with held_back:
            losses = losses_of(batch)
            require_finite(losses, step=step, image_ids=batch.image_ids)
            loss = sum(losses.values(), torch.zeros(())) / len(group)
            with phases.phase("backward"):
                exchange.backward(loss) if exchange else loss.backward()
        for name, value in losses.items():
            totals[name] = totals.get(name, 0.0) + value.item() / len(group)
    return totals
