"""What can be told of a run's data at once: how many images and classes there are."""

from dataclasses import dataclass
from pathlib import Path

from data.annotations import Annotations
from data.coco_json import read_annotations
from data.index_cache import current_index, index_homes, index_of_folder, stamp_of
from data.opening import class_map_of
from data.scenes.objects import KINDS
from retinanet.config import Config
from retinanet.configured_splits import configured_split
from retinanet.errors import InputError

READ_UP_TO = 30_000_000
"""A JSON file of so many bytes is read in a second. Above that it waits for its index."""


@dataclass(frozen=True, kw_only=True)
class KnownData:
    """Sizes; None where only the run itself will tell."""

    num_classes: int | None
    train_images: int | None
    validation_images: int | None


def known_data(config: Config) -> KnownData:
    """From the configuration and from indexes that are there; nothing is made, nothing is read."""
    scenes, wanted = config.data.scenes, config.model.num_classes
    if scenes is not None:
        classes = len(KINDS) if wanted is None else wanted
        return KnownData(
            num_classes=classes, train_images=scenes.train, validation_images=scenes.validation
        )
    try:
        train = indexed(configured_split(config.data, "train", root=config.data.root).annotations)
        split = configured_split(config.data, "validation", root=config.data.root)
        validation = indexed(split.annotations)
        if wanted is None and train is not None:
            wanted = class_map_of(
                train, source="", class_indices=config.data.class_indices, num_classes=None
            ).num_classes
    except InputError:  # whoever opens the data says it
        train = validation = None
    return KnownData(
        num_classes=wanted,
        train_images=None if train is None else len(train),
        validation_images=None if validation is None else len(validation),
    )


def indexed(path: Path) -> Annotations | None:
    """Annotations whose index is there.

    Raises:
        InputError: They cannot be read, or a folder is no index.
    """
    if path.is_dir():
        return index_of_folder(path).annotations
    stamp = stamp_of(path)
    found = (current_index(home, stamp) for home in index_homes(path))
    return next((one.annotations for one in found if one), None)


def indexed_or_small(path: Path) -> Annotations | None:
    """`indexed`, or read from the file where that takes a second; no index is made.

    Raises:
        InputError: They cannot be read, or are not COCO's.
    """
    annotations = indexed(path)
    if annotations is None and stamp_of(path).size <= READ_UP_TO:
        annotations = read_annotations(path)
    return annotations
