"""A split's annotations as columns, with the place of each entry, and all checks of them.

Reading sets aside what cannot be read: the validator of `data.coco_json` reports all faults of an
entry, which become findings, and the other entries become columns. Checks by columns follow: ids
that occur twice or are not listed, boxes that training leaves out or clips, images without boxes,
categories against the model's outputs and against the other split's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError
from data.annotations import (
    MINIMUM_SIDE,
    UNNAMED,
    Annotations,
    GrowingColumns,
    TextColumn,
    positions_in,
    repeated,
)
from data.coco_json import (
    FIELDS,
    NO_ID,
    Advance,
    Fault,
    checked_columns,
    integers,
    no_garbage_collection,
    stream_lists,
)
from data.verify.findings import Findings, Place, Severity

BOXES_AT_ONCE = 1_000_000
ROUNDING = 1.0
"""Pixels by which a box may reach beyond its image without a finding, as rounded ones do."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Entries:
    """C categories, I images and B boxes, in the order of their lists."""

    box_list: str
    """What places call the list of boxes: `annotations` of a JSON, `boxes` of an index"""
    category_ids: NDArray[np.int64]
    """[C]"""
    category_names: Sequence[str]
    """C names"""
    category_places: NDArray[np.int32]
    """[C] which entry of its list each is; the same for images and boxes"""
    image_ids: NDArray[np.int64]
    """[I]"""
    file_names: Sequence[str]
    """I paths relative to the folder of images, which none of them leaves"""
    widths: NDArray[np.int32]
    """[I] pixels"""
    heights: NDArray[np.int32]
    """[I] pixels"""
    image_places: NDArray[np.int32]
    """[I]"""
    image_had_unreadable_boxes: NDArray[np.bool_]
    """[I] whether a box that cannot be read names the image"""
    image_of_box: NDArray[np.int32]
    """[B] which of the I images; -1 where its image is unknown or cannot be read"""
    boxes: NDArray[np.float64]
    """[B, 4] xyxy in pixels of the original image"""
    box_category_ids: NDArray[np.int64]
    """[B]"""
    box_is_crowd: NDArray[np.bool_]
    """[B]"""
    box_areas: NDArray[np.float64]
    """[B]"""
    box_ids: NDArray[np.int64]
    """[B]"""
    box_places: NDArray[np.int32]
    """[B]"""
    unreadable_category_ids: frozenset[int]
    """Of entries that say their id, and are wrong otherwise"""
    unreadable_categories: int
    unreadable_images: int
    unreadable_boxes: int

    def image_place(self, row: int, field: str, found: str) -> Place:
        """The place of an image's entry."""
        entry = f"images[{self.image_places[row]}]{field}"
        return Place(entry, found, self.file_names[row])

    def box_place(self, row: int, field: str, found: str) -> Place:
        """The place of a box's entry."""
        image = int(self.image_of_box[row])
        file = self.file_names[image] if image >= 0 else None
        return Place(f"{self.box_list}[{self.box_places[row]}]{field}", found, file)

    def category_place(self, row: int, field: str, found: str) -> Place:
        """The place of a category's entry."""
        return Place(f"categories[{self.category_places[row]}]{field}", found)


def entries_of_index(annotations: Annotations) -> Entries:
    """An index's columns; all of its entries can be read."""
    images, boxes = len(annotations), len(annotations.boxes)
    boxes_per_image = np.diff(annotations.box_offsets)
    return Entries(
        box_list="boxes",
        category_ids=annotations.category_ids,
        category_names=annotations.category_names,
        category_places=np.arange(len(annotations.category_ids), dtype=np.int32),
        image_ids=annotations.image_ids,
        file_names=annotations.file_names,
        widths=annotations.widths,
        heights=annotations.heights,
        image_places=np.arange(images, dtype=np.int32),
        image_had_unreadable_boxes=np.zeros(images, dtype=np.bool_),
        image_of_box=np.repeat(np.arange(images, dtype=np.int32), boxes_per_image),
        boxes=annotations.boxes,
        box_category_ids=annotations.box_category_ids,
        box_is_crowd=annotations.box_is_crowd,
        box_areas=annotations.box_areas,
        box_ids=annotations.box_ids,
        box_places=np.arange(boxes, dtype=np.int32),
        unreadable_category_ids=frozenset(),
        unreadable_categories=0,
        unreadable_images=0,
        unreadable_boxes=0,
    )


