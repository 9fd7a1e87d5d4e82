"""What to do next: findings from the numbers of a detector, in words for everybody.

Each finding is derived from the material alone, with the limits below. They are rules of thumb, not
measurements: they choose what a person should look at first.
"""

import math
from collections.abc import Iterator

import numpy as np

from common.page import Suggestion
from common.wording import counted, listed
from data.annotations import shown_size
from retinanet.evaluation.metric import ClassResult
from retinanet.report.material import Material
from retinanet.report.mistakes import Kind, confused_pairs

STILL_RISING = 0.05  # Rise of mAP in the last evaluation, relative, from which more epochs help
FALLEN = 0.95  # mAP of the last evaluation relative to the best, below which training was too long
FEW_BOXES = 100  # Labelled boxes of a split below which all numbers are rough
FEW_CLASS_BOXES = 20  # Labelled boxes of a class below which its numbers are rough
FEWEST_BOXES = 5  # Labelled boxes of a class without which it is not compared with others
WEAK = 0.5  # AP50 of a class relative to the median class, below which it is named
PAIR_BOXES, PAIR_SHARE = 3, 0.1  # Swaps of a pair of classes from which it is named
MANY = 0.15  # Share of the boxes from which a kind of mistake is named
MOST_MISSED = 0.3  # Share of the true boxes
SMALL = 0.5  # mAP of small objects relative to large ones, below which they are named
NAMES = 5  # Classes or pairs that a finding names


def all_suggestions(material: Material) -> list[Suggestion]:
    """Return all findings; those that make the numbers doubtful come first."""
    return [
        *doubts(material),
        *length_of_training(material),
        *confusions(material),
        *weak_classes(material),
        *small_objects(material),
        *kinds_of_mistakes(material),
    ]


def doubts(material: Material) -> Iterator[Suggestion]:
    """Yield reasons not to trust the numbers."""
    boxes = material.joint.true_boxes
    if not boxes:
        yield Suggestion(
            "nothing can be measured: the images have no labelled boxes",
            "All numbers of this page need labelled boxes to compare with.",
            "Give labelled images with `--annotations FILE --images DIR`.",
            "result",
        )
        return
    if material.trained_images:
        title, them = "these are the images that the detector was trained on", "them"
        if not material.is_trained_on:
            images = len(material.annotations)
            title = (
                f"the detector was trained on {material.trained_images} of these {images} images"
            )
            them = "these"
        yield Suggestion(
            title,
            f"The numbers show how well it remembers {them}, not how well it works on new "
            "pictures.",
            "Keep some labelled pictures out of training: `retinanet data split` divides them.",
            "result",
        )
    if boxes < FEW_BOXES:
        yield Suggestion(
            f"there are only {boxes} labelled boxes to measure with",
            "One box more or less changes the numbers visibly, and best thresholds are guesses.",
            "Label more validation pictures before you compare two trainings by these numbers.",
            "classes",
        )
    if material.best is None:
        yield Suggestion(
            "the detector finds nothing yet",
            "No box of any score lies on a labelled object of its class.",
            "Train longer. If the loss does not fall, check the labels with `retinanet data "
            "verify`, and look at what the network sees with `retinanet data show`.",
            "result",
        )


def length_of_training(material: Material) -> Iterator[Suggestion]:
    """Yield whether the training was too short or too long, by its evaluations."""
    values = [float(record["map"]) for record in material.evaluations]
    if material.records and not material.endings:
        yield Suggestion(
            "the training is not finished",
            f"It has done {material.epochs_done:.3g} of {material.config.training.epochs} epochs.",
            "Wait for its end, or continue it if it was stopped; the command is below.",
            "result",
        )
        return
    if len(values) < 2:
        return
    best, last, before = max(values), values[-1], max(values[:-1])
    if last > before * (1 + STILL_RISING):
        yield Suggestion(
            "the training ended too early: mAP was still rising",
            f"The last evaluation has mAP {last:.3f}, the best before it {before:.3f}.",
            "Continue with more epochs; the command is below.",
            "result",
        )
    elif last < best * FALLEN:
        epoch = material.evaluations[values.index(best)].get("epoch", 0)
        yield Suggestion(
            "the training went on too long: mAP fell in the end",
            f"The best evaluation, after {epoch:g} epochs, has mAP {best:.3f}, the last one "
            f"{last:.3f}: the detector began to memorize its training pictures. The best "
            "checkpoint is kept, and this page is about it unless you chose another.",
            "More, or more varied, training pictures help; so do fewer epochs.",
            "result",
        )


