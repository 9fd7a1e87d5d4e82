"""COCO-format JSON: one validator for its three lists, and columns of what can be read.

`FIELDS` defines what an entry of `images`, `annotations` and `categories` must hold. A part of a
list is checked column by column, which is fast; single values are looked at only where a column
has a fault. Faults become `Findings`, of which `read_annotations` stops at the first. An entry that
cannot be read is left out: the others become `Entries`, with their places in the file. Odd values
whose meaning is plain, such as `"iscrowd": null`, are taken: `plain_entry`.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.console import Advance, ignore_progress
from common.errors import InputError, require_few_classes
from data.annotations import (
    BOX_COLUMNS,
    IMAGE_ARRAYS,
    IMAGE_COLUMNS,
    UNNAMED,
    Annotations,
    GrowingColumns,
    TextColumn,
    enclosing_box,
    leaves_folder,
    offsets_of,
    positions_in,
    repeated,
    require_pixels,
    shown,
    spellings,
)
from data.findings import TAKEN, Findings, Place
from data.json_lists import no_garbage_collection, stream_lists

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
LARGEST_COORDINATE = 1e9  # pixels; sums and products of such numbers are finite, in float32 too
DISPLAYED = "exif_applied"
"""Our mark on an image: its size and boxes are of the photo as EXIF displays it."""
UNKNOWN_SIZE = 0  # stands for a missing width or height, where the images are at hand
NO_ID = -(2**63)  # stands for an annotation's missing id; no id can be this number
Columns = dict[str, Any]


def bring_inside(images: list[Any]) -> None:
    """Shorten file names that leave the folder of images to their parts inside, where any are."""
    for image in images:
        name = image.get("file_name") if isinstance(image, dict) else None
        if isinstance(name, str) and leaves_folder(name):
            image["file_name"] = next(iter(spellings(name)), name)


def clip_rotated(boxes: Columns, images: Columns, image_of_box: NDArray[np.int32]) -> None:
    """Clip enclosing boxes to their images: the object is inside, their corners may not be.

    Removes the column that marks them. A row of -1 is no image, and a size of 0 is not known.
    """
    rows = np.flatnonzero(boxes.pop("is_rotated") & (image_of_box >= 0))
    sizes = np.stack([images["widths"], images["heights"]], axis=1)[image_of_box[rows]]
    limits = np.where(sizes == UNKNOWN_SIZE, LARGEST_COORDINATE, sizes)
    boxes["boxes"][rows] = np.clip(boxes["boxes"][rows], 0, np.tile(limits, 2))


MISSING, ABSENT, UNKNOWN, ENCLOSED = object(), object(), object(), object()
"""Stand for the value of a field that an entry lacks: a required one, an optional one, and a side
of an image, which the image has; and for a rotation whose enclosing box is taken."""


class Field(NamedTuple):
    """The requirements on a field of the entries of a list."""

    name: str  # `attributes.IsGroupOf` is a field of the object `attributes`
    convert: Callable[[list[Any]], Any]
    """Returns values as a column, or None where one of them is not valid"""
    kind: str | Callable[[Any], str]
    """The kind of finding for an invalid value, see `data.findings.KINDS`"""
    expected: str
    default: Any = MISSING  # stands in where an entry lacks the field, unless it is required


class Fault(NamedTuple):
    """A mistake in an entry of a list."""

    row: int  # among the entries that were checked
    kind: str
    field: str  # empty if the entry itself is the fault
    found: str
    expected: str


def checked_columns(name: str, entries: list[Any], report: Callable[[Fault], None]) -> Columns:
    """Return the columns of entries of the list `name`; unusable if faults were reported."""
    rows: Collection[int] = range(len(entries))
    if not set(map(type, entries)) <= {dict}:
        for row, entry in enumerate(entries):
            if not isinstance(entry, dict):
                report(Fault(row, "entry_not_object", "", shown(entry), "an object"))
        rows = [row for row in rows if isinstance(entries[row], dict)]
        entries = [entries[row] for row in rows]
    fields = FIELDS[name]

    def convert_fields() -> list[Any]:
        return [each.convert(field_values(entries, each.name, each.default)) for each in fields]

    columns = convert_fields()
    if any(column is None for column in columns):
        entries = [
            plain_entry(name, row, each, report) for row, each in zip(rows, entries, strict=True)
        ]
        columns = convert_fields()
    for field, column in zip(fields, columns, strict=True):
        if column is None:
            report_values(field, rows, field_values(entries, field.name, field.default), report)
    if any(column is None for column in columns):
        return {}
    return arrange(
        name, {field.name: column for field, column in zip(fields, columns, strict=True)}
    )


def report_values(
    field: Field, rows: Collection[int], values: list[Any], report: Callable[[Fault], None]
) -> None:
    """Report the faulty ones of a field's values, missing ones first."""
    for row, value in zip(rows, values, strict=True):
        if value is MISSING:
            report(Fault(row, "field_missing", field.name, "missing", field.expected))
    for row, value in zip(rows, values, strict=True):
        if value is not MISSING and field.convert([value]) is None:
            kind = field.kind if isinstance(field.kind, str) else field.kind(value)
            report(Fault(row, kind, field.name, shown(value), field.expected))


