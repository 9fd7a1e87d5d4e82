"""Checks of a split's annotations by columns, against the run that will use them.

Boxes that training leaves out or clips, images without boxes, categories against the model's
outputs and against the other split's. What an entry must hold by itself, and ids, are checked by
`data.coco_json`.
"""

import numpy as np
from numpy.typing import NDArray

from data.annotations import (
    MINIMUM_SIDE,
    TrainingRules,
    are_shares,
    as_size,
    category_differences,
    content_sizes,
    is_turned,
    positions_in,
    repeated,
)
from data.coco_json import Entries
from data.findings import Findings, Place, Severity

BOXES_AT_ONCE = 1_000_000
ROUNDING = 1.0
"""Pixels by which a box may reach beyond its image without a finding, as rounded ones do."""


def check_boxes(entries: Entries, findings: Findings, rules: TrainingRules) -> None:
    """Find boxes that are of no use to a run, and those that reach beyond their image."""

    def make_place(row: int) -> Place:
        """Return a box's place, as COCO writes it, with the size of its image."""
        x1, y1, x2, y2 = entries.boxes[row].tolist()
        value = f"[{x1:.6g}, {y1:.6g}, {x2 - x1:.6g}, {y2 - y1:.6g}]"
        image = int(entries.image_of_box[row])
        if image >= 0:
            value += f" in {entries.widths[image]}×{entries.heights[image]}"
        return entries.box_place(row, ".bbox" if entries.box_list == "annotations" else "", value)

    for start in range(0, len(entries.boxes), BOXES_AT_ONCE):
        stop = min(start + BOXES_AT_ONCE, len(entries.boxes))
        counted = np.zeros(stop - start, dtype=np.bool_)
        # A box is a finding of the first kind that it is of.
        for kind, flags in box_kinds(entries, start, stop, rules).items():
            rows = start + np.flatnonzero(flags & ~counted)
            counted |= flags
            findings.add_rows(kind, rows, make_place)
            if kind != "box_partly_outside":
                entries.good_boxes[rows] = False
    findings.add_rows("box_duplicate", equal_boxes(entries), make_place)
    if are_shares(entries.boxes):
        findings.add("boxes_in_shares", Place(entries.box_list, make_place(0).found))
        entries.good_boxes[:] = False
    if are_corners(entries):
        findings.add("boxes_of_corners", Place(entries.box_list, make_place(0).found))


def are_corners(entries: Entries) -> bool:
    """Return whether boxes seem to hold two corners where COCO has x, y, width and height.

    Most leave their images as they are, and as corners all are boxes inside.
    """
    rows = np.flatnonzero(entries.image_of_box >= 0)
    images = entries.image_of_box[rows]
    limits = np.stack([entries.widths[images], entries.heights[images]], axis=1) + ROUNDING
    lower, upper = entries.boxes[rows, :2], entries.boxes[rows, 2:]
    corners = upper - lower
    if not len(rows) or (upper > limits).any(axis=1).mean() <= 1 / 2:
        return False
    return bool(((corners > lower) & (corners <= limits) & (lower >= -ROUNDING)).all())


def equal_boxes(entries: Entries) -> NDArray[np.int64]:
    """Return the rows of boxes that equal an earlier one of the same image and category."""
    # A hash of 64 bits takes a fifth of the memory of the columns. Among ten million
    # different boxes two have the same one in one case of 370,000.
    hashes = np.empty(len(entries.boxes), dtype=np.uint64)
    for start in range(0, len(hashes), BOXES_AT_ONCE):
        rows = slice(start, start + BOXES_AT_ONCE)
        columns = (
            entries.image_of_box[rows].astype(np.uint64),
            entries.box_category_ids[rows].view(np.uint64),
            *(entries.boxes[rows] + 0.0).T.copy().view(np.uint64),  # + 0.0: -0.0 equals 0.0
        )
        mixed = np.zeros(len(columns[0]), dtype=np.uint64)
        for column in columns:
            # The finalizer of splitmix64 (Steele et al. 2014), column by column.
            mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
        hashes[rows] = mixed
    known = np.flatnonzero(entries.image_of_box >= 0)
    return known[repeated(hashes[known].view(np.int64))]