def confusions(material: Material) -> Iterator[Suggestion]:
    """Yield pairs of classes that are taken for one another."""
    names = material.annotations.category_names
    pairs = [
        f"{names[pair.true_class]} taken for {names[pair.predicted_class]} "
        f"({pair.boxes} times, {pair.share:.0%})"
        for pair in confused_pairs(material.mistakes.matrix)
        if pair.boxes >= PAIR_BOXES and pair.share >= PAIR_SHARE
    ]
    if pairs:
        yield Suggestion(
            "some classes are taken for one another",
            f"{listed(pairs, NAMES)}.",
            "Check first whether the labels themselves are mixed up. If not, add pictures that "
            "show the difference, or join the classes if you do not need it.",
            "confusion",
        )


def measured_classes(material: Material) -> list[ClassResult]:
    """Return the classes with labelled boxes, the lowest AP at IoU 0.50 first."""
    classes = [item for item in material.evaluation.classes if not math.isnan(item.map_50)]
    return sorted(classes, key=lambda item: item.map_50)


def weak_classes(material: Material) -> Iterator[Suggestion]:
    """Yield classes that are found less well than others, and classes that were not measured."""
    classes = measured_classes(material)
    if classes and material.best is not None:
        limit = WEAK * float(np.median([item.map_50 for item in classes]))
        weak = [
            f"{item.name} (AP50 {item.map_50:.2f}, {item.true_boxes} boxes)"
            for item in classes
            if item.true_boxes >= FEWEST_BOXES and (item.map_50 < limit or item.map_50 == 0)
        ]
        if weak:
            yield Suggestion(
                f"{counted(len(weak), 'class', 'classes')} "
                f"{'is' if len(weak) == 1 else 'are'} found much less well than the others",
                f"{listed(weak, NAMES)}.",
                "Compare their numbers of labelled boxes in the training pictures: `retinanet data "
                "verify` lists them. Classes with few boxes gain most from more pictures.",
                "classes",
            )
    few = [item.name for item in classes if item.true_boxes < FEW_CLASS_BOXES]
    missing = len(material.evaluation.classes) - len(classes)
    if (few and material.joint.true_boxes >= FEW_BOXES) or (missing and classes):
        parts = []
        if few:
            parts.append(f"Fewer than {FEW_CLASS_BOXES} boxes: {listed(few, NAMES)}.")
        if missing:
            parts.append(f"No box at all: {counted(missing, 'class', 'classes')}.")
        yield Suggestion(
            "some classes have too few labelled boxes to measure them",
            " ".join(parts),
            "Their numbers are rough or missing. Add pictures of them to the validation images.",
            "classes",
        )


def small_objects(material: Material) -> Iterator[Suggestion]:
    """Yield whether small objects are found less well than large ones."""
    summary = material.evaluation.summary
    small, large = summary["map_small"], summary["map_large"]
    # False if one of the two is NaN, which is not measured.
    if small < SMALL * large:
        size = shown_size(material.checkpoint.model.image_size)
        yield Suggestion(
            "small objects are often missed",
            f"mAP is {small:.3f} for objects below 32×32 pixels, and {large:.3f} for objects above "
            f"96×96. The network sees each picture at {size} pixels.",
            f"Train with a larger `data.image_size` than {size}; a step then takes longer, in "
            "proportion to the number of pixels.",
            "result",
        )


def kinds_of_mistakes(material: Material) -> Iterator[Suggestion]:
    """Yield the kinds of mistakes that are frequent."""
    mistakes, true_boxes = material.mistakes, material.joint.true_boxes
    kept = sum(mistakes.kinds.values()) - mistakes.kinds[Kind.IGNORED]
    if not kept or not true_boxes or material.best is None:
        return
    for kind, title, todo in (
        (
            Kind.BACKGROUND,
            "many boxes are where nothing is labelled",
            "Look at the red boxes in the pictures. Often the object is there and its label is "
            "missing: then mend the labels. Otherwise add such pictures to the training data; "
            "those without any object count with `data.images_without_boxes=train`.",
        ),
        (
            Kind.MISPLACED,
            "many boxes are at the right object, but too far off it",
            "Train longer. If objects are small in the picture, a larger `data.image_size` helps; "
            "also check that labels fit the objects tightly.",
        ),
        (
            Kind.DUPLICATE,
            "many objects have more than one box",
            "This gets less with longer training. In your program, a higher `--score` drops most "
            "of these boxes.",
        ),
    ):
        number = mistakes.kinds[kind]
        if number > MANY * kept:
            evidence = f"{number} of {kept} boxes above the thresholds ({number / kept:.0%})."
            yield Suggestion(title, evidence, todo, "pictures")
    if mistakes.missed > MOST_MISSED * true_boxes:
        yield Suggestion(
            "many objects are missed",
            f"{mistakes.missed} of {true_boxes} labelled objects have no box at all "
            f"({mistakes.missed / true_boxes:.0%}).",
            "A lower `--score` than the best one finds more of them, with more wrong boxes: choose "
            "by what costs you more. The curves of the classes show both.",
            "classes",
        )
