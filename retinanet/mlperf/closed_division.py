"""What MLPerf's closed division leaves to nobody: model, data, schedule and target."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retinanet.mlperf.rules import TARGET_MAP
from retinanet.momentum import BETA1


class Rule(NamedTuple):
    """What one field must be."""

    field: str
    is_kept: Callable[[Any], bool]
    wanted: str


def is_(value: object) -> Callable[[Any], bool]:
    """Whether a field has this value."""
    return lambda found: bool(found == value)


CLOSED = (
    Rule("data.image_size", is_(800), "is 800"),
    Rule("data.images_without_boxes", is_("train"), "is train"),
    Rule("data.on_bad_image", is_("stop"), "is stop"),
    Rule("model.norm", is_("frozen"), "is frozen"),
    Rule("model.trainable_layers", is_(3), "is 3"),
    Rule(
        "model.pretrained_backbone", lambda found: found is not None, "is torchvision, or its file"
    ),
    Rule("training.optimizer", is_("adam"), "is adam"),
    Rule("training.beta1", lambda found: found in ("auto", BETA1), f"is {BETA1}"),
    Rule("training.weight_decay", is_(0), "is 0"),
    Rule("training.schedule", is_("constant"), "is constant"),
    Rule("training.clip_gradient_norm", is_(None), "is null"),
    Rule("training.on_nonfinite", is_("stop"), "is stop"),
    Rule("training.max_steps", is_(None), "is null"),
    Rule("training.target_map", is_(TARGET_MAP), f"is {TARGET_MAP}"),
    Rule("evaluation.every", is_(1), "is 1"),
    Rule("distributed.groups", is_(1), "is 1"),
)
"""Batch size, learning rate and warm-up are free (MLPerf Training Rules, Hyperparameters; the
official checker's closed_retinanet.yaml); all else is the reference implementation's. The data set
cannot be told from a configuration: `python -m retinanet mlperf check` counts its images."""


def broken_rules(sections: Mapping[str, Any]) -> list[str]:
    """Which rules a configuration breaks, in words; a section that is itself wrong breaks none.

    Args:
        sections: Their names to objects that have the fields as attributes.
    """
    broken = []
    for rule in CLOSED:
        section, _, name = rule.field.partition(".")
        if section not in sections:
            continue
        found = getattr(sections[section], name)
        if not rule.is_kept(found):
            broken.append(f"{rule.field} {rule.wanted}, not {'null' if found is None else found}")
    return broken