def plain_entry(
    name: str, row: int, entry: dict[str, Any], report: Callable[[Fault], None]
) -> dict[str, Any]:
    """Return an entry of the list `name` with the values whose meaning is plain; report each.

    As tools write them: `null` for a missing value, `"12"` and `12.0` for 12, a polygon and no box.
    """
    plain = dict(entry)

    def take(field: str, value: object, kind: str = "value_taken") -> None:
        found = shown(plain[field]) if field in plain else "missing"
        report(Fault(row, kind, field, found, SIDE.expected))
        plain[field] = value

    for field in INTEGERS[name]:
        number = whole_number(plain.get(field))
        if number is not None and type(plain[field]) is not int:
            take(field, number)
    if name == "images":
        for side in SIDES:
            if plain.get(side) is None or plain[side] == 0:
                take(side, UNKNOWN, "image_size_missing")
    if name == "annotations":
        for field, missing in {"id": ABSENT, **dict.fromkeys(CROWD_FLAGS[:3], 0)}.items():
            if field in plain and plain[field] is None:
                take(field, missing)
        if not plain.get("bbox") and (box := box_of_polygons(plain.get("segmentation"))):
            take("bbox", box, "box_of_polygon")
        attributes = plain.get("attributes")
        if isinstance(attributes, dict) and (degrees := angle(attributes.get("rotation"))):
            plain["attributes"] = attributes | {"rotation": ENCLOSED}
            if bboxes([plain.get("bbox")]) is not None:
                x, y, width, height = plain["bbox"]
                x1, y1, x2, y2 = enclosing_box((x, y, x + width, y + height), degrees)
                take("bbox", [x1, y1, x2 - x1, y2 - y1], "box_rotated")
    return plain


def whole_number(value: object) -> int | None:
    """Return an integer, also from a float or from digits; None for any other value."""
    if type(value) is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if type(value) is int else None


def box_of_polygons(segmentation: object) -> list[float] | None:
    """Return `[x, y, width, height]` around COCO's polygons, `[[x1, y1, x2, y2, …], …]`."""
    if not (isinstance(segmentation, list) and set(map(type, segmentation)) == {list}):
        return None
    points = finite(list(chain.from_iterable(segmentation)))
    if points is None or not len(points) or any(len(part) % 2 for part in segmentation):
        return None
    low, high = points.reshape(-1, 2).min(axis=0), points.reshape(-1, 2).max(axis=0)
    return [*low.tolist(), *(high - low).tolist()]


