"""A data set's two splits and the classes that they share."""

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rich.console import Console

from data.annotations import Annotations
from data.classes import ClassMap
from data.columns import shown
from data.dataset import DetectionDataset
from data.index_cache import open_annotations
from data.sources import Split
from retinanet.errors import InputError

MOST_CLASSES = 99_999
"""As `model.num_classes`: each is an output of the model, for every anchor."""


class DetectionData(NamedTuple):
    """What a run trains on and is evaluated on."""

    train: DetectionDataset
    validation: DetectionDataset
    classes: ClassMap


def open_data(
    train: Split,
    validation: Split,
    *,
    image_size: int,
    class_indices: str,
    num_classes: int | None,
    skip_images_without_boxes: bool,
    decoder: str = "pillow",
    replace_bad_images: bool = False,
    console: Console | None = None,
) -> DetectionData:
    """Open both splits' annotations and settle the classes from the training split's.

    Args:
        train: Where the training split lies.
        validation: Where the held-out split lies.
        image_size: Side of the square that images are resized to. [pixels]
        class_indices: `contiguous` or `category_id`.
        num_classes: Outputs of the model; None takes what the categories need.
        skip_images_without_boxes: Whether training leaves them out.
        decoder: Of images, as `resolve_decoder` gives it.
        replace_bad_images: Whether another image stands in for one that cannot be read.
        console: Where to show the progress of making an index, which annotations need once.

    Raises:
        InputError: Annotations are not COCO's, or the categories differ or do not fit.
    """
    train_annotations = open_annotations(train.annotations, console=console)
    validation_annotations = open_annotations(validation.annotations, console=console)
    source = str(train.annotations)
    classes = class_map_of(
        train_annotations, source=source, class_indices=class_indices, num_classes=num_classes
    )
    categories = validation_annotations.category_ids, validation_annotations.category_names
    classes.check_categories(*categories, file=validation.annotations)
    dataset = partial(
        DetectionDataset,
        class_map=classes,
        image_size=image_size,
        decoder=decoder,
        replace_bad_images=replace_bad_images,
    )
    return DetectionData(
        train=dataset(
            train_annotations,
            train.images,
            train=True,
            skip_images_without_boxes=skip_images_without_boxes,
            source=source,
        ),
        validation=dataset(
            validation_annotations,
            validation.images,
            train=False,
            source=str(validation.annotations),
        ),
        classes=classes,
    )


def class_map_of(
    annotations: Annotations, *, source: str, class_indices: str, num_classes: int | None
) -> ClassMap:
    """The model's class indices for these categories.

    Raises:
        InputError: The categories do not fit `num_classes`, or a name is no text.
    """
    ids, names = annotations.category_ids, annotations.category_names
    require_text(names, source=source)
    if class_indices == "category_id":
        outputs = int(ids.max()) + 1 if num_classes is None else num_classes
        if outputs > MOST_CLASSES:
            raise InputError(
                f"{source}: categories: id {ids.max()} would need {outputs:,} classes, of at most "
                f"{MOST_CLASSES:,}; set data.class_indices=contiguous"
            )
        return ClassMap.by_category_id(ids, names, outputs, source=source)
    if num_classes not in (None, len(ids)):
        raise InputError(
            f"{source}: has {len(ids)} categories, model.num_classes is {num_classes}; "
            "leave it out, or set data.class_indices=category_id"
        )
    return ClassMap.contiguous(ids, names)


def require_text(names: Sequence[str], *, source: str) -> None:
    """Refuse names that a checkpoint's JSON cannot hold.

    Raises:
        InputError: One has half of a surrogate pair, which is no character.
    """
    for index, name in enumerate(names):
        if re.search("[\ud800-\udfff]", name):
            raise InputError(
                f"{source}: categories[{index}].name: {shown(name)} is no Unicode text; rename it"
            )
