"""Boxes that training leaves out or clips, by columns.

TODO-DOC Categories against the model's outputs, and one split's against the other's.

TODO-DOC Ids that are there twice, and categories that are not there.

TODO-DOC Images without boxes, and which images training reads.

TODO-DOC How many boxes each class has.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.annotations import UNNAMED, positions_in, repeated
from data.sources import MINIMUM_SIDE
from data.verify.entries import Entries, Good
from data.verify.findings import Findings, Place, Severity

BOXES_AT_ONCE = 1_000_000
ROUNDING = 1.0
"""Pixels by which a box may reach beyond its image without a word, as rounded ones do."""

Flags = NDArray[np.bool_]


def check_boxes(entries: Entries, findings: Findings, good: Good, *, image_size: int) -> None:
    """Find boxes that are of no use at `image_size`, and those that reach beyond their image."""
    for start in range(0, len(entries.boxes), BOXES_AT_ONCE):
        stop = min(start + BOXES_AT_ONCE, len(entries.boxes))
        for kind, flags in box_kinds(entries, start, stop, image_size=image_size).items():
            rows = start + np.flatnonzero(flags)
            findings.add_rows(kind, rows, lambda row: place_of(entries, row))
            if kind != "box_partly_outside":
                good.boxes[rows] = False


def box_kinds(entries: Entries, start: int, stop: int, *, image_size: int) -> dict[str, Flags]:
    """Which of some rows are of which kind, each of one at most."""
    boxes, images = entries.boxes[start:stop], entries.image_of_box[start:stop]
    sizes = np.stack([entries.widths[images], entries.heights[images]], axis=1).astype(np.float64)
    lower, upper = boxes[:, :2], boxes[:, 2:]
    with np.errstate(invalid="ignore", over="ignore"):
        # What training does: data.transforms.scale_boxes and clip_boxes.
        scaled = boxes * np.tile(image_size / sizes, 2)
        clipped = np.clip(scaled, 0, image_size)
        vanishes = ~(clipped[:, 2:] - clipped[:, :2] >= MINIMUM_SIDE).all(axis=1)
        beyond = (lower < -ROUNDING) | (upper > sizes + ROUNDING)
        of_image = {
            "box_outside": ((lower >= sizes) | (upper <= 0)).any(axis=1),
            "box_vanishes": vanishes,
            "box_partly_outside": beyond.any(axis=1),
        }
        found = {
            "box_not_finite": ~np.isfinite(boxes).all(axis=1),
            "box_negative_side": (upper < lower).any(axis=1),
            "box_zero_size": (upper == lower).any(axis=1),
            # Without a known image there is nothing to be outside of.
            **{kind: flags & (images >= 0) for kind, flags in of_image.items()},
        }
    return first_of_each_row(found)


def first_of_each_row(found: dict[str, Flags]) -> dict[str, Flags]:
    """The same flags, but every row is only of the first kind that it is of."""
    taken = np.zeros(len(next(iter(found.values()))), dtype=np.bool_)
    first = {}
    for kind, flags in found.items():
        first[kind] = flags & ~taken
        taken |= flags
    return first


def place_of(entries: Entries, row: int) -> Place:
    """A box's place, as COCO writes it, with the size of its image."""
    x1, y1, x2, y2 = entries.boxes[row].tolist()
    found = f"[{x1:.6g}, {y1:.6g}, {x2 - x1:.6g}, {y2 - y1:.6g}]"
    image = int(entries.image_of_box[row])
    if image >= 0:
        found += f" in {entries.widths[image]}×{entries.heights[image]}"
    return entries.box_place(row, ".bbox" if entries.box_list == "annotations" else "", found)


def check_categories_fit(
    entries: Entries, findings: Findings, *, class_indices: str, num_classes: int | None
) -> None:
    """Find categories for which the model has no output: see `data.dataset.class_map_of`."""
    ids = entries.category_ids
    if class_indices == "contiguous":
        if num_classes not in (None, len(ids)):
            found = f"{len(ids)} categories; model.num_classes is {num_classes}"
            findings.add("categories_do_not_fit", Place("categories", found))
        return
    outside = ids < 0 if num_classes is None else (ids < 0) | (ids >= num_classes)
    outputs = "from 0 on" if num_classes is None else f"below model.num_classes={num_classes}"
    findings.add_rows(
        "categories_do_not_fit",
        np.flatnonzero(outside),
        lambda row: entries.category_place(row, ".id", f"{ids[row]}, expected {outputs}"),
    )


def check_categories_agree(train: Entries, validation: Entries, findings: Findings) -> None:
    """Find categories of the validation split that are not the training split's.

    Their order is free: see `data.annotations.ClassMap.check_categories`.
    """
    pairs = zip(train.category_ids.tolist(), train.category_names, strict=True)
    expected = dict(pairs)
    for row, category_id in enumerate(validation.category_ids.tolist()):
        name, known = validation.category_names[row], expected.get(category_id)
        if name != known:
            trained = "unknown" if known in (None, UNNAMED) else repr(known)
            what = f"{category_id} is {name!r} here, {trained} in the training split"
            findings.add("categories_differ", validation.category_place(row, "", what))
    for category_id in sorted(expected.keys() - set(validation.category_ids.tolist())):
        if expected[category_id] != UNNAMED:
            what = f"{category_id} ({expected[category_id]!r}) is missing here"
            findings.add("categories_differ", Place("categories", what))