def box_kinds(
    entries: Entries, start: int, stop: int, rules: TrainingRules
) -> dict[str, NDArray[np.bool_]]:
    """Return for each kind of finding which of some boxes are of it."""
    # A box without a known image has row -1, the last image's; `has_image` masks these results.
    boxes, images = entries.boxes[start:stop], entries.image_of_box[start:stop]
    sizes = np.stack([entries.widths[images], entries.heights[images]], axis=1).astype(np.float64)
    lower, upper = boxes[:, :2], boxes[:, 2:]
    has_image = images >= 0  # without a known image there is nothing to be outside of
    with np.errstate(invalid="ignore", over="ignore"):
        clipped = boxes_on_input(boxes, sizes, rules)
        beyond = (lower < -ROUNDING) | (upper > sizes + ROUNDING)
        has_area = (clipped[:, 2:] - clipped[:, :2] >= MINIMUM_SIDE).all(axis=1)
        return {
            "box_not_finite": ~np.isfinite(boxes).all(axis=1),
            "box_negative_side": (upper < lower).any(axis=1),
            "box_zero_size": (upper == lower).any(axis=1),
            "box_outside": has_image & ((lower >= sizes) | (upper <= 0)).any(axis=1),
            "box_vanishes": has_image & ~has_area,
            "box_partly_outside": has_image & beyond.any(axis=1),
        }


def boxes_on_input(
    boxes: NDArray[np.float64], sizes: NDArray[np.float64], rules: TrainingRules
) -> NDArray[np.float64]:
    """Return boxes [N, 4] as the network gets them; `sizes` [N, 2] are their images', (w, h)."""
    # As scale_boxes and clip_boxes of data.transforms, in training.
    height, width = as_size(rules.image_size)
    turned = is_turned(sizes[:, 1], sizes[:, 0], rules.image_size)
    inputs = np.where(turned[:, None], (height, width), (width, height)).astype(np.float64)
    content = content_sizes(sizes, inputs=inputs, resize=rules.resize)
    return np.clip(boxes * np.tile(content / sizes, 2), 0, np.tile(content, 2))


def check_categories_fit(entries: Entries, findings: Findings, rules: TrainingRules) -> None:
    """Find categories for which the model has no output: see `data.dataset.make_class_map`."""
    ids, num_classes = entries.category_ids, rules.num_classes
    if rules.class_indices == "contiguous":
        if num_classes not in (None, len(ids)):
            value = f"{len(ids)} categories; model.num_classes is {num_classes}"
            findings.add("categories_do_not_fit", Place("categories", value))
        return
    outside = ids < 0 if num_classes is None else (ids < 0) | (ids >= num_classes)
    outputs = "from 0 on" if num_classes is None else f"below model.num_classes={num_classes}"
    findings.add_rows(
        "categories_do_not_fit",
        np.flatnonzero(outside),
        lambda row: entries.category_place(row, ".id", f"{ids[row]}, expected {outputs}"),
    )


def check_categories_agree(train: Entries, validation: Entries, findings: Findings) -> None:
    """Find categories of the validation split that differ from the training split's."""
    expected = dict(zip(train.category_ids.tolist(), train.category_names, strict=True))
    ids, names = validation.category_ids, validation.category_names
    for row, text in category_differences(expected, ids, names):
        place = Place("categories", text)
        if row is not None:
            place = validation.category_place(row, "", text)
        findings.add("categories_differ", place)


def check_image_entries(
    entries: Entries, findings: Findings, *, skip_images_without_boxes: bool
) -> None:
    """Find images without boxes, which a run may not read, and files that are named twice."""
    images, known = len(entries.image_ids), entries.image_of_box >= 0
    total = np.bincount(entries.image_of_box[known], minlength=images)
    single = np.bincount(entries.image_of_box[known & ~entries.box_is_crowd], minlength=images)
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
    # Hashes take a tenth of the memory of the names; Python's are of 64 bits.
    hashes = np.fromiter(map(hash, entries.file_names), dtype=np.int64)
    findings.add_rows(
        "file_name_duplicate",
        repeated(hashes),
        lambda row: entries.image_place(row, ".file_name", entries.file_names[row]),
    )
    entries.is_read = single > 0 if skip_images_without_boxes else np.ones(images, dtype=np.bool_)
    if skip_images_without_boxes and not single.any():
        value = f"{len(entries.boxes)} boxes, all of crowds" if len(entries.boxes) else "no box"
        findings.add("nothing_to_train_on", Place(entries.box_list, value))


def count_classes(entries: Entries, findings: Findings) -> None:
    """Count the boxes that can be read, and find classes without any."""
    classes = len(entries.category_ids)
    rows = positions_in(entries.category_ids, entries.box_category_ids)
    known = rows >= 0
    boxes = np.bincount(rows[known], minlength=classes)
    crowds = np.bincount(rows[known & entries.box_is_crowd], minlength=classes)
    with_image = known & (entries.image_of_box >= 0)
    # A pair of image and class is one number, so that unique() counts an image once a class. int32
    # could overflow: images × classes.
    pairs = entries.image_of_box[with_image].astype(np.int64) * classes + rows[with_image]
    images = np.bincount(np.unique(pairs) % classes, minlength=classes)
    findings.add_rows(
        "class_without_boxes",
        np.flatnonzero(boxes == 0),
        lambda row: entries.category_place(row, "", entries.category_names[row]),
    )
    entries.class_counts = np.stack([boxes, crowds, images])
