"""What can be read of a split's annotations, as columns, with the place of each entry.

TODO-DOC COCO-format JSON to columns, with what cannot be one set aside as findings.

Parts without a mistake, nearly all of them, take the strict reader's way; in the others every
entry is looked at.

TODO-DOC The columns of one of COCO's lists while it is read.

TODO-DOC What is wrong with one entry of COCO's lists.

The same rules as `data.coco_json` has; that stops at the first mistake, here all are told.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError
from data.annotations import Annotations, GrowingColumns, positions_in
from data.coco_json import (
    GROUP_FIELDS,
    INT32_MAX,
    INT64_MAX,
    NO_ID,
    Advance,
    JsonTable,
    box_columns,
    category_columns,
    image_columns,
    no_garbage_collection,
    stream_lists,
)
from data.sources import leaves_folder, shown
from data.verify.findings import Findings, Place


@dataclass(frozen=True, eq=False)
class Entries:
    """C categories, I images and B boxes, in the order of their lists."""

    path: Path
    """The JSON file, or the index"""
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


def entries_of_index(folder: Path, annotations: Annotations) -> Entries:
    """An index's columns; all of its entries can be read."""
    images, boxes = len(annotations), len(annotations.boxes)
    boxes_per_image = np.diff(annotations.box_offsets)
    return Entries(
        path=folder,
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


class Fault(NamedTuple):
    """A mistake in an entry."""

    kind: str
    field: str | None
    found: Any


class Format(NamedTuple):
    """How the entries of a list are read, and judged one by one."""

    columns: Callable[[JsonTable], dict[str, Any]]
    faults: Callable[[Any], Iterator[Fault]]


def required(
    entry: dict[str, Any], field: str, is_valid: Callable[[Any], bool], kind: str
) -> Iterator[Fault]:
    """A field that must be there, and be valid."""
    if field not in entry:
        yield Fault("field_missing", field, None)
    elif not is_valid(entry[field]):
        yield Fault(kind, field, entry[field])


def is_id(value: Any) -> bool:
    """An integer of 64 bits; `true` is none."""
    return type(value) is int and -INT64_MAX <= value <= INT64_MAX


def is_text(value: Any) -> bool:
    """A string that is not empty."""
    return isinstance(value, str) and value != ""


def category_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `categories`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "name", is_text, "category_name_invalid")


def is_side(value: Any) -> bool:
    """A width or a height in pixels."""
    return type(value) is int and 1 <= value <= INT32_MAX


def image_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `images`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "width", is_side, "image_size_invalid")
    yield from required(entry, "height", is_side, "image_size_invalid")
    yield from required(entry, "file_name", is_text, "file_name_invalid")
    name = entry.get("file_name")
    if isinstance(name, str) and leaves_folder(name):
        yield Fault("file_name_leaves_folder", "file_name", name)


def is_number(value: Any) -> bool:
    """A JSON number, or one of NaN and the infinities; `true` is none."""
    return type(value) in (int, float)


def is_finite(value: float) -> bool:
    """Whether float64 holds the number."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def bbox_faults(bbox: Any) -> Iterator[Fault]:
    """What is wrong with x, y, width and height."""
    if not (isinstance(bbox, list) and len(bbox) == 4 and all(map(is_number, bbox))):
        yield Fault("box_not_four_numbers", "bbox", bbox)
    elif not all(map(is_finite, bbox)):
        yield Fault("box_not_finite", "bbox", bbox)
    elif bbox[2] < 0 or bbox[3] < 0:
        yield Fault("box_negative_side", "bbox", bbox)


def flag_faults(entry: dict[str, Any], fields: tuple[str, ...], *, place: str) -> Iterator[Fault]:
    """Flags that are neither 0 nor 1."""
    for field in fields:
        value = entry.get(field, 0)
        if type(value) not in (int, bool) or value not in (0, 1):
            yield Fault("crowd_flag_invalid", place + field, value)


def box_faults(entry: Any) -> Iterator[Fault]:
    """What is wrong with an entry of `annotations`."""
    if not isinstance(entry, dict):
        yield Fault("entry_not_object", None, entry)
        return
    if "id" in entry:
        yield from required(entry, "id", is_id, "id_invalid")
    yield from required(entry, "image_id", is_id, "id_invalid")
    yield from required(entry, "category_id", is_id, "id_invalid")
    if "bbox" not in entry:
        yield Fault("field_missing", "bbox", None)
    else:
        yield from bbox_faults(entry["bbox"])
    area = entry.get("area")
    if area is not None and not (is_number(area) and is_finite(area) and area >= 0):
        yield Fault("area_invalid", "area", area)
    yield from flag_faults(entry, ("iscrowd", *GROUP_FIELDS), place="")
    attributes = entry.get("attributes")
    if isinstance(attributes, dict):
        yield from flag_faults(attributes, GROUP_FIELDS, place="attributes.")


FORMATS = {
    "categories": Format(category_columns, category_faults),
    "images": Format(image_columns, image_faults),
    "annotations": Format(box_columns, box_faults),
}


def read_entries(path: Path, findings: Findings, *, advance: Advance) -> Entries | None:
    """Read a COCO-format JSON file as far as it can be read.

    Returns None where the file is no JSON, lacks a list, or has no category or image left.

    Args:
        path: The file.
        findings: What is wrong is added here.
        advance: Called with the number of bytes that were read.
    """
    lists = {name: ListColumns() for name in FORMATS}
    try:
        with no_garbage_collection():
            for name, entries in stream_lists(path, FORMATS, advance=advance):
                read_part(JsonTable(path, name, entries, lists[name].length), lists[name], findings)
                lists[name].length += len(entries)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        findings.add("annotations_unreadable", Place(path.name, reason))
        return None
    for name in ("categories", "images"):
        if not lists[name].length:
            findings.add(f"no_{name}", Place(name, "[]"))
        if not lists[name].readable:
            return None
    return joined(path, lists, findings)


class ListColumns:
    """One list's columns while they are read."""

    def __init__(self) -> None:
        self.length = 0
        """Entries in the file so far"""
        self.readable = 0
        self.columns = GrowingColumns()
        self.unreadable_ids: set[int] = set()
        """Ids of entries that are wrong otherwise"""
        self.unreadable_image_ids: set[int] = set()
        """What such entries name as their image"""

    @property
    def unreadable(self) -> int:
        """Entries that are no part of the columns."""
        return self.length - self.readable

    def extend(self, columns: dict[str, Any]) -> None:
        """Put a part's columns behind."""
        self.readable += len(columns["place"])
        self.columns.extend(columns)

    def finish(self) -> dict[str, Any]:
        """The columns, which are let go of here."""
        return self.columns.finish()