def check_ids(entries: Entries, findings: Findings, good: Good) -> None:
    """Find duplicate ids in each of the lists, and boxes of unknown categories."""
    check_categories_of_boxes(entries, findings, good)
    ids = entries.category_ids
    findings.add_rows(
        "category_id_duplicate",
        repeated(ids),
        lambda row: entries.category_place(row, ".id", str(ids[row])),
    )
    check_image_ids(entries, findings, good)
    later = repeated(entries.box_ids)
    findings.add_rows(
        "annotation_id_duplicate",
        later,
        lambda row: entries.box_place(row, ".id", str(entries.box_ids[row])),
    )
    good.boxes[later] = False


def check_categories_of_boxes(entries: Entries, findings: Findings, good: Good) -> None:
    """Find boxes of categories that are not listed; one that is listed wrongly is told itself."""
    unknown = positions_in(entries.category_ids, entries.box_category_ids) < 0
    good.boxes[unknown] = False
    unreadable = np.fromiter(entries.unreadable_category_ids, dtype=np.int64)
    unlisted = unknown & ~np.isin(entries.box_category_ids, unreadable)
    findings.add_rows(
        "category_id_unknown",
        np.flatnonzero(unlisted),
        lambda row: entries.box_place(row, ".category_id", str(entries.box_category_ids[row])),
    )


def check_image_ids(entries: Entries, findings: Findings, good: Good) -> None:
    """Find images that have another's id.

    Of the same image twice the first is good. Of different images none is: which of them the
    boxes belong to is anyone's guess.
    """
    later = repeated(entries.image_ids)
    findings.add_rows(
        "image_id_duplicate",
        later,
        lambda row: entries.image_place(row, ".id", str(entries.image_ids[row])),
    )
    good.images[later] = False
    earliest = positions_in(entries.image_ids, entries.image_ids[later]).tolist()
    for row, first in zip(later.tolist(), earliest, strict=True):
        if what_it_is(entries, row) != what_it_is(entries, first):
            good.images[first] = False


def what_it_is(entries: Entries, row: int) -> tuple[str, int, int]:
    """An image but for its id."""
    return entries.file_names[row], int(entries.widths[row]), int(entries.heights[row])


def check_image_entries(
    entries: Entries, findings: Findings, *, skip_images_without_boxes: bool
) -> NDArray[np.bool_]:
    """Find images without boxes, and files that are named twice.

    Returns which images [I] are read in training: with `skip_images_without_boxes` those with a
    box of a single object, else all.
    """
    total, single = boxes_of_images(entries)
    severity = Severity.MENDED if skip_images_without_boxes else Severity.NOTE
    # An image whose boxes cannot be read has some.
    without = (total == 0) & ~entries.image_had_unreadable_boxes
    only_crowds = (total > 0) & (single == 0) & ~entries.image_had_unreadable_boxes
    for kind, flags in (("image_without_boxes", without), ("image_with_crowds_only", only_crowds)):
        findings.add_rows(
            kind,
            np.flatnonzero(flags),
            lambda row: entries.image_place(row, "", f"{total[row]} boxes"),
            severity=severity,
        )
    check_file_names(entries, findings)
    if not skip_images_without_boxes:
        return np.ones(len(total), dtype=np.bool_)
    if not single.any():
        found = f"{len(entries.boxes)} boxes, all of crowds" if len(entries.boxes) else "no box"
        findings.add("nothing_to_train_on", Place(entries.box_list, found))
    return single > 0


def boxes_of_images(entries: Entries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many boxes each image has [I], and how many of them mark a single object [I]."""
    images = len(entries.image_ids)
    known = entries.image_of_box >= 0
    total = np.bincount(entries.image_of_box[known], minlength=images)
    single = np.bincount(entries.image_of_box[known & ~entries.box_is_crowd], minlength=images)
    return total, single


def check_file_names(entries: Entries, findings: Findings) -> None:
    """Find files that several images name."""
    # Hashes take a tenth of the memory of the names; Python's are of 64 bits.
    hashes = np.fromiter(map(hash, entries.file_names), dtype=np.int64)
    findings.add_rows(
        "file_name_duplicate",
        repeated(hashes),
        lambda row: entries.image_place(row, ".file_name", entries.file_names[row]),
    )


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Of every category [C], in the list's order."""

    boxes: NDArray[np.int64]
    """[C] crowds included"""
    crowds: NDArray[np.int64]
    """[C] boxes of crowds or groups"""
    images: NDArray[np.int64]
    """[C] images with a box of the class"""


def count_classes(entries: Entries, findings: Findings) -> ClassCounts:
    """Count the boxes that can be read, and find classes without any."""
    classes = len(entries.category_ids)
    rows = positions_in(entries.category_ids, entries.box_category_ids)
    known = rows >= 0
    boxes = np.bincount(rows[known], minlength=classes)
    crowds = np.bincount(rows[known & entries.box_is_crowd], minlength=classes)
    with_image = known & (entries.image_of_box >= 0)
    pairs = entries.image_of_box[with_image].astype(np.int64) * classes + rows[with_image]
    images = np.bincount(np.unique(pairs) % classes, minlength=classes)
    findings.add_rows(
        "class_without_boxes",
        np.flatnonzero(boxes == 0),
        lambda row: entries.category_place(row, "", entries.category_names[row]),
    )
    return ClassCounts(boxes, crowds, images)
