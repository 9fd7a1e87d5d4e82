"""Going on where a run stopped."""

from typing import Any

from retinanet.config import Config, config_to_tree
from retinanet.errors import InputError
from retinanet.training.checkpoint import Checkpoint
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
    "training.batch_size",
    "training.gradient_accumulation",
    "training.optimizer",
    "training.momentum",
    "engine.precision",
)
"""With another value of these a checkpoint would mean something else."""

ADVICE = "use the settings of the run's config.yaml, or another run.name"


def require_same_settings(checkpoint: Checkpoint, config: Config) -> None:
    """Refuse to resume under settings that give the checkpoint another meaning.

    Raises:
        InputError: Names the field, what it was and what it is.
    """
    tree = config_to_tree(config)
    for name in KEPT_FIELDS:
        before, now = field_of(checkpoint.config, name), field_of(tree, name)
        if before != now:
            raise InputError(
                f"{checkpoint.folder}: cannot be resumed: {name} was {before}, is now {now}; "
                f"{ADVICE}"
            )


def field_of(tree: dict[str, Any], name: str) -> Any:
    """The value of a dotted name of a section's field."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part)
    return value


def resume_training(run: Run, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's weights, optimizer, random states and position into a run.

    Raises:
        InputError: The data changed in a way that gives the checkpoint another meaning, or it is
            damaged.
    """
    if checkpoint.model.classes != run.description.classes:
        raise InputError(
            f"{checkpoint.folder}: cannot be resumed: the training annotations' categories "
            f"changed; {ADVICE}"
        )
    position = checkpoint.position
    if position.steps_per_epoch != run.plan.steps_per_epoch:
        raise InputError(
            f"{checkpoint.folder}: cannot be resumed: an epoch had {position.steps_per_epoch} "
            f"steps and would have {run.plan.steps_per_epoch}: the number of ranks or of training "
            "images changed; use as many ranks and the same annotations, or another run.name"
        )
    checkpoint.load_training_state(run.model, run.optimizer)
    run.step = position.step
    run.map_here = position.map_here
    run.best_map = position.best_map
