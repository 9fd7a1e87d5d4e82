"""COCO-format JSON to columns, with what cannot be one set aside as findings.

Parts without a mistake, nearly all of them, take the strict reader's way; in the others every
entry is looked at.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.coco_json import (
    NO_ID,
    box_columns,
    category_columns,
    image_columns,
    no_garbage_collection,
)
from data.columns import JsonTable, shown
from data.json_stream import Advance, stream_lists
from data.positions import positions_in
from data.verify.entries import Entries
from data.verify.entry_faults import Fault, box_faults, category_faults, image_faults, is_id
from data.verify.findings import Findings, Place
from data.verify.list_columns import ListColumns
from retinanet.errors import InputError


class Format(NamedTuple):
    """How the entries of a list are read, and judged one by one."""

    columns: Callable[[JsonTable], dict[str, Any]]
    faults: Callable[[Any], Iterator[Fault]]


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
