"""Columns of a split's annotations with the place of each entry, and the checks of them.

An entry that cannot be read is left out: the validator of `data.coco_json` reports all its faults,
which become findings, and the other entries become columns. Checks by columns follow: ids that
occur twice or are not listed, boxes that training leaves out or clips, images without boxes,
categories against the model's outputs and against the other split's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError, require_few_classes
from data.annotations import (
    BOX_COLUMNS,
    IMAGE_COLUMNS,
    MINIMUM_SIDE,
    UNNAMED,
    Annotations,
    GrowingColumns,
    Resize,
    TextColumn,
    are_shares,
    positions_in,
    repeated,
)
from data.coco_json import (
    FIELDS,
    INT64_MAX,
    NO_ID,
    TAKEN,
    Advance,
    Fault,
    bring_inside,
    checked_columns,
    clip_rotated,
    no_garbage_collection,
    stream_lists,
    whole_number,
)
from data.verify.findings import Findings, Place, Severity

BOXES_AT_ONCE = 1_000_000
ROUNDING = 1.0
"""Pixels by which a box may reach beyond its image without a finding, as rounded ones do."""


@dataclass(eq=False)
class Entries:
    """C categories, I images and B boxes, in the order of their lists.

    Columns are those of `data.annotations.Annotations`. A `*_places` column holds the position of
    each entry in its list, which may hold unreadable entries too.
    """

    box_list: str  # the list of boxes in messages: `annotations` of a JSON, `boxes` of an index
    category_ids: NDArray[np.int64]
    category_names: Sequence[str]
    category_places: NDArray[np.int32]
    image_ids: NDArray[np.int64]
    file_names: Sequence[str]
    widths: NDArray[np.int32]
    heights: NDArray[np.int32]
    is_displayed: NDArray[np.bool_]
    image_places: NDArray[np.int32]
    image_had_unreadable_boxes: NDArray[np.bool_]  # [I] an unreadable box names the image
    image_of_box: NDArray[np.int32]  # [B] row of the image; -1: unknown, or cannot be read
    boxes: NDArray[np.float64]
    box_category_ids: NDArray[np.int64]
    box_is_crowd: NDArray[np.bool_]
    box_areas: NDArray[np.float64]
    box_ids: NDArray[np.int64]
    box_places: NDArray[np.int32]
    category_is_root: NDArray[np.bool_] | None = None  # [C] see `coco_json.arrange`
    unreadable_category_ids: frozenset[int] = frozenset()  # of entries with a fault elsewhere
    unreadable_categories: int = 0
    unreadable_images: int = 0
    unreadable_boxes: int = 0
    good_images: NDArray[np.bool_] = field(init=False)  # [I] for a clean index; checks clear others
    good_boxes: NDArray[np.bool_] = field(init=False)  # [B]
    is_read: NDArray[np.bool_] = field(init=False)  # [I] whether the run reads the image
    class_counts: NDArray[np.int64] = field(init=False)
    """[3, C] boxes, boxes of crowds, and images with a box, of each category"""

    def __post_init__(self) -> None:
        self.good_images = np.ones(len(self.image_ids), dtype=np.bool_)
        self.good_boxes = self.image_of_box >= 0

    def image_place(self, row: int, field: str, value: object) -> Place:
        """Return the place of an image's entry."""
        entry = f"images[{self.image_places[row]}]{field}"
        return Place(entry, str(value), self.file_names[row])

    def box_place(self, row: int, field: str, value: object) -> Place:
        """Return the place of a box's entry."""
        image = int(self.image_of_box[row])
        file = self.file_names[image] if image >= 0 else None
        return Place(f"{self.box_list}[{self.box_places[row]}]{field}", str(value), file)

    def category_place(self, row: int, field: str, value: object) -> Place:
        """Return the place of a category's entry."""
        return Place(f"categories[{self.category_places[row]}]{field}", str(value))