def field_values(entries: list[dict[str, Any]], name: str, default: Any) -> list[Any]:
    """Return the field of every entry, unchecked; `default` where an entry lacks it."""
    parent, _, key = name.rpartition(".")
    if parent:
        parents = [entry.get(parent) for entry in entries]
        if not any(parents):
            return [default] * len(entries)
        # `attributes` is an extension: of any other type than an object, it has no flag; nor has a
        # null in it.
        entries = [parent if isinstance(parent, dict) else {} for parent in parents]
        return [default if entry.get(key) is None else entry[key] for entry in entries]
    return [entry.get(key, default) for entry in entries]


def integers(
    values: list[Any], minimum: int = -INT64_MAX, maximum: int = INT64_MAX
) -> NDArray[np.int64] | None:
    """Convert integers within the bounds. `true` is none; see `plain_entry` for 1.0 and "1"."""
    # Exact types, since bool is a subclass of int: `true` is no id.
    if values and not (
        set(map(type, values)) <= {int} and minimum <= min(values) <= max(values) <= maximum
    ):
        return None
    return np.array(values, dtype=np.int64)


def convert_optional(
    convert: Callable[[list[Any]], NDArray[Any] | None],
    absent: object,
    fill: float,
    values: list[Any],
) -> NDArray[Any] | None:
    """Convert values; those that are `absent` become `fill`."""
    column = convert(values)
    if column is None:
        column = convert([value for value in values if value is not absent])
        if column is not None:
            is_given = [value is not absent for value in values]
            given, column = column, np.full(len(values), fill, dtype=column.dtype)
            column[is_given] = given
    return column


def texts(values: list[Any]) -> list[str] | None:
    """Accept strings, none of them empty."""
    return values if set(map(type, values)) <= {str} and all(values) else None


def inside_folder(values: list[Any]) -> TextColumn | None:
    """Convert file names, none of which leaves the folder of images."""
    if any(isinstance(value, str) and leaves_folder(value) for value in values):
        return None
    return TextColumn.of(value for value in values if isinstance(value, str))


def flags(values: list[Any]) -> NDArray[np.bool_] | None:
    """Convert `true`, `false`, 0 and 1."""
    if not (set(map(type, values)) <= {int, bool} and set(values) <= {0, 1}):
        return None
    return np.array(values, dtype=np.bool_)


def marks(values: list[Any]) -> NDArray[np.bool_]:
    """Return which values are `true`."""
    return np.array([value is True for value in values], dtype=np.bool_)


def angle(value: object) -> float:
    """Return a rotation in degrees, from 0 to 180; 0 for any other value than a finite number."""
    return float(value % 180) if isinstance(value, int | float) and abs(value) < 1e9 else 0.0


def enclosed(values: list[Any]) -> NDArray[np.bool_] | None:
    """Return which boxes enclose a rotated one; None where one is to be enclosed."""
    if any(values) and any(map(angle, values)):
        return None
    return np.array([value is ENCLOSED for value in values], dtype=np.bool_)


def areas(values: list[Any]) -> NDArray[np.float64] | None:
    """Convert finite numbers of at least 0; NaN where None."""
    column = convert_optional(finite, None, np.nan, values)
    return None if column is None or bool((column < 0).any()) else column


def finite(values: list[Any]) -> NDArray[np.float64] | None:
    """Convert finite numbers to float64."""
    if not set(map(type, values)) <= {int, float}:
        return None
    try:
        # JSON's integers have any length; one beyond the range of float64 raises OverflowError.
        array = np.array(values, dtype=np.float64)
    except OverflowError:
        return None
    return array if bool(np.isfinite(array).all()) else None


def bboxes(values: list[Any]) -> NDArray[np.float64] | None:
    """Convert boxes of x, y, width and height in pixels to `[N, 4]`."""
    if not (set(map(type, values)) <= {list} and set(map(len, values)) <= {4}):
        return None
    array = finite(list(chain.from_iterable(values)))
    if array is None or bool((np.abs(array) > LARGEST_COORDINATE).any()):
        return None
    array = array.reshape(-1, 4)
    return None if bool((array[:, 2:] < 0).any()) else array


