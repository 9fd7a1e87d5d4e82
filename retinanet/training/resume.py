"""Going on where a run stopped: on the same ranks bit for bit, on others from the same image."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from retinanet.config import Config, config_to_tree
from retinanet.errors import InputError
from retinanet.training.checkpoint import Checkpoint, newest_whole
from retinanet.training.plan import Position
from retinanet.training.rank_states import restore_own_state
from retinanet.training.run_folder import RunFolder
from retinanet.training.setup import differences, field_of, setup_of

if TYPE_CHECKING:
    from retinanet.training.run import Run

KEPT_FIELDS = (
    "run.seed",
    "data.scenes",
    "data.image_size",
    "data.class_indices",
    "data.images_without_boxes",
    "model.norm",
    "model.trainable_layers",
    "model.num_classes",
    "training.optimizer",
    "training.momentum",
)
"""With another value of these a checkpoint would mean something else."""

ADVICE = "use the settings of the run's config.yaml, or another run.name"


def checkpoint_to_resume(
    folder: RunFolder, config: Config, *, console: Console
) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None where the run was ended before its first.

    Newer ones that are damaged are named on the console.

    Raises:
        InputError: There are checkpoints, and none is whole; or it was written under settings that
            give it another meaning.
    """
    checkpoint, problems = newest_whole(folder.checkpoints)
    if checkpoint is None and problems:
        raise InputError(
            f"{problems[0]}; no checkpoint in {folder.checkpoints} is whole; give --overwrite to "
            "begin anew, or another run.name"
        )
    for problem in problems:
        console.print(f"warning: {problem}; skipped", soft_wrap=True, markup=False)
    if checkpoint is None:
        console.print(f"{folder.path}: no checkpoint yet: the run begins anew", soft_wrap=True)
        return None
    require_same_settings(checkpoint, config)
    return checkpoint


def require_same_settings(checkpoint: Checkpoint, config: Config) -> None:
    """Refuse to resume under settings that give the checkpoint another meaning.

    Raises:
        InputError: Names the field, what it was and what it is.
    """
    tree = config_to_tree(config)
    for name in KEPT_FIELDS:
        before, now = field_of(checkpoint.state.config, name), field_of(tree, name)
        if before != now:
            raise InputError(
                f"{checkpoint.folder}: cannot be resumed: {name} was {before}, is now {now}; "
                f"{ADVICE}"
            )


def require_same_data(checkpoint: Checkpoint, *, classes: dict[str, Any], images: int) -> None:
    """Refuse data that give the checkpoint another meaning.

    Args:
        checkpoint: The one to resume from.
        classes: `ClassMap.to_json` of the training annotations.
        images: Training images.

    Raises:
        InputError: Categories or images are not what they were.
    """
    begin = f"{checkpoint.folder}: cannot be resumed: the training annotations'"
    if checkpoint.model.classes != classes:
        raise InputError(f"{begin} categories changed; {ADVICE}")
    before = checkpoint.position.images_per_epoch
    if before != images:
        raise InputError(
            f"{begin} images changed: there were {before}, there are {images}; use the same "
            "annotations, or another run.name"
        )


def take_up(run: "Run", checkpoint: Checkpoint | None) -> bool:
    """Take up weights, optimizer and position of a checkpoint, if rank 0 has one; all ranks call.

    Returns:
        Whether there is anything left to do; where there is not, it is told.

    Raises:
        InputError: The data changed in a way that gives the checkpoint another meaning, or it is
            damaged.
    """
    if checkpoint:
        images = len(run.data.train)
        require_same_data(checkpoint, classes=run.description.classes, images=images)
        checkpoint.load_training_state(run.model, run.optimizer)
    position = run.group.from_first(lambda: checkpoint.position if checkpoint else None)
    if position is None:
        return True
    start = Position(position.step, position.epoch, position.images)
    run.plan = replace(run.plan, start=start)
    run.step = position.step
    run.map_here, run.best_map = position.map_here, position.best_map
    run.nonfinite.skipped = position.skipped_steps
    if not run.is_finished() or run.evaluation_is_due():
        return True
    say_finished(run)
    return False


def say_finished(run: "Run") -> None:
    """Tell that there is nothing to do, and what would make something to do."""
    best = "" if run.best_map is None else f"best mAP {run.best_map:.3f}; "
    raised = "training.epochs or training.max_steps"
    if run.target_is_reached():
        raised = "training.target_map"
    run.say(
        f"{run.folder.path}: finished after step {run.step}; {best}raise {raised} to train on, or "
        "give --overwrite to begin anew"
    )


def take_up_the_rest(run: "Run", checkpoint: Checkpoint | None) -> None:
    """Once the engine is there: each rank's own states, tidiness around the checkpoint, notes.

    All ranks call it.

    Raises:
        InputError: The states are damaged.
    """
    states = run.group.from_first(lambda: checkpoint.rank_states() if checkpoint else [])
    if len(states) == run.group.size:  # among another number of ranks none is anybody's
        try:
            restore_own_state(states[run.group.rank], run.model)
        except ValueError as error:
            raise InputError(f"{run.folder.checkpoints}: {error}") from error
    if checkpoint is None:
        return
    run.notes += run.saving.go_on_from(checkpoint, epoch=run.epochs_done)
    changed = differences(checkpoint.state, run.config, setup_of(run))
    if changed:
        run.notes.append(
            f"resumed under other conditions: {'; '.join(changed)}; it goes on from the same "
            "image, and not bit for bit as it would have"
        )
