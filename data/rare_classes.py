"""Rare classes: how often an epoch repeats their images, and the weights of classes in the loss.

Both follow from the training annotations alone, so that every rank and every resumed run has them.
Only boxes of single objects count, as in training.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError, printable
from common.wording import listed
from data.annotations import UNNAMED, Annotations, ClassMap
from data.formats.labels import nearest_name, some

PARTS = 2**16
"""Factors are multiples of 1 / PARTS, so that float64 holds any sum of them exactly."""

Images = int | NDArray[np.float64]
"""A number of images, or how often an epoch has each of them on average, 1 or more [I]."""

ClassWeights = Literal["balanced"] | Mapping[str, float]
"""Values of `training.class_weights`."""


class Objects(NamedTuple):
    """The boxes [B] that are trained on."""

    image: NDArray[np.int64]  # positions among the images of the training
    label: NDArray[np.int64]


def trained_objects(
    annotations: Annotations, rows: NDArray[np.int32], class_map: ClassMap
) -> Objects:
    """Return the boxes of single objects in the images `rows` of the annotations."""
    position = np.full(len(annotations), -1)
    position[rows] = np.arange(len(rows))
    image = np.repeat(position, np.diff(annotations.box_offsets))
    kept = (image >= 0) & ~annotations.box_is_crowd
    return Objects(image[kept], class_map.to_labels(annotations.box_category_ids[kept]))


def repeat_factors(objects: Objects, *, num_images: int, threshold: float) -> Images:
    """Return how often an epoch has each image; the number of images if it repeats none.

    A class that is in a share f of the images has the factor max(1, sqrt(threshold / f)), an image
    the largest of its classes: Gupta, Dollár and Girshick 2019, "LVIS: A Dataset for Large
    Vocabulary Instance Segmentation", arXiv 1908.03195, repeat factor sampling.
    """
    classes = int(objects.label.max(initial=0)) + 1
    image, label = np.divmod(np.unique(objects.image * classes + objects.label), classes)
    share = np.bincount(label, minlength=classes) / num_images
    of_class = np.maximum(1, np.sqrt(threshold / np.maximum(share, 1 / num_images)))
    factors = np.ones(num_images)
    np.maximum.at(factors, image, np.rint(of_class[label] * PARTS) / PARTS)
    return factors if (factors > 1).any() else num_images


def places_per_epoch(images: Images) -> int:
    """Return the number of places in the order of an epoch, the same in each."""
    return images if isinstance(images, int) else math.ceil(images.sum())


def epoch_order(images: Images, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the image at each place of an epoch, a function of seed and epoch.

    A factor is rounded at random, up or down, so that its mean over the epochs is exact: marks at a
    distance of 1 from a random start fall on intervals of the factors' lengths, laid end to end in
    random order (systematic sampling). Unlike rounding each factor by itself, this gives all epochs
    the same length. The sum is rounded up, by one place of a random image at most.
    """
    random = np.random.default_rng([seed, epoch, 0])
    if isinstance(images, int):
        return random.permutation(images)
    shuffled = random.permutation(len(images))
    ends = np.cumsum(images[shuffled])
    marks = np.arange(places_per_epoch(images)) + random.integers(PARTS) / PARTS
    places = np.searchsorted(ends, marks, side="right")
    return random.permutation(shuffled[np.minimum(places, len(images) - 1)])


def require_known_classes(setting: ClassWeights | None, names: Sequence[str]) -> None:
    """Refuse a value of `training.class_weights` with a class that is not among the names.

    Raises:
        InputError: Names the class, and the nearest one.
    """
    known = [name for name in names if name != UNNAMED]
    for name in setting if isinstance(setting, Mapping) else ():
        if name not in known:
            advice = nearest_name(name, known) or f"; the classes are {some(known)}"
            raise InputError(f"training.class_weights: no class {printable(repr(name))}{advice}")


def class_weights(
    setting: ClassWeights, objects: Objects, images: Images, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the weight of each class [K] for a value of `training.class_weights`.

    A mapping has the weights by name; other classes have 1. `balanced` weighs a class by the
    inverse of its boxes in an epoch (Lin et al. 2017, "Focal Loss for Dense Object Detection",
    section 3.1): N / (C n) for n of the N boxes, with C classes that have boxes, which is
    scikit-learn's `class_weight="balanced"`. All classes then count alike, and the mean weight of a
    box is 1. Boxes count as often as `images` repeats them: nothing is made up for twice.

    Raises:
        InputError: There is no class of a name.
    """
    require_known_classes(setting, names)
    if isinstance(setting, Mapping):
        return np.array([setting.get(name, 1.0) for name in names])
    weights = np.ones(len(names))
    repeats = None if isinstance(images, int) else images[objects.image]
    boxes = np.bincount(objects.label, weights=repeats, minlength=len(names))
    present = boxes > 0
    weights[present] = boxes.sum() / (present.sum() * boxes[present])
    return weights


def describe_weights(weights: NDArray[np.float64], names: Sequence[str], *, most: int = 8) -> str:
    """Return the weights of the classes in a line, the largest first."""
    largest = np.argsort(-weights, kind="stable")
    shown = [f"{printable(names[label])} {weights[label]:.3g}" for label in largest[:most].tolist()]
    return listed(shown, most, count=len(weights))


def describe_repeats(images: Images, threshold: float) -> str:
    """Return what `data.repeat_rare` does to an epoch, in a line."""
    if isinstance(images, int):
        return f"none: every class is in {threshold:.3g} of the images or more"
    return (
        f"{int((images > 1).sum()):,} of {len(images):,} images, up to {images.max():.3g} times "
        f"each: {places_per_epoch(images):,} places an epoch"
    )
