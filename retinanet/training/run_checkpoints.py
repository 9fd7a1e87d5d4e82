"""A run's checkpoints: begun between steps, left behind at its end, and when a step breaks it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinanet.config import config_to_tree
from retinanet.errors import InputError
from retinanet.training.checkpoint import State, TrainingPosition
from retinanet.training.setup import setup_of

if TYPE_CHECKING:
    from retinanet.training.run import Run


def begin_checkpoint(run: "Run") -> None:
    """Begin to write weights and all that resuming needs, unless this step's are there.

    Rank 0 writes while training goes on, and all ranks call it. A write that fails is a warning.
    """
    run.settle()
    run.saving.begin(run.model, run.optimizer, state_of(run), epoch=run.epochs_done)


def leave_checkpoint(run: "Run") -> None:
    """Write a checkpoint and wait until it is on the disk; all ranks call it.

    Raises:
        InputError: It could not be written.
    """
    begin_checkpoint(run)
    if run.saving.is_there(run.step):
        return
    raise InputError(
        f"{run.folder.checkpoints}: the checkpoint after step {run.step} could not be written: "
        f"{run.saving.problem()}; make room, then go on with: {run.resuming_command}"
    )


@contextmanager
def leaving_checkpoint(run: "Run") -> Iterator[None]:
    """An image that cannot be read, for example, costs nothing that was trained before.

    Raises:
        InputError: What was wrong, and how to go on.
    """
    try:
        yield
    except InputError as error:
        if run.step == 0:
            raise
        leave_checkpoint(run)
        raise InputError(f"{error}; then go on with: {run.resuming_command}") from error


def note_evaluation(run: "Run", position: TrainingPosition, *, is_current: bool) -> None:
    """Put the mAP of weights into their checkpoint; `best` follows the highest.

    Args:
        run: The run; all ranks call it.
        position: Of the weights, with their mAP.
        is_current: Whether the model still has them: a write that failed is tried once more.
    """
    if is_current and not run.saving.is_there(position.step):
        begin_checkpoint(run)
    if run.saving.is_there(position.step):
        run.saving.evaluated(position)


def write_autopsy(run: "Run", report: dict[str, Any]) -> Path:
    """Write the state before a step that failed, and a report, beside the checkpoints.

    Raises:
        InputError: It cannot be written.
    """
    return run.saving.autopsy(run.model, run.optimizer, state_of(run), report=report)


def state_of(run: "Run") -> State:
    """What a checkpoint says of the run, but for the states of its ranks."""
    return State(
        model=run.description,
        position=position_of(run),
        setup=setup_of(run),
        config=config_to_tree(run.config),
        random_states=[],
        parts={},
    )


def position_of(run: "Run") -> TrainingPosition:
    """How far the run has come, as a checkpoint keeps it."""
    here = run.plan.position(run.step)
    return TrainingPosition(
        step=run.step,
        epoch=here.epoch,
        images=here.images,
        images_per_epoch=run.plan.images_per_epoch,
        map_here=run.map_here,
        best_map=run.best_map,
        skipped_steps=run.nonfinite.skipped,
    )
