"""Resuming a run: bit for bit on the same ranks, on others from the same image.

Beside the checkpoint, the next steps depend on the `setup` and on the configuration. Fields that
the checkpoint does not fit with another value must not change; changes of other fields that steps
depend on are reported.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

from common.errors import InputError
from common.machine import processor_name
from retinanet.config import SECTIONS, Config, marked_settings
from retinanet.config_types import DEFAULT_ARCHITECTURE, DEFAULT_BETA1, Resume, resolve_beta1
from retinanet.training.checkpoint import Checkpoint, newest_valid
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import Ending
from retinanet.training.train_state import State

ADVICE = "use the settings of the run's config.yaml, or another run.name"

SPLIT = "split of batches"  # Key of the set-up: images of each rank in a batch
EVEN = "even"  # Its value if all ranks have the same number
GROUPS = "compute groups"
BETA1 = "beta1"
DEFAULT_SETUP: dict[str, Any] = {SPLIT: EVEN, GROUPS: 1, BETA1: DEFAULT_BETA1}
"""Values for older checkpoints, which do not have these keys."""


def checkpoint_to_resume(
    folder: RunFolder, config: Config, *, console: Console
) -> Checkpoint | None:
    """Return the newest complete checkpoint of a run; None if the run ended before its first one.

    A warning on the console names newer ones, which are damaged.

    Raises:
        InputError: All checkpoints are damaged, or the one to resume from does not fit.
    """
    checkpoint, problems = newest_valid(folder.checkpoints)
    if checkpoint is None and problems:
        raise InputError(
            f"{folder.checkpoints}: all checkpoints are damaged ({problems[0]}); give --overwrite "
            "to start from step 0, or set run.name"
        )
    for problem in problems:
        console.print(f"warning: {problem}; skipped", soft_wrap=True, markup=False)
    if checkpoint is None:
        text = f"{folder.path}: contains no checkpoint yet; the run starts from step 0"
        console.print(text, soft_wrap=True, markup=False)
        return None
    require_same_settings(checkpoint, config)
    return checkpoint


def require_same_settings(checkpoint: Checkpoint, config: Config) -> None:
    """Refuse to resume under settings that the checkpoint does not fit.

    Raises:
        InputError: Names the field, its value in the checkpoint and the value now.
    """
    for name, now, mark in marked_settings(config, Resume):
        before = recorded_field(checkpoint.state.config, name)
        if mark is Resume.MUST_MATCH and before != now:
            raise InputError(
                f"{checkpoint.folder}: cannot be resumed: {name} was {before}, is now {now}; "
                f"{ADVICE}"
            )


def require_same_data(checkpoint: Checkpoint, *, classes: dict[str, Any], images: int) -> None:
    """Refuse training annotations that the checkpoint does not fit.

    `classes` is their `ClassMap.to_json`, `images` the number of images in an epoch.

    Raises:
        InputError: Categories or images are not what they were.
    """
    problem = f"{checkpoint.folder}: cannot be resumed: the training annotations'"
    if checkpoint.model.classes != classes:
        raise InputError(f"{problem} categories changed; {ADVICE}")
    before = checkpoint.position.images_per_epoch
    if before != images:
        raise InputError(
            f"{problem} images changed: there were {before} in an epoch, there are {images}; use "
            "the same annotations, or another run.name"
        )


FIELDS_TO_RAISE: dict[Ending, str] = {
    "target": "training.target_map",
    "patience": "training.patience",
    "length": "training.epochs or training.max_steps",
}
"""What continues a run that has ended."""


def format_finished(step: int, best_map: float | None, *, ending: Ending) -> str:
    """Return a message that the run is finished, and what to change to continue training."""
    best = "" if best_map is None else f"best mAP {best_map:.3f}; "
    return (
        f"finished after step {step}; {best}increase {FIELDS_TO_RAISE[ending]} to continue, or "
        "give --overwrite to start from step 0"
    )


def describe_setup(
    config: Config, *, ranks: int, engine: str, exchange: str, split: Sequence[int]
) -> dict[str, Any]:
    """Return the conditions of the next steps besides configuration and checkpoint.

    `exchange` is the backend of gradient averaging, `none` for one rank; `split` has the images of
    each rank in a batch.
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
        BETA1: resolve_beta1(config.training.beta1, groups=groups),
    }


def differences(state: State, config: Config, setup: dict[str, Any]) -> list[str]:
    """Return the changes since the checkpoint was written that affect the next steps."""
    before = {**DEFAULT_SETUP, **state.setup}
    changes = [(name, before.get(name), now) for name, now in setup.items()]
    # The length of a run changes the rates of a cosine schedule alone.
    has_fixed_rate = config.training.schedule != "cosine"
    free = (Resume.FREE, Resume.LENGTH) if has_fixed_rate else (Resume.FREE,)
    changes += [
        (name, recorded_field(state.config, name), value)
        for name, value, mark in marked_settings(config, Resume)
        if mark not in free
    ]
    return [f"{name} was {old}, is now {now}" for name, old, now in changes if old != now]


def recorded_split(checkpoint: Checkpoint | None, config: Config, *, ranks: int) -> tuple[int, ...]:
    """Return the checkpoint's split of a batch, for a run that was and will be split by speed.

    Empty if there is no checkpoint, or if its split was configured, or for other ranks or batches.
    """
    if checkpoint is None:
        return ()
    state = checkpoint.state
    batch_size = config.training.batch_size
    was_measured = get_field(state.config, "distributed.batch_split") == "speed"
    is_same = get_field(state.config, "training.batch_size") == batch_size
    if not (was_measured and is_same and state.setup.get("ranks") == ranks):
        return ()
    split = state.setup.get(SPLIT)
    if split == EVEN:
        return (batch_size,) * ranks
    # `setup` is free JSON that only a checksum protects, so its types and sums are checked.
    counts = split if isinstance(split, list) else []
    is_split = len(counts) == ranks and all(type(count) is int and count > 0 for count in counts)
    return tuple(counts) if is_split and sum(counts) == ranks * batch_size else ()


def recorded_field(tree: dict[str, Any], name: str) -> Any:
    """Return a field of a checkpoint's configuration; its default if the checkpoint is older."""
    section, _, field = name.rpartition(".")
    values = get_field(tree, section)
    if not isinstance(values, dict) or field in values:
        return get_field(tree, name)
    defaults = {field.name: field.default for field in dataclasses.fields(SECTIONS[section])}
    # The default of a part of the architecture, `auto`, is not what a model has.
    return DEFAULT_ARCHITECTURE._asdict().get(field, defaults.get(field))


def get_field(tree: dict[str, Any], name: str) -> Any:
    """Return the value of a field by its dotted name; None if there is no such section."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
