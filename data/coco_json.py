"""COCO-format JSON: one validator for its three lists, and a reader that takes them in parts.

`FIELDS` defines what an entry of `images`, `annotations` and `categories` must hold. A part of a
list is checked column by column, which is fast; single values are looked at only where a column
has a fault. `read_annotations` stops at the first fault; `data.verify` reports all of them. Odd
values whose meaning is plain, such as `"iscrowd": null`, are taken by both: `plain_entry`.

Python's own decoder needs a whole text: OpenImages' 2.6 GB would become tens of gigabytes of
objects. Here it gets one entry after the other from a window on the file. Unlike other
incremental JSON readers it accepts NaN, which a data set with a wrong box may hold.
"""

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError, require_few_classes
from common.files import open_regular
from data.annotations import (
    BOX_COLUMNS,
    Annotations,
    GrowingColumns,
    TextColumn,
    enclosing_box,
    leaves_folder,
    positions_in,
    repeated,
    require_pixels,
    shown,
    spellings,
)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
LARGEST_COORDINATE = 1e9  # pixels; sums and products of such numbers are finite, in float32 too
DISPLAYED = "exif_applied"
"""Our mark on an image: its size and boxes are of the photo as EXIF displays it."""
UNKNOWN_SIZE = 0  # stands for a missing width or height, where the images are at hand
NO_ID = -(2**63)  # stands for an annotation's missing id; no id can be this number
Columns = dict[str, Any]
Advance = Callable[[int], None]  # called with the number of bytes that the file has been read to


TAKEN = {
    "value_taken": "an odd value whose meaning is plain (null, a number as text): taken",
    "box_of_polygon": "a box without bbox: the enclosing box of its polygon is taken",
    "box_rotated": "a rotated box (attributes.rotation): its enclosing box is taken",
}
"""Kinds of findings about entries that can be used."""


def read_annotations(
    path: Path,
    *,
    advance: Advance = lambda done: None,
    taken: Counter[str] | None = None,
    is_export: bool = False,
) -> Annotations:
    """Read and check a COCO-format JSON file (https://cocodataset.org/#format-data).

    `iscrowd`, `area` and the annotations' `id` may be missing (0, width × height, 1, 2, 3, …);
    a true `IsGroupOf`, in the annotation or its `attributes`, counts as `iscrowd`. Extra fields
    are ignored. Takes a gigabyte for ten million boxes. `taken` counts the kinds of `TAKEN`. Of a
    tool's export (`is_export`), file names that leave the folder of images lose their first parts
    (`spellings`).

    Raises:
        InputError: One line that names the file and the entry, for the first fault.
    """
    growing = {name: GrowingColumns() for name in ("images", "annotations", "categories")}
    lengths = dict.fromkeys(growing, 0)
    with no_garbage_collection():
        for name, entries in stream_lists(path, growing, advance=advance):
            if is_export and name == "images":
                bring_inside(entries)
            columns = strict_columns(path, name, entries, first=lengths[name], taken=taken)
            growing[name].extend(columns)
            lengths[name] += len(entries)
            require_few_classes(f"{path}: categories", lengths["categories"])
    for name in ("images", "categories"):
        if not lengths[name]:
            raise InputError(f"{path}: {name}: empty; a data set needs at least one")
    columns = {name: part.finish() for name, part in growing.items()}
    categories, images, boxes = columns["categories"], columns["images"], columns["annotations"]

    missing = boxes["box_ids"] == NO_ID
    if missing.all():
        boxes["box_ids"] = np.arange(1, len(missing) + 1)
    elif missing.any():
        raise InputError(
            f"{path}: annotations[{missing.argmax()}].id: missing, but other entries have one; "
            "give every entry an id, or none"
        )
    for name in columns:
        require_unique(columns[name][ID_COLUMNS[name]], path=path, name=name)
    require_known(
        boxes["box_category_ids"], categories["category_ids"], path=path, field="category_id"
    )
    image_of_box = require_known(
        boxes["image_id"], images["image_ids"], path=path, field="image_id"
    )
    clip_rotated(boxes, images, image_of_box)
    require_pixels(boxes["boxes"], source=f"{path}: annotations")
    boxes_per_image = np.bincount(image_of_box, minlength=len(images["image_ids"]))
    # Stable, so that the boxes of an image stay in the JSON's order.
    by_image = np.argsort(image_of_box, kind="stable")
    del boxes["image_id"], image_of_box
    # Columns are removed one by one, so that only one of them is in memory twice at a time.
    return Annotations(
        category_ids=categories["category_ids"],
        category_names=tuple(categories["category_names"]),
        box_offsets=np.concatenate([[0], np.cumsum(boxes_per_image)]).astype(np.int64),
        **images,
        **{name: boxes.pop(name)[by_image] for name in BOX_COLUMNS},
    )


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


