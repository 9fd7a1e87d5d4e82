"""What a run's next bits depend on, beside its checkpoint; what differs where it is resumed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from retinanet.config import Config, config_to_tree
from retinanet.processor import processor_name
from retinanet.training.checkpoint import State

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
    "distributed.timeout_s",
)
"""No step's weights depend on these, or what they come to is in the set-up."""

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
    }


def differences(state: State, config: Config, setup: dict[str, Any]) -> list[str]:
    """What is not as it was when the checkpoint was written, and changes what comes: in words."""
    before = state.setup
    changes = [(name, before.get(name), now) for name, now in setup.items()]
    was, tree = state.config, config_to_tree(config)
    changes += [(name, field_of(was, name), now) for name, now in influential_fields(tree)]
    return [f"{name} was {old}, is now {now}" for name, old, now in changes if old != now]


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
