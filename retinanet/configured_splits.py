"""Where the splits lie that a configuration names."""

from pathlib import Path

from data.sources import Split, SplitName, find_split
from retinanet.config import DataConfig


def configured_split(settings: DataConfig, split: SplitName, *, root: Path | None) -> Split:
    """A split's annotations and images, by `root` where `settings` gives no paths of its own.

    `root` is `settings.root`, or the folder of drawn scenes. Raises InputError as `find_split`.
    """
    given = {
        "train": (settings.train_annotations, settings.train_images),
        "validation": (settings.validation_annotations, settings.validation_images),
    }
    annotations, images = given[split]
    return find_split(root, split, annotations=annotations, images=images)
