"""What a run's next bits depend on, beside its checkpoint; what differs where it is resumed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from retinanet.config import Config, config_to_tree
from retinanet.momentum import BETA1 as DEFAULT_BETA1
from retinanet.momentum import beta1_of
from retinanet.processor import processor_name
from retinanet.training.checkpoint import Checkpoint, State

if TYPE_CHECKING:
    from retinanet.training.run import Run

FREE_SECTIONS = ("checkpoint", "launch", "mlperf", "profile")
FREE_FIELDS = (
    "run.root",
    "run.name",
    "data.root",
    "data.train_annotations",
    "data.train_images",
    "data.validation_annotations",
    "data.validation_images",
    "data.on_bad_image",
    "data.bad_image_limit",
    "data.workers",
    "data.reserve_cores",
    "model.pretrained_backbone",
    "training.beta1",
    "training.on_nonfinite",
    "training.nonfinite_limit",
    "training.target_map",
    "evaluation.every",
    "evaluation.batch_size",
    "evaluation.metric",
    "evaluation.overlap",
    "evaluation.pictures",
    "engine.name",
    "engine.allocator",
    "distributed.backend",
    "distributed.batch_split",
    "distributed.groups",
    "distributed.timeout_s",
)
"""No step's weights depend on these, or what they come to is in the set-up."""

SPLIT = "split of batches"
"""Under which the set-up has the images of each rank in a batch."""
EVEN = "even"
"""What it says there where all have as many."""
GROUPS = "compute groups"
BETA1 = "beta1"
UNSAID: dict[str, Any] = {SPLIT: EVEN, GROUPS: 1, BETA1: DEFAULT_BETA1}
"""What was so in checkpoints that do not say it."""

LENGTHS = ("training.epochs", "training.max_steps")
"""Of these only a learning rate that falls until the run's end depends."""


def setup_of(run: "Run") -> dict[str, Any]:
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
    constant = field_of(tree, "training.schedule") == "constant"
    for section, fields in tree.items():
        for field, value in fields.items():
            name = f"{section}.{field}"
            if constant and name in LENGTHS:
                continue
            if section not in FREE_SECTIONS and name not in FREE_FIELDS:
                yield name, value


def field_of(tree: dict[str, Any], name: str) -> Any:
    """The value of a dotted name of a section's field; None where there is no such section."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