def strict_columns(
    path: Path,
    name: str,
    entries: list[Any],
    *,
    first: int = 0,
    taken: Counter[str] | None = None,
) -> Columns:
    """Return the columns of entries of the list `name`; raise InputError at the first fault."""

    def refuse(fault: Fault) -> None:
        if fault.kind in TAKEN:
            if taken is not None:
                taken[fault.kind] += 1
            return
        field = fault.field.rpartition(".")[2]
        problem = (
            "missing; COCO's format requires it"
            if fault.kind == "field_missing"
            else f"expected {fault.expected}, found {fault.found}"
        )
        if fault.kind == "image_size_missing":
            problem += "; python -m data convert --from coco reads it from the image"
        place = f"{name}[{first + fault.row}]" + (f".{field}" if field else "")
        raise InputError(f"{path}: {place}: {problem}")

    columns = checked_columns(name, entries, refuse)
    missing = columns[ID_COLUMNS[name]] == NO_ID
    if missing.any() and not missing.all():
        refuse(Fault(int(missing.argmax()), "field_missing", "id", "", ""))
    return columns


def require_unique(ids: NDArray[np.int64], *, path: Path, name: str) -> None:
    """Raise InputError if two entries of the list `name` have one id."""
    rows = repeated(ids)
    if len(rows):
        raise InputError(
            f"{path}: {name}[{rows[0]}].id: {ids[rows[0]]} is the id of an earlier entry; "
            "make ids unique"
        )


def require_known(
    ids: NDArray[np.int64], known: NDArray[np.int64], *, path: Path, field: str
) -> NDArray[np.int32]:
    """Return the position in `known` of every id; raise InputError for an unknown one."""
    rows = positions_in(known, ids)
    if (rows < 0).any():
        index = (rows < 0).argmax()
        target = {"image_id": "images", "category_id": "categories"}[field]
        raise InputError(
            f"{path}: annotations[{index}].{field}: {ids[index]} is not an id in {target}; "
            "add it there or remove the box"
        )
    return rows


MISSING, ABSENT, UNKNOWN, ENCLOSED = object(), object(), object(), object()
"""Stand for the value of a field that an entry lacks: a required one, an optional one, and a side
of an image, which the image has; and for a rotation whose enclosing box is taken."""


class Field(NamedTuple):
    """The requirements on a field of the entries of a list."""

    name: str  # `attributes.IsGroupOf` is a field of the object `attributes`
    convert: Callable[[list[Any]], Any]
    """Returns values as a column, or None where one of them is not valid"""
    kind: str | Callable[[Any], str]
    """The kind of finding for an invalid value, see `data.verify.findings.KINDS`"""
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
ID_COLUMNS = {"categories": "category_ids", "images": "image_ids", "annotations": "box_ids"}