def entries_of_index(annotations: Annotations) -> Entries:
    """Return an index's columns; all of its entries can be read."""
    categories, images = len(annotations.category_ids), len(annotations)
    image_rows = np.arange(images, dtype=np.int32)
    return Entries(
        box_list="boxes",
        category_ids=annotations.category_ids,
        category_names=annotations.category_names,
        category_places=np.arange(categories, dtype=np.int32),
        image_places=image_rows,
        image_had_unreadable_boxes=np.zeros(images, dtype=np.bool_),
        image_of_box=np.repeat(image_rows, np.diff(annotations.box_offsets)),
        box_places=np.arange(len(annotations.boxes), dtype=np.int32),
        **{name: getattr(annotations, name) for name in IMAGE_COLUMNS + BOX_COLUMNS},
    )


def read_entries(
    path: Path,
    findings: Findings,
    *,
    advance: Advance,
    usable: Collection[str] = TAKEN,
    is_export: bool = False,
) -> Entries | None:
    """Read a COCO-format JSON file as far as it can be read, and add its faults to `findings`.

    Returns None where the file is no JSON, lacks a list, or has no category or image left.
    `advance` is called with the number of bytes that were read. Entries with faults of the kinds
    `usable` are taken. For `is_export` see `read_annotations`.
    """
    lists = {name: ListColumns(name, usable) for name in FIELDS}
    try:
        with no_garbage_collection():
            for name, entries in stream_lists(path, FIELDS, advance=advance):
                if is_export and name == "images":
                    bring_inside(entries)
                lists[name].extend(entries, findings)
                require_few_classes(f"{path}: categories", lists["categories"].length)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        findings.add("annotations_unreadable", Place(path.name, reason))
        return None
    for name in ("categories", "images"):
        if not lists[name].length:
            findings.add(f"no_{name}", Place(name, "[]"))
        if not lists[name].readable:
            return None
    return join_lists(lists, findings)


PLACES = {"categories": "category_places", "images": "image_places", "annotations": "box_places"}


class ListColumns:
    """The columns of one list while it is read, without entries that have a fault."""

    def __init__(self, name: str, usable: Collection[str]) -> None:
        self.name, self.usable = name, usable  # kinds of faults with which an entry can be used
        self.length = self.readable = 0
        self.columns = GrowingColumns()
        self.unreadable_ids: dict[str, set[int]] = {"id": set(), "image_id": set()}
        """Valid ids, by field, of entries that have another fault"""

    def extend(self, entries: list[Any], findings: Findings) -> None:
        """Append some entries, and add the faults of the others to the findings."""
        faults: list[Fault] = []
        columns = checked_columns(self.name, entries, faults.append)
        rows = np.arange(len(entries), dtype=np.int32)
        if faults:
            # Faults are found field by field, and reported in the order of the entries.
            for fault in sorted(faults, key=lambda fault: (fault.row, fault.field != "id")):
                place = f"{self.name}[{self.length + fault.row}]"
                field = f".{fault.field}" if fault.field else ""
                findings.add(fault.kind, Place(place + field, fault.found))
            bad = {fault.row for fault in faults if fault.kind not in self.usable}
            for entry in (entries[row] for row in bad if isinstance(entries[row], dict)):
                for name, ids in self.unreadable_ids.items():
                    number = whole_number(entry.get(name))
                    if number is not None and abs(number) <= INT64_MAX:
                        ids.add(number)
            # One invalid value makes its whole column unusable, so the good entries are converted
            # again.
            rows = np.array([row for row in rows.tolist() if row not in bad], dtype=np.int32)
            columns = checked_columns(self.name, [entries[row] for row in rows], faults.append)
        self.readable += len(rows)
        self.columns.extend(columns | {PLACES[self.name]: self.length + rows})
        self.length += len(entries)

    def unreadable_array(self, field: str) -> NDArray[np.int64]:
        """Return the unreadable ids of a field as int64 [N]."""
        return np.fromiter(self.unreadable_ids[field], dtype=np.int64)


