"""The steps of a run: their images, the evaluations between them, and their learning rates.

All are functions of the step, so that a resumed run needs no state but its position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.errors import InputError
from retinanet.config_sections import TrainingConfig
from retinanet.training.progress import START, Progress

Ending = Literal["target", "patience", "length"]
"""Why a run takes no further step: `training.target_map`, `training.patience`, or its last step."""


def has_its_length(training: TrainingConfig, *, step: int, epoch: float) -> bool:
    """Return whether a run of these settings has taken its last step."""
    is_long = training.max_steps is not None and step >= training.max_steps
    return is_long or epoch >= training.epochs


def patience_is_exhausted(training: TrainingConfig, evaluations_since_best: int) -> bool:
    """Return whether `training.patience` evaluations have passed without a better mAP."""
    return training.patience is not None and evaluations_since_best >= training.patience


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The plan of all steps; they are optimizer steps, counted from 1; 0 is before the first.

    A run that is resumed with another number of ranks, or other batches, has a new plan, which
    begins at the position of the checkpoint.
    """

    images_per_epoch: int  # Places in an epoch's order: the training images, with repeated ones
    images_per_batch: int  # Images of all ranks together
    gradient_accumulation: int  # Batches a step
    epochs: int
    max_steps: int | None  # Ends the run early
    evaluate_every: int  # Epochs between evaluations
    start: Progress = START  # Where these steps begin

    def __post_init__(self) -> None:
        """Raise InputError if an epoch has fewer batches than a step."""
        if self.steps_per_epoch == 0:
            raise InputError(
                f"training.gradient_accumulation: {self.gradient_accumulation} batches per step, "
                f"but an epoch has only {self.batches_per_epoch}; lower it or training.batch_size"
            )

    @property
    def images_per_step(self) -> int:
        """Images per step of all ranks."""
        return self.images_per_batch * self.gradient_accumulation

    @property
    def batches_per_epoch(self) -> int:
        """Full batches of a rank in an epoch; at least one."""
        # The sampler repeats images if an epoch has fewer than a batch.
        return max(self.images_per_epoch, self.images_per_batch) // self.images_per_batch

    @property
    def steps_per_epoch(self) -> int:
        """Full steps in an epoch."""
        return self.batches_per_epoch // self.gradient_accumulation

    @property
    def first_steps(self) -> int:
        """Steps from the start to the end of its epoch."""
        remaining = max(self.images_per_epoch, self.images_per_batch) - self.start.images
        # After a resume with larger batches, the remaining images may fill no step.
        return max(0, remaining) // self.images_per_step

    @property
    def total_steps(self) -> int:
        """The steps of the complete run, including those before the start."""
        # The run was complete at its start, for example because `training.epochs` was reduced.
        if self.start.epoch >= self.epochs:
            return self.start.step
        later_epochs = self.epochs - self.start.epoch - 1
        steps = self.start.step + self.first_steps + later_epochs * self.steps_per_epoch
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def position(self, step: int) -> tuple[int, int]:
        """Return `Progress.epoch` and `Progress.images` after `step` steps, from the start's on."""
        since = step - self.start.step
        if since < self.first_steps:
            return self.start.epoch, self.start.images + since * self.images_per_step
        epochs, steps = divmod(since - self.first_steps, self.steps_per_epoch)
        return self.start.epoch + 1 + epochs, steps * self.images_per_step

    def end_of_epoch(self, step: int) -> int:
        """Return the last step of the epoch of step `step + 1`, or of the run."""
        end = self.start.step + self.first_steps
        if step >= end:
            end += ((step - end) // self.steps_per_epoch + 1) * self.steps_per_epoch
        return min(end, self.total_steps)

    def ends_epoch(self, step: int) -> bool:
        """Return whether `step` is the last of an epoch or of the run."""
        return step == self.end_of_epoch(step - 1)

    def epochs_done(self, step: int) -> float:
        """Return the epochs after `step` steps, with the fraction of the current one."""
        return self.schedule_step(step) / self.steps_per_epoch

    def schedule_step(self, step: int) -> int:
        """Return the equivalent number of steps of a run that always had the present batch size.

        The learning rate is a function of it. If batches and ranks never changed, it is `step`.
        """
        epoch, images = self.position(step)
        return epoch * self.steps_per_epoch + images // self.images_per_step

    def evaluation_is_due(self, step: int) -> bool:
        """Return whether weights after `step` steps are evaluated."""
        epoch, images = self.position(step)
        # An epoch has ended if no image of the next one is done.
        at_epoch_end = images == 0 and epoch % self.evaluate_every == 0
        return step == self.total_steps or (step > 0 and at_epoch_end)


def learning_rate(settings: TrainingConfig, plan: StepPlan, step: int) -> float:
    """Return the learning rate of the next step, given the number of completed steps."""
    return settings.learning_rate * learning_rate_factor(
        plan.schedule_step(step),
        warmup_steps=round(settings.warmup_epochs * plan.steps_per_epoch),
        warmup_factor=settings.warmup_factor,
        total_steps=plan.schedule_step(plan.total_steps),
        schedule=settings.schedule,
        milestones=[round(epochs * plan.steps_per_epoch) for epochs in settings.milestones],
        milestone_factor=settings.milestone_factor,
    )


def learning_rate_factor(
    step: int,
    *,
    warmup_steps: int,
    warmup_factor: float,
    total_steps: int,
    schedule: str,
    milestones: Sequence[int] = (),
    milestone_factor: float = 1.0,
) -> float:
    """Return the factor of the learning rate in the step after `step` steps.

    The warm-up is linear from `warmup_factor` and advances every step, as MLPerf's reference does
    (`torch.optim.lr_scheduler.LinearLR`). Then the rate is `constant`, or with `cosine` falls to
    zero at the run's end, or with `step` is multiplied by `milestone_factor` after as many steps as
    each of the `milestones` says (`torch.optim.lr_scheduler.MultiStepLR`), in a warm-up too.
    """
    if schedule == "step":
        after_milestones = milestone_factor ** sum(step >= milestone for milestone in milestones)
    else:
        after_milestones = 1.0
    if step < warmup_steps:
        return after_milestones * (warmup_factor + (1 - warmup_factor) * step / warmup_steps)
    if schedule != "cosine":
        return after_milestones
    # The warm-up may fill the whole run.
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
