"""Going on where a run stopped."""

import dataclasses

from retinanet.errors import InputError
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.run import Run


def resume_training(run: Run) -> None:
    """Put the last checkpoint's weights, optimizer, random states and position into a run.

    Raises:
        InputError: The configuration or the data changed in a way that gives the checkpoint
            another meaning, or it is damaged.
    """
    checkpoint = read_checkpoint(run.folder.checkpoints / "last")
    advice = "use the settings of the run's config.yaml, or another run.name"
    for field in dataclasses.fields(run.description):
        before = getattr(checkpoint.model, field.name)
        now = getattr(run.description, field.name)
        if before != now:
            change = "changed" if field.name == "classes" else f"was {before}, is now {now}"
            raise InputError(
                f"{checkpoint.folder}: cannot be resumed: {field.name} {change}; {advice}"
            )
    position = checkpoint.position
    if position.steps_per_epoch != run.plan.steps_per_epoch:
        raise InputError(
            f"{checkpoint.folder}: cannot be resumed: an epoch had {position.steps_per_epoch} "
            f"steps and would have {run.plan.steps_per_epoch}; {advice}"
        )
    checkpoint.load_training_state(run.model, run.optimizer)
    run.step = position.step
    run.map_here = position.map_here
    run.best_map = position.best_map