def join_lists(lists: dict[str, ListColumns], findings: Findings) -> Entries:
    """Join the three lists, boxes with their images."""
    categories, images, boxes = (
        lists[name].columns.finish() for name in ("categories", "images", "annotations")
    )
    places, ids = boxes.pop("box_places"), boxes["box_ids"]
    # Boxes without ids are numbered from 1 where none has one; where some have, it is a finding.
    missing = ids == NO_ID
    if not missing.all():
        findings.add_rows(
            "annotation_id_missing",
            np.flatnonzero(missing),
            lambda row: Place(f"annotations[{places[row]}].id", "missing"),
        )
    if missing.any():
        ids[missing] = max(0, int(ids.max())) + 1 + np.arange(int(missing.sum()))

    image_ids = boxes.pop("image_id")
    image_of_box = positions_in(images["image_ids"], image_ids)
    clip_rotated(boxes, images, image_of_box)
    # An image that is listed with a fault is a finding of its own.
    unlisted = ~np.isin(image_ids, lists["images"].unreadable_array("id"))
    findings.add_rows(
        "image_id_unknown",
        np.flatnonzero((image_of_box < 0) & unlisted),
        lambda row: Place(f"annotations[{places[row]}].image_id", str(image_ids[row])),
    )
    unreadable = {name: part.length - part.readable for name, part in lists.items()}
    images_of_faults = lists["annotations"].unreadable_array("image_id")
    return Entries(
        box_list="annotations",
        category_names=tuple(categories.pop("category_names")),
        **categories,
        **images,
        **boxes,
        box_places=places,
        image_had_unreadable_boxes=np.isin(images["image_ids"], images_of_faults),
        image_of_box=image_of_box,
        unreadable_category_ids=frozenset(lists["categories"].unreadable_ids["id"]),
        unreadable_categories=unreadable["categories"],
        unreadable_images=unreadable["images"],
        unreadable_boxes=unreadable["annotations"],
    )


def check_boxes(entries: Entries, findings: Findings, *, image_size: int, resize: Resize) -> None:
    """Find boxes that are of no use at `image_size`, and those that reach beyond their image."""

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
        kinds = box_kinds(entries, start, stop, image_size=image_size, resize=resize)
        for kind, flags in kinds.items():
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
    entries: Entries, start: int, stop: int, *, image_size: int, resize: Resize
) -> dict[str, NDArray[np.bool_]]:
    """Return for each kind of finding which of some boxes are of it."""
    # A box without a known image has row -1, the last image's; `has_image` masks these results.
    boxes, images = entries.boxes[start:stop], entries.image_of_box[start:stop]
    sizes = np.stack([entries.widths[images], entries.heights[images]], axis=1).astype(np.float64)
    lower, upper = boxes[:, :2], boxes[:, 2:]
    has_image = images >= 0  # without a known image there is nothing to be outside of
    with np.errstate(invalid="ignore", over="ignore"):
        clipped = boxes_on_square(boxes, sizes, image_size=image_size, resize=resize)
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


def boxes_on_square(
    boxes: NDArray[np.float64], sizes: NDArray[np.float64], *, image_size: int, resize: Resize
) -> NDArray[np.float64]:
    """Return boxes [N, 4] as the network gets them; `sizes` [N, 2] are their images', (w, h)."""
    # As content_size, and scale_boxes and clip_boxes of data.transforms, in training.
    content = np.full_like(sizes, image_size)
    if resize == "letterbox":
        content = np.maximum(1, np.round(sizes * image_size / sizes.max(axis=1, keepdims=True)))
    return np.clip(boxes * np.tile(content / sizes, 2), 0, np.tile(content, 2))


def check_categories_fit(
    entries: Entries, findings: Findings, *, class_indices: str, num_classes: int | None
) -> None:
    """Find categories for which the model has no output: see `data.dataset.make_class_map`."""
    ids = entries.category_ids
    if class_indices == "contiguous":
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
    for row, category_id in enumerate(validation.category_ids.tolist()):
        name, known = validation.category_names[row], expected.get(category_id)
        if name != known:
            trained = "unknown" if known in (None, UNNAMED) else repr(known)
            difference = f"{category_id} is {name!r} here, {trained} in the training split"
            findings.add("categories_differ", validation.category_place(row, "", difference))
    for category_id in sorted(expected.keys() - set(validation.category_ids.tolist())):
        if expected[category_id] != UNNAMED:
            difference = f"{category_id} ({expected[category_id]!r}) is missing here"
            findings.add("categories_differ", Place("categories", difference))