def read_part(table: JsonTable, into: ListColumns, findings: Findings) -> None:
    """Add some entries of a list to its columns, and what is wrong with the others to findings."""
    entries, places = table.entries, np.arange(table.first, table.first + len(table.entries))
    columns = FORMATS[table.name].columns
    try:
        into.extend({**columns(table), "place": places.astype(np.int32)})
    except InputError:
        is_good = np.array([add_faults(table, row, into, findings) for row in range(len(entries))])
        # The strict reader takes ids from all boxes of a part, or from none.
        has_id = np.array([isinstance(entry, dict) and "id" in entry for entry in entries])
        for group in (is_good & has_id, is_good & ~has_id):
            rows = np.flatnonzero(group)
            if len(rows):
                chosen = [entries[row] for row in rows.tolist()]
                read = columns(JsonTable(table.file, table.name, chosen, table.first))
                into.extend({**read, "place": places[rows].astype(np.int32)})


def add_faults(table: JsonTable, row: int, into: ListColumns, findings: Findings) -> bool:
    """Whether an entry is without a mistake."""
    entry = table.entries[row]
    faults = list(FORMATS[table.name].faults(entry))
    for fault in faults:
        place = f"{table.name}[{table.first + row}]" + (f".{fault.field}" if fault.field else "")
        found = "missing" if fault.kind == "field_missing" else shown(fault.found)
        findings.add(fault.kind, Place(place, found))
    if faults and isinstance(entry, dict):
        for field, ids in (("id", into.unreadable_ids), ("image_id", into.unreadable_image_ids)):
            if is_id(entry.get(field)):
                ids.add(entry[field])
    return not faults


def joined(path: Path, lists: dict[str, ListColumns], findings: Findings) -> Entries:
    """The three lists, boxes with their images."""
    categories, images = lists["categories"].finish(), lists["images"].finish()
    boxes = in_order_of_place(lists["annotations"].finish() or no_boxes())
    check_missing_ids(boxes, findings)
    image_of_box = positions_in(images["id"], boxes["image_id"])
    check_unknown_images(boxes, image_of_box, lists["images"].unreadable_ids, findings)
    return Entries(
        path=path,
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


def check_unknown_images(
    boxes: dict[str, Any],
    image_of_box: NDArray[np.int32],
    unreadable_ids: set[int],
    findings: Findings,
) -> None:
    """Find boxes of images that are not listed; one that is listed wrongly is told itself."""
    unlisted = (image_of_box < 0) & ~np.isin(boxes["image_id"], as_array(unreadable_ids))
    findings.add_rows(
        "image_id_unknown",
        np.flatnonzero(unlisted),
        lambda row: Place(
            f"annotations[{boxes['place'][row]}].image_id", str(boxes["image_id"][row])
        ),
    )


def no_boxes() -> dict[str, Any]:
    """The columns of an empty list of boxes."""
    columns = box_columns(JsonTable(Path(), "annotations", []))
    return {**columns, "place": np.zeros(0, dtype=np.int32)}


def in_order_of_place(columns: dict[str, Any]) -> dict[str, Any]:
    """Boxes of a part with and without ids were read one group after the other."""
    places = columns["place"]
    if not (places[1:] < places[:-1]).any():
        return columns
    order = np.argsort(places)
    return {field: column[order] for field, column in columns.items()}


def check_missing_ids(boxes: dict[str, Any], findings: Findings) -> None:
    """Number boxes from 1 where none has an id; where some have, tell the others."""
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
    """A set of ids as int64 [N]."""
    return np.fromiter(ids, dtype=np.int64)
