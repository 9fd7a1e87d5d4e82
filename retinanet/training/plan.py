"""Which steps a run takes, and after which of them it evaluates."""

from dataclasses import dataclass


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