def arrange(name: str, columns: Columns) -> Columns:
    """Return the columns of a list as those of `Annotations`, and each box's `image_id`."""
    if name == "categories":
        # Roboflow's tree of categories begins with one that is no class.
        parents = columns["supercategory"]
        is_root = [
            number == 0 and parent == "none" and name in parents
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


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: JSON holds no cycles, and the search for them takes a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


ENTRIES_AT_ONCE = 10_000  # a box's dict takes about a kilobyte: 10 MB
READ_AT_ONCE = 8 << 20  # characters
LONGEST_VALUE = 256 << 20  # characters; a longer value lacks a quote or a bracket
NEAR_THE_END = 64  # a value that the window cuts off fails this close to its end; strings apart
BLANKS = ("", " ", "\t", "\n", "\r")
BLANK_CHARACTERS = re.compile(r"[ \t\n\r]+")


def stream_lists(
    path: Path, names: Collection[str], *, advance: Advance
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the entries of the lists `names` of a JSON object, in the file's order.

    Yields a list's name with up to `ENTRIES_AT_ONCE` of its entries, again and again; an empty list
    yields itself. Other members are skipped.

    Raises:
        InputError: One line, with line and column where the file is not JSON; or the file cannot be
            read, is no object, lacks one of `names`, or has something else than a list there.
    """
    try:
        # utf-8-sig: some tools write a byte order mark, which Python's JSON decoder refuses.
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            window = Window(path, file, advance)
            missing = set(names)
            for name in members(window):
                if name not in names:
                    window.value()
                    continue
                missing.discard(name)
                for entries in list_entries(window, name):
                    yield name, entries
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be parsed as JSON: {error}") from error
    for name in names:
        if name in missing:
            raise InputError(f"{path}: {name}: missing; this is not COCO's format")


class Window:
    """The part of a text file that is in memory; `position` is the next character's."""

    def __init__(self, path: Path, file: TextIO, advance: Advance) -> None:
        self.path, self.file, self.advance = path, file, advance
        self.text, self.position = "", 0
        self.at_end = False
        self.lines_before = self.columns_before = 0
        self.decode = json.JSONDecoder().raw_decode

    def read_on(self) -> None:
        """Read the next part of the file, and drop the text before `position`."""
        dropped = self.text[: self.position]
        last_break = dropped.rfind("\n")
        self.columns_before = len(dropped) + (self.columns_before if last_break < 0 else 0)
        self.columns_before -= last_break + 1
        self.lines_before += dropped.count("\n")
        # As much again as is there, so that a long value is not read over and over.
        added = self.file.read(max(READ_AT_ONCE, len(self.text) - self.position))
        self.text = self.text[self.position :] + added
        self.position = 0
        self.at_end = not added
        self.advance(self.file.buffer.tell())

    def peek(self) -> str:
        """Return the next character that is not blank, or an empty string at the file's end."""
        while True:
            character = self.text[self.position : self.position + 1]
            if character not in BLANKS:
                return character
            blanks = BLANK_CHARACTERS.match(self.text, self.position)
            self.position = blanks.end() if blanks else self.position
            if self.position == len(self.text):
                if self.at_end:
                    return ""
                self.read_on()

    def take(self, expected: str) -> str:
        """Return the next character, which must be one of `expected`, and go past it."""
        character = self.peek()
        if not character or character not in expected:
            self.fail(self.position, "expected " + " or ".join(expected))
        self.position += 1
        return character

    def skip(self, character: str) -> bool:
        """Go past the next character if it is this one, and return whether it is."""
        is_next = self.peek() == character
        self.position += is_next
        return is_next

    def value(self) -> Any:
        """Return the next value of any kind, and go past it."""
        while True:
            self.peek()
            try:
                value, end = self.decode(self.text, self.position)
                # A number near the window's end may continue after it: 1.5 of "1.5e" and "3".
                may_go_on = isinstance(value, int | float) and not isinstance(value, bool)
                if self.at_end or not (may_go_on and end > len(self.text) - NEAR_THE_END):
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                # An unterminated string is reported at its beginning, far from the window's end.
                cut_off = error.msg.startswith("Unterminated")
                cut_off |= error.pos > len(self.text) - NEAR_THE_END
                if self.at_end or not cut_off:
                    self.fail(error.pos, error.msg)
            except (ValueError, RecursionError) as error:
                # ValueError: an integer of more than 4,300 digits. RecursionError: too many levels.
                raise InputError(f"{self.path}: cannot be parsed as JSON: {error}") from error
            if len(self.text) - self.position > LONGEST_VALUE:
                self.fail(self.position, "a value has no end; a quote or bracket is missing")
            self.read_on()

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise InputError with the line and column of a place in the window."""
        before = self.text[:position]
        line = self.lines_before + before.count("\n") + 1
        last_break = before.rfind("\n")
        column = self.columns_before + position if last_break < 0 else position - last_break - 1
        raise InputError(f"{self.path}: line {line}, column {column + 1}: not JSON: {problem}")


def members(window: Window) -> Iterator[str]:
    """Yield the names of the object that the file is; the caller reads each one's value."""
    if not window.skip("{"):
        raise InputError(
            f"{window.path}: not COCO's format: expected an object with images, annotations and "
            f"categories, found {shown(window.value())}"
        )
    ended = window.skip("}")
    while not ended:
        if window.peek() != '"':
            window.fail(window.position, "expected a name in double quotes")
        name = window.value()
        window.take(":")
        yield name
        ended = window.take(",}") == "}"
    if window.peek():
        window.fail(window.position, "extra characters after its end")


def list_entries(window: Window, name: str) -> Iterator[list[Any]]:
    """Yield the entries of the list that comes next, `ENTRIES_AT_ONCE` at a time."""
    if not window.skip("["):
        raise InputError(f"{window.path}: {name}: expected a list, found {shown(window.value())}")
    entries: list[Any] = []
    ended = window.skip("]")
    while not ended:
        entries.append(window.value())
        ended = window.take(",]") == "]"
        if len(entries) == ENTRIES_AT_ONCE and not ended:
            yield entries
            entries = []
    yield entries
