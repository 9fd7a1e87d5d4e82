"""COCO-format JSON, read and checked once, a part at a time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from data.columns import JsonTable, shown
from data.growing import GrowingColumns
from data.image_paths import leaves_folder
from data.json_stream import Advance, stream_lists
from data.positions import positions_in, repeated
from data.text_column import TextColumn
from retinanet.errors import InputError

INT32_MAX = 2**31 - 1
GROUP_FIELDS = ("IsGroupOf", "isgroupof")
LARGEST_COORDINATE = 1e9
"""Pixels; sums and products of such numbers are finite, in float32 too."""
NO_ID = -(2**63)
"""What no annotation's id can be."""

Columns = dict[str, Any]


def read_annotations(path: Path, *, advance: Advance = lambda done: None) -> Annotations:
    """Read and check a COCO-format JSON file (https://cocodataset.org/#format-data).

    `iscrowd`, `area` and the annotations' `id` may be missing (0, width × height, 1, 2, 3, …);
    a true `IsGroupOf`, in the annotation or its `attributes`, counts as `iscrowd`. Extra fields
    are ignored. Takes a gigabyte for ten million boxes.

    Args:
        path: The file.
        advance: Called with the number of bytes that were read.

    Raises:
        InputError: One line naming the file and the entry, for anything COCO's format does not
            allow: see `data.columns`.
    """
    with no_garbage_collection():
        columns = read_columns(path, advance=advance)
    categories, images, boxes = columns["categories"], columns["images"], columns["annotations"]
    boxes["id"] = given_or_counted(boxes["id"], path)
    for name in columns:
        check_unique(columns[name]["id"], path=path, name=name)
    rows_of(boxes["category_id"], categories["id"], path=path, field="category_id")
    image_of_box = rows_of(boxes.pop("image_id"), images["id"], path=path, field="image_id")
    boxes_per_image = np.bincount(image_of_box, minlength=len(images["id"]))
    by_image = np.argsort(image_of_box, kind="stable")
    del image_of_box
    # Columns are taken out one by one, so that only one of them is there twice at a time.
    return Annotations(
        category_ids=categories["id"],
        category_names=tuple(categories["name"]),
        image_ids=images["id"],
        file_names=images["file_name"],
        widths=images["width"],
        heights=images["height"],
        box_offsets=np.concatenate([[0], np.cumsum(boxes_per_image)]).astype(np.int64),
        boxes=boxes.pop("boxes")[by_image],
        box_category_ids=boxes.pop("category_id")[by_image],
        box_is_crowd=boxes.pop("iscrowd")[by_image],
        box_areas=boxes.pop("area")[by_image],
        box_ids=boxes.pop("id")[by_image],
    )


def read_columns(path: Path, *, advance: Advance) -> dict[str, Columns]:
    """The columns of each list, as they stand in the file."""
    readers = {"images": image_columns, "annotations": box_columns, "categories": category_columns}
    growing = {name: GrowingColumns() for name in readers}
    lengths = dict.fromkeys(readers, 0)
    for name, entries in stream_lists(path, readers, advance=advance):
        table = JsonTable(path, name, entries, first=lengths[name])
        lengths[name] += len(entries)
        growing[name].extend(readers[name](table))
    for name in ("images", "categories"):
        if not lengths[name]:
            raise InputError(f"{path}: {name}: empty; a data set needs at least one")
    return {name: columns.finish() for name, columns in growing.items()}


def category_columns(table: JsonTable) -> Columns:
    """`id` and `name`."""
    return {"id": table.integers("id"), "name": TextColumn.of(table.strings("name"))}


def image_columns(table: JsonTable) -> Columns:
    """`id`, `file_name`, `width` and `height`. Strings as ids, as OpenImages' own image ids, are
    refused: pycocotools and MLPerf's JSON want integers.
    """
    sides = {
        field: table.integers(field, minimum=1, maximum=INT32_MAX).astype(np.int32)
        for field in ("width", "height")
    }
    names = TextColumn.of(relative_file_names(table))
    return {"id": table.integers("id"), "file_name": names, **sides}


def box_columns(table: JsonTable) -> Columns:
    """`image_id`, `category_id`, `boxes` as xyxy, `iscrowd`, `area`, and `id` or NO_ID."""
    image_ids, category_ids = table.integers("image_id"), table.integers("category_id")
    xywh = table.boxes("bbox", largest=LARGEST_COORDINATE)
    has_ids = any("id" in entry for entry in table.entries)
    return {
        "image_id": image_ids,
        "category_id": category_ids,
        "boxes": np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
        "iscrowd": crowd_flags(table),
        "area": table.numbers("area", default=xywh[:, 2] * xywh[:, 3]),
        "id": table.integers("id") if has_ids else np.full(len(image_ids), NO_ID),
    }


def given_or_counted(ids: NDArray[np.int64], path: Path) -> NDArray[np.int64]:
    """The annotations' ids, or 1, 2, 3, … where none has one."""
    missing = ids == NO_ID
    if missing.all():
        return np.arange(1, len(ids) + 1)
    if missing.any():
        raise InputError(
            f"{path}: annotations[{missing.argmax()}].id: missing; others have one: give each its "
            "own, or none"
        )
    return ids


def check_unique(ids: NDArray[np.int64], *, path: Path, name: str) -> None:
    """Refuse an id that two entries of a list have."""
    rows = repeated(ids)
    if len(rows):
        raise InputError(
            f"{path}: {name}[{rows[0]}].id: {ids[rows[0]]} was given to an earlier entry; "
            "make ids unique"
        )


def rows_of(
    ids: NDArray[np.int64], known: NDArray[np.int64], *, path: Path, field: str
) -> NDArray[np.int32]:
    """The position in `known` of every id; InputError for one that is not there."""
    rows = positions_in(known, ids)
    unknown = rows < 0
    if unknown.any():
        index = unknown.argmax()
        target = {"image_id": "images", "category_id": "categories"}[field]
        raise InputError(
            f"{path}: annotations[{index}].{field}: {ids[index]} is no id in {target}; "
            "add it there or drop the box"
        )
    return rows


def relative_file_names(table: JsonTable) -> tuple[str, ...]:
    """The `file_name` column; InputError for one that leaves the folder of images."""
    names = table.strings("file_name")
    for index, name in enumerate(names):
        if leaves_folder(name):
            table.fail(
                index,
                "file_name",
                f"expected a path inside the folder of images, found {shown(name)}",
            )
    return names


def crowd_flags(table: JsonTable) -> NDArray[np.bool_]:
    """COCO's `iscrowd` or OpenImages' `IsGroupOf`, whichever is true."""
    crowd = table.flags("iscrowd")
    for field in GROUP_FIELDS:
        crowd |= table.flags(field)
    attributes = table.values("attributes", default=None)
    if any(attributes):
        dicts = [a if isinstance(a, dict) else {} for a in attributes]
        nested = JsonTable(table.file, table.name, dicts, first=table.first)
        for field in GROUP_FIELDS:
            crowd |= nested.flags(field)
    return crowd


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Values of JSON hold no cycles; looking for some takes a third of the time of reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