def check_ids(entries: Entries, findings: Findings) -> None:
    """Find duplicate ids in each of the lists, and boxes of unknown categories."""
    category_ids, image_ids, box_ids = entries.category_ids, entries.image_ids, entries.box_ids
    unknown = positions_in(category_ids, entries.box_category_ids) < 0
    entries.good_boxes[unknown] = False
    # A category that is listed with a fault is a finding of its own.
    unreadable = np.fromiter(entries.unreadable_category_ids, dtype=np.int64)
    findings.add_rows(
        "category_id_unknown",
        np.flatnonzero(unknown & ~np.isin(entries.box_category_ids, unreadable)),
        lambda row: entries.box_place(row, ".category_id", entries.box_category_ids[row]),
    )
    findings.add_rows(
        "category_id_duplicate",
        repeated(category_ids),
        lambda row: entries.category_place(row, ".id", category_ids[row]),
    )
    check_names(entries, findings)
    later = repeated(image_ids)
    findings.add_rows(
        "image_id_duplicate", later, lambda row: entries.image_place(row, ".id", image_ids[row])
    )
    # If the same image occurs twice, the first is good. Of different images with one id none is:
    # nothing shows which of them the boxes belong to.
    entries.good_images[later] = False
    images = (entries.file_names, entries.widths, entries.heights)
    for row, first in zip(later, positions_in(image_ids, image_ids[later]), strict=True):
        if any(column[row] != column[first] for column in images):
            entries.good_images[first] = False
    later_boxes = repeated(box_ids)
    findings.add_rows(
        "annotation_id_duplicate",
        later_boxes,
        lambda row: entries.box_place(row, ".id", box_ids[row]),
    )
    entries.good_boxes[later_boxes] = False


def check_names(entries: Entries, findings: Findings) -> None:
    """Find categories whose name an earlier one has, or that differs only in case or blanks."""
    first: dict[str, str] = {}
    for row, name in enumerate(entries.category_names):
        earlier = first.setdefault("".join(name.split()).casefold(), name)
        if name != UNNAMED and (earlier is not name):
            place = entries.category_place(row, ".name", f"{name!r}, another is {earlier!r}")
            findings.add("category_name_similar", place)


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


def clean_images(entries: Entries) -> NDArray[np.bool_]:
    """Return a mask [I] of the images to keep: all but those whose boxes are all invalid."""
    images = len(entries.image_ids)
    named = entries.image_of_box[entries.image_of_box >= 0]
    had_boxes = np.bincount(named, minlength=images) > 0
    had_boxes |= entries.image_had_unreadable_boxes
    has_boxes = np.bincount(entries.image_of_box[entries.good_boxes], minlength=images) > 0
    return entries.good_images & (has_boxes | ~had_boxes)


def clean_annotations(entries: Entries) -> Annotations:
    """Return the good entries, boxes in the order of their images."""
    images = clean_images(entries)
    # Row -1 (no known image) reads the last image's flag, but such boxes are never good.
    box_rows = np.flatnonzero(entries.good_boxes & images[entries.image_of_box])
    # The number of images kept so far, less one, is an image's row among those kept.
    image_of_box = (np.cumsum(images) - 1)[entries.image_of_box[box_rows]]
    order = box_rows[np.argsort(image_of_box, kind="stable")]
    per_image = np.bincount(image_of_box, minlength=int(images.sum()))
    names = ("image_ids", "widths", "heights", "is_displayed")
    columns = {name: getattr(entries, name)[images] for name in names}
    return Annotations(
        category_ids=entries.category_ids,
        category_names=tuple(entries.category_names),
        file_names=TextColumn.of(
            entries.file_names[row] for row in np.flatnonzero(images).tolist()
        ),
        box_offsets=np.concatenate([[0], np.cumsum(per_image)]).astype(np.int64),
        **columns,
        **{name: getattr(entries, name)[order] for name in BOX_COLUMNS},
    )