def bbox_kind(value: Any) -> str:
    """Return the kind of finding for an invalid `bbox`."""
    if not (isinstance(value, list) and len(value) == 4 and set(map(type, value)) <= {int, float}):
        return "box_not_four_numbers"
    array = finite(value)
    if array is None or bool((np.abs(array) > LARGEST_COORDINATE).any()):
        return "box_not_finite"
    return "box_negative_side"


ID = Field("id", integers, "id_invalid", "an integer")
SIDES = ("width", "height")
SIDE = Field(
    "",
    partial(
        convert_optional, partial(integers, minimum=1, maximum=INT32_MAX), UNKNOWN, UNKNOWN_SIZE
    ),
    "image_size_invalid",
    f"an integer from 1 to {INT32_MAX}",
)
TEXT = "a string that is not empty"
FLAG = Field("", flags, "crowd_flag_invalid", "0 or 1", default=0)
CROWD_FLAGS = (
    "iscrowd",  # COCO's
    *("IsGroupOf", "isgroupof"),  # OpenImages', as its CSV files and FiftyOne write it
    *("attributes.IsGroupOf", "attributes.isgroupof"),
)

# In the order in which faults of one part are found. Strings as ids, as OpenImages' own image ids,
# are refused unless they are digits: pycocotools and MLPerf's JSON require integers.
FIELDS = {
    "categories": (
        ID,
        Field("name", texts, "category_name_invalid", TEXT),
        Field("supercategory", list, "", "", default=""),
    ),
    "images": (
        *(SIDE._replace(name=name) for name in SIDES),
        Field("file_name", texts, "file_name_invalid", TEXT),
        Field(
            "file_name",
            inside_folder,
            "file_name_leaves_folder",
            "a path inside the folder of images",
            default="",
        ),
        ID,
        Field(DISPLAYED, marks, "", "", default=False),
    ),
    "annotations": (
        ID._replace(name="image_id"),
        ID._replace(name="category_id"),
        Field(
            "bbox",
            bboxes,
            bbox_kind,
            "[x, y, width, height]: 4 finite numbers, the last two ≥ 0 and none beyond "
            f"{LARGEST_COORDINATE:g}",
        ),
        *(FLAG._replace(name=name) for name in CROWD_FLAGS),
        Field("attributes.rotation", enclosed, "", "", default=0),
        Field("area", areas, "area_invalid", "a number ≥ 0", default=None),
        ID._replace(convert=partial(convert_optional, integers, ABSENT, NO_ID), default=ABSENT),
    ),
}


INTEGERS = {
    "categories": ("id",),
    "images": ("id", *SIDES),
    "annotations": ("id", "image_id", "category_id", "iscrowd"),
}


def arrange(name: str, columns: Columns) -> Columns:
    """Return the columns of a list as those of `Annotations`, and each box's `image_id`."""
    if name == "categories":
        # Roboflow's tree of categories begins with one that is no class.
        parents = columns["supercategory"]
        is_root = [
            number == 0 and parent == "none" and name != parent and name in parents
            for number, name, parent in zip(columns["id"], columns["name"], parents, strict=True)
        ]
        return {
            "category_ids": columns["id"],
            "category_names": TextColumn.of(columns["name"]),
            "category_is_root": np.array(is_root, dtype=np.bool_),
        }
    if name == "images":
        return {
            "image_ids": columns["id"],
            "file_names": columns["file_name"],
            "widths": columns["width"].astype(np.int32),
            "heights": columns["height"].astype(np.int32),
            "is_displayed": columns[DISPLAYED],
        }
    xywh, area = columns["bbox"], columns["area"]
    return {
        "image_id": columns["image_id"],
        "boxes": np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1),
        "box_category_ids": columns["category_id"],
        "box_is_crowd": np.logical_or.reduce([columns[flag] for flag in CROWD_FLAGS]),
        "box_areas": np.where(np.isnan(area), xywh[:, 2] * xywh[:, 3], area),
        "box_ids": columns["id"],
        "is_rotated": columns["attributes.rotation"],
    }


