"""Which steps a run takes, and after which of them it evaluates."""

from dataclasses import dataclass

from retinanet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Steps are optimizer steps, counted from 1 as they are done; 0 is before the first."""

    batches_per_epoch: int
    """Batches that a rank gets in an epoch."""
    gradient_accumulation: int
    """Batches a step."""
    epochs: int
    max_steps: int | None
    """Ends the run early."""
    evaluate_every: int
    """Epochs between evaluations."""

    @property
    def steps_per_epoch(self) -> int:
        """Whole steps in an epoch."""
        return self.batches_per_epoch // self.gradient_accumulation

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        steps = self.epochs * self.steps_per_epoch
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def evaluation_is_due(self, step: int) -> bool:
        """Whether weights after `step` steps are evaluated."""
        at_epoch_end = step % (self.evaluate_every * self.steps_per_epoch) == 0
        return step == self.total_steps or (step > 0 and at_epoch_end)

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, and the batch in it, that follow after `step` steps."""
        epoch, steps = divmod(step, self.steps_per_epoch)
        return epoch, steps * self.gradient_accumulation


def plan_steps(
    *,
    batches_per_epoch: int,
    gradient_accumulation: int,
    epochs: int,
    max_steps: int | None,
    evaluate_every: int,
) -> StepPlan:
    """The steps that a configuration asks for; see `StepPlan`.

    Raises:
        InputError: An epoch has fewer batches than a step.
    """
    if batches_per_epoch < gradient_accumulation:
        raise InputError(
            f"training.gradient_accumulation: {gradient_accumulation} batches a step, "
            f"but an epoch has only {batches_per_epoch}; lower it or training.batch_size"
        )
    return StepPlan(
        batches_per_epoch=batches_per_epoch,
        gradient_accumulation=gradient_accumulation,
        epochs=epochs,
        max_steps=max_steps,
        evaluate_every=evaluate_every,
    )
