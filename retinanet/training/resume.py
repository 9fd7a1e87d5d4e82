"""Resuming a run where it stopped: on the same ranks bit for bit, on others from the same image.

What the next steps depend on beside the checkpoint is its `setup` and the configuration. A field
that would give the checkpoint another meaning refuses to be changed; of any other field that steps
depend on a changed value is reported.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim import Optimizer

from common.errors import InputError
from common.machine import processor_name
from launch.process_group import ProcessGroup
from retinanet.config import Config, config_to_tree, resume_marks
from retinanet.config_types import DEFAULT_BETA1, Resume, beta1_of
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Checkpoint, newest_whole
from retinanet.training.run_folder import RunFolder
from retinanet.training.train_state import State, TrainingPosition, load_rank_state_dict

ADVICE = "use the settings of the run's config.yaml, or another run.name"


def checkpoint_to_resume(
    folder: RunFolder, config: Config, *, console: Console
) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run; None where the run was ended before its first.

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


def restore_training(
    checkpoint: Checkpoint | None,
    *,
    group: ProcessGroup,
    model: RetinaNet,
    optimizer: Optimizer,
    classes: dict[str, Any],
    images: int,
) -> TrainingPosition | None:
    """Restore weights and optimizer on rank 0, if it has a checkpoint; all ranks call it.

    Args:
        checkpoint: Rank 0's; the other ranks' do not matter.
        group: All ranks.
        model: Of the configuration.
        optimizer: Of its parameters.
        classes: `ClassMap.to_json` of the training annotations.
        images: Training images.

    Returns:
        How far the run had come, on all ranks; None: it starts from the beginning.

    Raises:
        InputError: The data changed in a way that gives the checkpoint another meaning, or it is
            damaged.
    """
    if checkpoint:
        require_same_data(checkpoint, classes=classes, images=images)
        checkpoint.load_training_state(model, optimizer)
    return group.from_first(lambda: checkpoint.position if checkpoint else None)


def restore_rank_states(
    checkpoint: Checkpoint | None, *, group: ProcessGroup, model: RetinaNet, folder: Path
) -> None:
    """Restore what each rank had of its own, once the engine is prepared; all ranks call it.

    Args:
        checkpoint: Rank 0's; the other ranks' do not matter.
        group: All ranks. Among another number of ranks no state belongs to any.
        model: As the engine has arranged it.
        folder: Of the checkpoints, for the error.

    Raises:
        InputError: The states are damaged.
    """
    states = group.from_first(lambda: checkpoint.rank_states() if checkpoint else [])
    if len(states) == group.size:
        try:
            load_rank_state_dict(states[group.rank], model)
        except ValueError as error:
            raise InputError(f"{folder}: {error}") from error


def notes_on_differences(
    checkpoint: Checkpoint, config: Config, setup: dict[str, Any]
) -> list[str]:
    """Return a line where a resumed run is not bit for bit what it would have been."""
    changed = differences(checkpoint.state, config, setup)
    if not changed:
        return []
    return [
        f"resumed under other conditions: {'; '.join(changed)}; it goes on from the same image, "
        "and not bit for bit as it would have"
    ]


def format_finished(step: int, best_map: float | None, *, is_reached: bool) -> str:
    """Return that there is nothing to do in a resumed run, and what would make something to do."""
    best = "" if best_map is None else f"best mAP {best_map:.3f}; "
    raised = "training.target_map" if is_reached else "training.epochs or training.max_steps"
    return (
        f"finished after step {step}; {best}raise {raised} to train on, or give --overwrite to "
        "begin anew"
    )


SPLIT = "split of batches"
"""Under which the set-up has the images of each rank in a batch."""
EVEN = "even"
"""What it says there where all have as many."""
GROUPS = "compute groups"
BETA1 = "beta1"
DEFAULT_SETUP: dict[str, Any] = {SPLIT: EVEN, GROUPS: 1, BETA1: DEFAULT_BETA1}
"""Values of checkpoints that do not have them."""


def describe_setup(
    config: Config, *, ranks: int, engine: str, exchange: str, split: Sequence[int]
) -> dict[str, Any]:
    """Return what the bits of the next steps depend on, beside configuration and checkpoint.

    Args:
        config: The run's.
        ranks: Of the run.
        engine: `torch` or `ipex`.
        exchange: What averages gradients; `none` for one rank.
        split: Images of each rank in a batch.
    """
    groups = config.distributed.groups
    return {
        "ranks": ranks,
        "threads": torch.get_num_threads(),
        "processor": processor_name(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "engine": engine,
        "gradients by": exchange,
        SPLIT: EVEN if len(set(split)) == 1 else list(split),
        GROUPS: groups,
        BETA1: beta1_of(config.training.beta1, groups=groups),
    }


def differences(state: State, config: Config, setup: dict[str, Any]) -> list[str]:
    """Return what is not as it was when the checkpoint was written, and changes the next steps."""
    before = {**DEFAULT_SETUP, **state.setup}
    changes = [(name, before.get(name), now) for name, now in setup.items()]
    was, tree = state.config, config_to_tree(config)
    changes += [(name, field_of(was, name), now) for name, now in influential_fields(tree)]
    return [f"{name} was {old}, is now {now}" for name, old, now in changes if old != now]


def recorded_split(checkpoint: Checkpoint | None, config: Config, *, ranks: int) -> tuple[int, ...]:
    """Return the images of each rank in a batch, of a run that was and will be split by speed.

    Empty where there is no checkpoint, or one of a given split, of other ranks or other batches.
    """
    if checkpoint is None:
        return ()
    state = checkpoint.state
    batch_size = config.training.batch_size
    was_measured = field_of(state.config, "distributed.batch_split") == "speed"
    is_same = field_of(state.config, "training.batch_size") == batch_size
    if not (was_measured and is_same and state.setup.get("ranks") == ranks):
        return ()
    split = state.setup.get(SPLIT)
    if split == EVEN:
        return (batch_size,) * ranks
    counts = split if isinstance(split, list) else []
    is_split = len(counts) == ranks and all(type(count) is int and count > 0 for count in counts)
    return tuple(counts) if is_split and sum(counts) == ranks * batch_size else ()


def influential_fields(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that steps depend on, by dotted name; sections in sections count as one."""
    has_fixed_rate = field_of(tree, "training.schedule") == "constant"
    marks = resume_marks()
    free = (Resume.FREE, Resume.LENGTH) if has_fixed_rate else (Resume.FREE,)
    for section, fields in tree.items():
        for field, value in fields.items():
            name = f"{section}.{field}"
            if marks.get(section) not in free and marks.get(name) not in free:
                yield name, value


def field_of(tree: dict[str, Any], name: str) -> Any:
    """Return the value of a field by its dotted name; None where there is no such section."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
