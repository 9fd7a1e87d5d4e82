"""What a run does between steps, with all of its parts at hand: checkpoints, and non-finite steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import InputError, NonFiniteLossError
from retinanet.config import config_to_tree
from retinanet.training.checkpoint_state import State, TrainingPosition
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite_report import nonfinite_line, nonfinite_report
from retinanet.training.resume import setup_of

if TYPE_CHECKING:
    from retinanet.training.trainer import Trainer


def begin_checkpoint(run: "Trainer") -> None:
    """Begin to write weights and all that resuming needs, unless this step's are there.

    Rank 0 writes while training goes on, and all ranks call it. A write that fails is a warning.
    """
    run.settle()
    run.saving.begin(run.model, run.optimizer, state_of(run), epoch=run.epochs_done)


def leave_checkpoint(run: "Trainer") -> None:
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
def leaving_checkpoint(run: "Trainer") -> Iterator[None]:
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


def note_evaluation(run: "Trainer", position: TrainingPosition, *, is_current: bool) -> None:
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


def write_autopsy(run: "Trainer", report: dict[str, Any]) -> Path:
    """Write the state before a step that failed, and a report, beside the checkpoints.

    Raises:
        InputError: It cannot be written.
    """
    return run.saving.autopsy(run.model, run.optimizer, state_of(run), report=report)


def state_of(run: "Trainer") -> State:
    """What a checkpoint says of the run, but for the states of its ranks."""
    return State(
        model=run.description,
        position=position_of(run),
        setup=setup_of(run),
        config=config_to_tree(run.config),
        random_states=[],
        parts={},
    )


def position_of(run: "Trainer") -> TrainingPosition:
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


def note_gradients(run: "Trainer", result: StepResult) -> None:
    """Note the norm of a step's gradients; tell of a step that changed nothing, all ranks.

    Raises:
        NonFiniteLossError: The run cannot go on after it, or is told not to.
    """
    if not result.nonfinite:
        run.nonfinite.norms.append((result.step, result.gradient_norm))
        return
    advice = run.nonfinite.advice(result.nonfinite)
    if advice:
        report = report_of(run, result)
        told = f"{nonfinite_line(report)}; {advice}"
        if run.groups is not None:  # the other groups have gone on: nobody has the state before it
            raise NonFiniteLossError(told)
        raise NonFiniteLossError(f"{told}; {left_of(run, report)}")
    tell_of_skipped(run, result)


def tell_of_skipped(run: "Trainer", result: StepResult) -> None:
    """Tell of a step after which the run goes on; rank 0 does."""
    report = report_of(run, result)
    told = f"{nonfinite_line(report)}; nothing was updated, and the run goes on"
    run.console.print(told, soft_wrap=True, markup=False)
    run.record.nonfinite(report)


def report_of(run: "Trainer", result: StepResult) -> dict[str, Any]:
    """See `nonfinite_report`."""
    return nonfinite_report(
        result,
        annotations=run.data.train.annotations,
        norms_before=run.nonfinite.norms,
        skipped=run.nonfinite.skipped,
    )


def left_of(run: "Trainer", report: dict[str, Any]) -> str:
    """Write down a step that ends the run; returns where, or why not."""
    try:
        left = f"all of it in {write_autopsy(run, report)}"
    except InputError as error:
        left = str(error)
    run.group.barrier()  # the first rank that ends is the end of all
    return left