@dataclasses.dataclass(eq=False)
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
    category_is_root: NDArray[np.bool_] | None = None  # [C] see `arrange`
    unreadable_category_ids: frozenset[int] = frozenset()  # of entries with a fault elsewhere
    unreadable_categories: int = 0
    unreadable_images: int = 0
    unreadable_boxes: int = 0
    good_images: NDArray[np.bool_] = dataclasses.field(
        init=False
    )  # [I] for a clean index; checks clear others
    good_boxes: NDArray[np.bool_] = dataclasses.field(init=False)  # [B]
    is_read: NDArray[np.bool_] = dataclasses.field(
        init=False
    )  # [I] whether the run reads the image
    class_counts: NDArray[np.int64] = dataclasses.field(init=False)
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


def read_annotations(
    path: Path,
    *,
    advance: Advance = ignore_progress,
    findings: Findings | None = None,
    is_export: bool = False,
) -> Annotations:
    """Read and check a COCO-format JSON file (https://cocodataset.org/#format-data).

    `iscrowd`, `area` and the annotations' `id` may be missing (0, width × height, 1, 2, 3, …);
    a true `IsGroupOf`, in the annotation or its `attributes`, counts as `iscrowd`. Extra fields
    are ignored. Takes a gigabyte for ten million boxes. `findings`, which must refuse, gets the
    notes; for `advance` and `is_export` see `read_entries`.

    Raises:
        InputError: One line that names the file and the entry, for the first fault.
    """
    findings = findings or Findings(refusing=path)
    entries = read_entries(path, findings, advance=advance, is_export=is_export)
    assert entries is not None
    leave_out_root(entries, findings)
    check_ids(entries, findings)
    require_pixels(entries.boxes, source=f"{path}: annotations")
    return clean_annotations(entries, release=True)


def category_columns(path: Path, entries: list[Any]) -> Columns:
    """Return ids and names of a list of categories; raise InputError at the first fault."""
    findings, categories = Findings(refusing=path), ListColumns("categories", TAKEN)
    categories.extend(entries, findings)
    columns = categories.columns.finish()

    def place_of(row: int, field: str, value: object) -> Place:
        return Place(f"categories[{row}]{field}", str(value))

    check_unique(columns["category_ids"], "category_id_duplicate", findings, place_of)
    return columns


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
    `usable` are taken. Of a tool's export (`is_export`), file names that leave the folder of images
    lose their first parts (`spellings`).
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
        if findings.refusing is not None:
            raise
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
                found = Place(place + field, fault.found)
                findings.add(fault.kind, found, expected=fault.expected)
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


def check_unique(
    ids: NDArray[np.int64], kind: str, findings: Findings, place_of: Callable[..., Place]
) -> NDArray[np.int64]:
    """Find ids that an earlier entry has, and return their rows."""
    later = repeated(ids)
    findings.add_rows(kind, later, lambda row: place_of(row, ".id", ids[row]))
    return later


def leave_out_root(entries: Entries, findings: Findings) -> None:
    """Leave out the root of Roboflow's tree of categories, unless it has boxes."""
    if entries.category_is_root is None:
        return
    is_out = entries.category_is_root & ~np.isin(entries.category_ids, entries.box_category_ids)
    names = entries.category_names
    findings.add_rows(
        "category_root",
        np.flatnonzero(is_out),
        lambda row: entries.category_place(row, "", names[row]),
    )
    entries.category_names = TextColumn.of(names[row] for row in np.flatnonzero(~is_out).tolist())
    for name in ("category_ids", "category_places", "category_is_root"):
        setattr(entries, name, getattr(entries, name)[~is_out])


