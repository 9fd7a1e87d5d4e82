"""Going on where a run stopped: on the same ranks bit for bit, on others from the same image.

TODO-DOC What a run's next bits depend on, beside its checkpoint; what differs where it is resumed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from common.errors import InputError
from common.machine import processor_name
from retinanet.config import Config, config_to_tree, resume_marks
from retinanet.config_types import DEFAULT_BETA1, Resume, beta1_of
from retinanet.training.checkpoint import Checkpoint, newest_whole
from retinanet.training.checkpoint_state import State
from retinanet.training.distributed import restore_own_state
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import Position

if TYPE_CHECKING:
    from retinanet.training.trainer import Trainer

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
    must_match = [name for name, mark in resume_marks().items() if mark is Resume.MUST_MATCH]
    for name in must_match:
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


def take_up(run: "Trainer", checkpoint: Checkpoint | None) -> bool:
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


def say_finished(run: "Trainer") -> None:
    """Tell that there is nothing to do, and what would make something to do."""
    best = "" if run.best_map is None else f"best mAP {run.best_map:.3f}; "
    raised = "training.epochs or training.max_steps"
    if run.target_is_reached():
        raised = "training.target_map"
    run.say(
        f"{run.folder.path}: finished after step {run.step}; {best}raise {raised} to train on, or "
        "give --overwrite to begin anew"
    )


def take_up_the_rest(run: "Trainer", checkpoint: Checkpoint | None) -> None:
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


SPLIT = "split of batches"
"""Under which the set-up has the images of each rank in a batch."""
EVEN = "even"
"""What it says there where all have as many."""
GROUPS = "compute groups"
BETA1 = "beta1"
UNSAID: dict[str, Any] = {SPLIT: EVEN, GROUPS: 1, BETA1: DEFAULT_BETA1}
"""What was so in checkpoints that do not say it."""


def setup_of(run: "Trainer") -> dict[str, Any]:
    """What the bits of the next steps depend on, beside configuration and checkpoint."""
    return {
        "ranks": run.group.size,
        "threads": torch.get_num_threads(),
        "processor": processor_name(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "engine": run.engine,
        "gradients by": run.exchange.way if run.exchange else "none",
        SPLIT: EVEN if run.batches.is_even else list(run.batches.images),
        GROUPS: run.config.distributed.groups,
        BETA1: beta1_of(run.config.training.beta1, groups=run.config.distributed.groups),
    }


def differences(state: State, config: Config, setup: dict[str, Any]) -> list[str]:
    """What is not as it was when the checkpoint was written, and changes what comes: in words."""
    before = {**UNSAID, **state.setup}
    changes = [(name, before.get(name), now) for name, now in setup.items()]
    was, tree = state.config, config_to_tree(config)
    changes += [(name, field_of(was, name), now) for name, now in influential_fields(tree)]
    return [f"{name} was {old}, is now {now}" for name, old, now in changes if old != now]


def recorded_split(checkpoint: Checkpoint | None, config: Config, *, ranks: int) -> tuple[int, ...]:
    """The images of each rank in a batch, of a run that was split by speed and shall be again.

    Empty where there is no checkpoint, or of a split that was told, of other ranks or batches.
    """
    if checkpoint is None:
        return ()
    state = checkpoint.state
    batch_size = config.training.batch_size
    was_measured = field_of(state.config, "distributed.batch_split") == "speed"
    is_same = field_of(state.config, "training.batch_size") == batch_size
    if not (was_measured and is_same and state.setup.get("ranks") == ranks):
        return ()
    found = state.setup.get(SPLIT)
    if found == EVEN:
        return (batch_size,) * ranks
    counts = found if isinstance(found, list) else []
    is_split = len(counts) == ranks and all(type(one) is int and one > 0 for one in counts)
    return tuple(counts) if is_split and sum(counts) == ranks * batch_size else ()


def influential_fields(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that steps depend on, by dotted name; sections in sections count as one."""
    has_fixed_rate = field_of(tree, "training.schedule") == "constant"
    marks = resume_marks()
    free = (Resume.FREE, Resume.LENGTH) if has_fixed_rate else (Resume.FREE,)
    for section, fields in tree.items():
        for field, value in fields.items():
            name = f"{section}.{field}"
            if marks.get(section) not in free and marks.get(name) not in free:
                yield name, value


def field_of(tree: dict[str, Any], name: str) -> Any:
    """The value of a dotted name of a section's field; None where there is no such section."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