@dataclass(frozen=True, eq=False)
class Good:
    """Which entries a clean index keeps; checks clear what is bad."""

    images: NDArray[np.bool_]
    """[I]"""
    boxes: NDArray[np.bool_]
    """[B]"""

    @classmethod
    def everything(cls, entries: Entries) -> "Good":
        """All entries that can be read and whose image is known."""
        return cls(np.ones(len(entries.image_ids), dtype=np.bool_), entries.image_of_box >= 0)


def read_entries(path: Path, findings: Findings, *, advance: Advance) -> Entries | None:
    """Read a COCO-format JSON file as far as it can be read.

    Returns None where the file is no JSON, lacks a list, or has no category or image left.

    Args:
        path: The file.
        findings: Faults are added here.
        advance: Called with the number of bytes that were read.
    """
    lists = {name: ListColumns(name) for name in FIELDS}
    try:
        with no_garbage_collection():
            for name, entries in stream_lists(path, FIELDS, advance=advance):
                lists[name].extend(entries, findings)
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


class ListColumns:
    """The columns of one list while it is read, without entries that have a fault."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.length = 0
        """Entries in the file so far"""
        self.readable = 0
        self.columns = GrowingColumns()
        self.unreadable_ids: set[int] = set()
        """Ids of entries that have another fault"""
        self.unreadable_image_ids: set[int] = set()
        """Ids of images that such entries name"""

    @property
    def unreadable(self) -> int:
        """Entries that are no part of the columns."""
        return self.length - self.readable

    def extend(self, entries: list[Any], findings: Findings) -> None:
        """Append some entries, and add the faults of the others to the findings."""
        faults: list[Fault] = []
        columns = checked_columns(self.name, entries, faults.append)
        rows = np.arange(len(entries), dtype=np.int32)
        if faults:
            for fault in sorted(faults, key=lambda fault: (fault.row, fault.field != "id")):
                place = f"{self.name}[{self.length + fault.row}]"
                field = f".{fault.field}" if fault.field else ""
                findings.add(fault.kind, Place(place + field, fault.found))
            bad = {fault.row for fault in faults}
            self.note_ids([entries[row] for row in bad])
            rows = np.array([row for row in rows.tolist() if row not in bad], dtype=np.int32)
            columns = checked_columns(self.name, [entries[row] for row in rows], faults.append)
        self.readable += len(rows)
        self.columns.extend(columns | {"place": self.length + rows})
        self.length += len(entries)

    def note_ids(self, entries: list[Any]) -> None:
        """Note the ids that entries with a fault give."""
        for entry in entries:
            if isinstance(entry, dict):
                for field, ids in (
                    ("id", self.unreadable_ids),
                    ("image_id", self.unreadable_image_ids),
                ):
                    if integers([entry.get(field)]) is not None:
                        ids.add(entry[field])


def join_lists(lists: dict[str, ListColumns], findings: Findings) -> Entries:
    """Join the three lists, boxes with their images."""
    categories, images, boxes = (
        lists[name].columns.finish() for name in ("categories", "images", "annotations")
    )
    check_missing_ids(boxes, findings)
    image_of_box = positions_in(images["id"], boxes["image_id"])
    # An image that is listed with a fault is a finding of its own.
    unreadable = as_array(lists["images"].unreadable_ids)
    findings.add_rows(
        "image_id_unknown",
        np.flatnonzero((image_of_box < 0) & ~np.isin(boxes["image_id"], unreadable)),
        lambda row: Place(
            f"annotations[{boxes['place'][row]}].image_id", str(boxes["image_id"][row])
        ),
    )
    return Entries(
        box_list="annotations",
        category_ids=categories["id"],
        category_names=tuple(categories["name"]),
        category_places=categories["place"],
        image_ids=images["id"],
        file_names=images["file_name"],
        widths=images["width"],
        heights=images["height"],
        image_places=images["place"],
        image_had_unreadable_boxes=np.isin(
            images["id"], as_array(lists["annotations"].unreadable_image_ids)
        ),
        image_of_box=image_of_box,
        boxes=boxes["boxes"],
        box_category_ids=boxes["category_id"],
        box_is_crowd=boxes["iscrowd"],
        box_areas=boxes["area"],
        box_ids=boxes["id"],
        box_places=boxes["place"],
        unreadable_category_ids=frozenset(lists["categories"].unreadable_ids),
        unreadable_categories=lists["categories"].unreadable,
        unreadable_images=lists["images"].unreadable,
        unreadable_boxes=lists["annotations"].unreadable,
    )


def check_missing_ids(boxes: dict[str, Any], findings: Findings) -> None:
    """Number boxes from 1 where none has an id; where some have, report the others."""
    missing = boxes["id"] == NO_ID
    if not missing.all():
        findings.add_rows(
            "annotation_id_missing",
            np.flatnonzero(missing),
            lambda row: Place(f"annotations[{boxes['place'][row]}].id", "missing"),
        )
    if missing.any():
        highest = max(0, int(boxes["id"].max()))
        boxes["id"][missing] = highest + 1 + np.arange(int(missing.sum()))


def as_array(ids: Iterable[int]) -> NDArray[np.int64]:
    """Return a set of ids as int64 [N]."""
    return np.fromiter(ids, dtype=np.int64)


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
        kinds = {
            "box_not_finite": ~np.isfinite(boxes).all(axis=1),
            "box_negative_side": (upper < lower).any(axis=1),
            "box_zero_size": (upper == lower).any(axis=1),
            # Without a known image there is nothing to be outside of.
            **{kind: flags & (images >= 0) for kind, flags in of_image.items()},
        }
    return first_of_each_row(kinds)


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


def clean_images(entries: Entries, good: Good) -> NDArray[np.bool_]:
    """Images [I] that remain.

    One all of whose boxes are bad goes with them: it would teach that there is nothing in it.
    """
    images = len(entries.image_ids)
    named = entries.image_of_box[entries.image_of_box >= 0]
    had_boxes = np.bincount(named, minlength=images) > 0
    had_boxes |= entries.image_had_unreadable_boxes
    has_boxes = np.bincount(entries.image_of_box[good.boxes], minlength=images) > 0
    return good.images & (has_boxes | ~had_boxes)


def clean_annotations(entries: Entries, good: Good) -> Annotations:
    """The good entries, boxes in the order of their images."""
    images = clean_images(entries, good)
    rows_kept = np.flatnonzero(good.boxes & images[entries.image_of_box])
    rows = np.cumsum(images) - 1
    image_of_box = rows[entries.image_of_box[rows_kept]]
    order = rows_kept[np.argsort(image_of_box, kind="stable")]
    per_image = np.bincount(image_of_box, minlength=int(images.sum()))
    names = (entries.file_names[row] for row in np.flatnonzero(images).tolist())
    return Annotations(
        category_ids=entries.category_ids,
        category_names=tuple(entries.category_names),
        image_ids=entries.image_ids[images],
        file_names=TextColumn.of(names),
        widths=entries.widths[images],
        heights=entries.heights[images],
        box_offsets=np.concatenate([[0], np.cumsum(per_image)]).astype(np.int64),
        boxes=entries.boxes[order],
        box_category_ids=entries.box_category_ids[order],
        box_is_crowd=entries.box_is_crowd[order],
        box_areas=entries.box_areas[order],
        box_ids=entries.box_ids[order],
    )