def check_ids(entries: Entries, findings: Findings) -> None:
    """Find duplicate ids in each of the lists, and boxes of unknown categories."""
    category_ids, image_ids, box_ids = entries.category_ids, entries.image_ids, entries.box_ids
    unknown = positions_in(category_ids, entries.box_category_ids) < 0
    entries.good_boxes[unknown] = False
    check_unique(category_ids, "category_id_duplicate", findings, entries.category_place)
    check_names(entries, findings)
    later = check_unique(image_ids, "image_id_duplicate", findings, entries.image_place)
    # If the same image occurs twice, the first is good. Of different images with one id none is:
    # nothing shows which of them the boxes belong to.
    entries.good_images[later] = False
    images = (entries.file_names, entries.widths, entries.heights)
    for row, first in zip(later, positions_in(image_ids, image_ids[later]), strict=True):
        if any(column[row] != column[first] for column in images):
            entries.good_images[first] = False
    later_boxes = check_unique(box_ids, "annotation_id_duplicate", findings, entries.box_place)
    entries.good_boxes[later_boxes] = False
    # A category that is listed with a fault is a finding of its own.
    unreadable = np.fromiter(entries.unreadable_category_ids, dtype=np.int64)
    findings.add_rows(
        "category_id_unknown",
        np.flatnonzero(unknown & ~np.isin(entries.box_category_ids, unreadable)),
        lambda row: entries.box_place(row, ".category_id", entries.box_category_ids[row]),
    )


def check_names(entries: Entries, findings: Findings) -> None:
    """Find categories whose name an earlier one has, or that differs only in case or blanks."""
    first: dict[str, str] = {}
    for row, name in enumerate(entries.category_names):
        earlier = first.setdefault("".join(name.split()).casefold(), name)
        if name != UNNAMED and (earlier is not name):
            place = entries.category_place(row, ".name", f"{name!r}, another is {earlier!r}")
            findings.add("category_name_similar", place)


def clean_images(entries: Entries) -> NDArray[np.bool_]:
    """Return a mask [I] of the images to keep: all but those whose boxes are all invalid."""
    images = len(entries.image_ids)
    named = entries.image_of_box[entries.image_of_box >= 0]
    had_boxes = np.bincount(named, minlength=images) > 0
    had_boxes |= entries.image_had_unreadable_boxes
    has_boxes = np.bincount(entries.image_of_box[entries.good_boxes], minlength=images) > 0
    return entries.good_images & (has_boxes | ~had_boxes)


def clean_annotations(entries: Entries, *, release: bool = False) -> Annotations:
    """Return the good entries, boxes in the order of their images.

    With `release` the entries lose their columns, so that one at a time is in memory twice.
    """
    images = clean_images(entries)
    # Row -1 (no known image) reads the last image's flag, but such boxes are never good.
    box_rows = np.flatnonzero(entries.good_boxes & images[entries.image_of_box])
    # The number of images kept so far, less one, is an image's row among those kept.
    image_of_box = (np.cumsum(images) - 1)[entries.image_of_box[box_rows]]
    order = box_rows[np.argsort(image_of_box, kind="stable")]
    per_image = np.bincount(image_of_box, minlength=int(images.sum()))
    names_kept = (entries.file_names[row] for row in np.flatnonzero(images).tolist())
    take = vars(entries).pop if release else partial(getattr, entries)
    columns = {name: take(name)[images] for name in IMAGE_ARRAYS}
    return Annotations(
        category_ids=entries.category_ids,
        category_names=tuple(entries.category_names),
        file_names=entries.file_names if images.all() else TextColumn.of(names_kept),
        box_offsets=offsets_of(per_image),
        **columns,
        **{name: take(name)[order] for name in BOX_COLUMNS},
    )
