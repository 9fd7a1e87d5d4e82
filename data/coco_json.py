"""COCO-format JSON, read and checked once, a part at a time.

TODO-DOC The lists of a large JSON file, some entries at a time.

Python's own decoder reads the values. It wants a whole text, which for OpenImages' 2.6 GB would be
tens of gigabytes of objects; here it gets one entry after the other from a window on the file.
Unlike other readers of JSON by parts it takes NaN, which a data set with a wrong box may hold.

TODO-DOC Lists of JSON objects as checked columns; the culprit is searched for only after a failure.
"""

import gc
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError
from common.files import open_regular
from data.annotations import Annotations, GrowingColumns, TextColumn, positions_in, repeated
from data.sources import leaves_folder, shown

INT32_MAX = 2**31 - 1
GROUP_FIELDS = ("IsGroupOf", "isgroupof")
LARGEST_COORDINATE = 1e9
"""Pixels; sums and products of such numbers are finite, in float32 too."""
NO_ID = -(2**63)
"""What no annotation's id can be."""

Columns = dict[str, Any]

Advance = Callable[[int], None]
"""Called with the number of bytes that the file has been read to."""


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
            allow: see `data.coco_json`.
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


REQUIRED = object()

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class JsonTable:
    """One of COCO's lists (`images`, `annotations`, `categories`), read one field at a time.

    Every method raises InputError with one line that names file, entry and field:
    `labels.json: annotations[17].bbox: expected …, found …`.
    """

    file: Path
    name: str
    entries: list[Any]
    first: int = 0
    """How many entries of the list came before these."""

    def values(self, field: str, *, default: object = REQUIRED) -> list[Any]:
        """The field of every entry, unchecked; `default` where an entry lacks it."""
        try:
            if default is REQUIRED:
                return [entry[field] for entry in self.entries]
            return [entry.get(field, default) for entry in self.entries]
        except (KeyError, TypeError, AttributeError):
            pass  # the fast way failed: find out where
        for index, entry in enumerate(self.entries):
            if not isinstance(entry, dict):
                self.fail(index, None, f"expected an object, found {shown(entry)}")
            if field not in entry:
                self.fail(index, field, "missing; COCO's format requires it")
        raise AssertionError(f"no culprit for {self.name}.{field}")

    def integers(
        self,
        field: str,
        *,
        default: object = REQUIRED,
        minimum: int = -INT64_MAX,
        maximum: int = INT64_MAX,
    ) -> NDArray[np.int64]:
        """An int64 column within the bounds. `true`, `1.0` and `"1"` are no integers."""
        column = self.values(field, default=default)

        def is_valid(value: object) -> bool:
            return type(value) is int and minimum <= value <= maximum

        of_one_type = set(map(type, column)) <= {int}
        if column and not (of_one_type and minimum <= min(column) <= max(column) <= maximum):
            bounded = (minimum, maximum) != (-INT64_MAX, INT64_MAX)
            expected = f"an integer from {minimum} to {maximum}" if bounded else "an integer"
            self._refuse_first(column, field, is_valid, expected=expected)
        return np.array(column, dtype=np.int64)

    def flags(self, field: str) -> NDArray[np.bool_]:
        """A bool column of `true`, `false`, 0 or 1; false where missing."""
        column = self.values(field, default=0)
        if not set(map(type, column)) <= {int, bool} or not set(column) <= {0, 1}:
            self._refuse_first(
                column,
                field,
                lambda value: type(value) in (int, bool) and value in (0, 1),
                expected="0 or 1",
            )
        return np.array(column, dtype=np.bool_)

    def strings(self, field: str) -> tuple[str, ...]:
        """A column of strings, none of them empty."""
        column = self.values(field)
        if not (set(map(type, column)) <= {str} and all(column)):
            self._refuse_first(
                column,
                field,
                lambda value: isinstance(value, str) and value != "",
                expected="a string that is not empty",
            )
        return tuple(column)

    def numbers(self, field: str, *, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """A float64 column of finite numbers ≥ 0; `default` [N] stands in where missing or null."""
        column = [
            stand_in if value is None else value
            for value, stand_in in zip(
                self.values(field, default=None), default.tolist(), strict=True
            )
        ]
        array = _finite(column)
        if array is None or bool((array < 0).any()):
            self._refuse_first(
                column,
                field,
                lambda value: _is_number(value) and value >= 0,
                expected="a number ≥ 0",
            )
        return array

    def boxes(self, field: str, *, largest: float) -> NDArray[np.float64]:
        """A float64 column `[N, 4]` of COCO's boxes: x, y, width, height in pixels, whose sizes
        are at most `largest`.
        """
        column = self.values(field)
        array = None
        if set(map(type, column)) <= {list} and set(map(len, column)) <= {4}:
            array = _finite(list(chain.from_iterable(column)))
        if (
            array is None
            or bool((array.reshape(-1, 4)[:, 2:] < 0).any())
            or bool((np.abs(array) > largest).any())
        ):
            self._refuse_first(
                column,
                field,
                lambda value: _is_box(value, largest=largest),
                expected="[x, y, width, height]: 4 finite numbers, the last two ≥ 0"
                f" and none beyond {largest:g}",
            )
        return array.reshape(-1, 4)

    def fail(self, index: int, field: str | None, problem: str) -> NoReturn:
        """Raise InputError about one of these entries, or one of its fields."""
        place = f"{self.name}[{self.first + index}]" + (f".{field}" if field else "")
        raise InputError(f"{self.file}: {place}: {problem}")

    def _refuse_first(
        self, column: list[Any], field: str, is_valid: Callable[[Any], bool], *, expected: str
    ) -> NoReturn:
        for index, value in enumerate(column):
            if not is_valid(value):
                self.fail(index, field, f"expected {expected}, found {shown(value)}")
        raise AssertionError(f"no culprit for {self.name}.{field}")


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


ENTRIES_AT_ONCE = 10_000
"""A box's dict takes about a kilobyte: 10 MB."""
READ_AT_ONCE = 8 << 20
"""Characters that are read from the file at once."""
LONGEST_VALUE = 256 << 20
"""Characters. What goes on for longer lacks a quote or a bracket."""
NEAR_THE_END = 64
"""A value that the window cuts off fails this close to its end, in characters; strings apart."""

BLANKS = ("", " ", "\t", "\n", "\r")
BLANK_CHARACTERS = re.compile(r"[ \t\n\r]+")


def stream_lists(
    path: Path, names: Collection[str], *, advance: Advance
) -> Iterator[tuple[str, list[Any]]]:
    """The entries of the lists `names` of a JSON object, in the file's order.

    Yields a list's name with up to `ENTRIES_AT_ONCE` of its entries, again and again; an empty list
    yields itself. Other members are read and dropped.

    Raises:
        InputError: One line, with line and column where the file is not JSON; or the file cannot be
            read, is no object, lacks one of `names`, or has something else than a list there.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            window = Window(path, file, advance)
            missing = set(names)
            for name in members(window):
                if name in names:
                    missing.discard(name)
                    for entries in list_entries(window, name):
                        yield name, entries
                else:
                    window.value()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    for name in names:
        if name in missing:
            raise InputError(f"{path}: {name}: missing, so this is not COCO's format")


class Window:
    """A part of a text file, from where it is read on; `position` is the next character's."""

    def __init__(self, path: Path, file: TextIO, advance: Advance) -> None:
        self.path = path
        self.file = file
        self.advance = advance
        self.text = ""
        self.position = 0
        self.at_end = False
        self.lines_before = 0
        self.columns_before = 0
        self.decode = json.JSONDecoder().raw_decode

    def more(self) -> None:
        """Read on, and let go of what was read before `position`."""
        gone = self.text[: self.position]
        last_break = gone.rfind("\n")
        self.columns_before = (
            self.columns_before + len(gone) if last_break < 0 else len(gone) - last_break - 1
        )
        self.lines_before += gone.count("\n")
        # As much again as is there, so that a long value is not read over and over.
        added = self.file.read(max(READ_AT_ONCE, len(self.text) - self.position))
        self.text = self.text[self.position :] + added
        self.position = 0
        self.at_end = not added
        self.advance(self.file.buffer.tell())

    def peek(self) -> str:
        """The next character that is not blank, or an empty string at the file's end."""
        while True:
            character = self.text[self.position : self.position + 1]
            if character not in BLANKS:
                return character
            blanks = BLANK_CHARACTERS.match(self.text, self.position)
            self.position = blanks.end() if blanks else self.position
            if self.position == len(self.text):
                if self.at_end:
                    return ""
                self.more()

    def take(self, wanted: str) -> str:
        """The next character, which must be one of `wanted`."""
        found = self.peek()
        if not found or found not in wanted:
            self.fail(self.position, "expected " + " or ".join(wanted))
        self.position += 1
        return found

    def value(self) -> Any:
        """The next value of any kind."""
        while True:
            self.peek()
            try:
                value, end = self.decode(self.text, self.position)
                # A number near the window's end may go on behind it: 1.5 of "1.5e" and "3".
                may_go_on = isinstance(value, int | float) and not isinstance(value, bool)
                if self.at_end or not (may_go_on and end > len(self.text) - NEAR_THE_END):
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated")
                cut_off |= error.pos > len(self.text) - NEAR_THE_END
                if self.at_end or not cut_off:
                    self.fail(error.pos, error.msg)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{self.path}: not JSON that can be read: {error}") from error
            if len(self.text) - self.position > LONGEST_VALUE:
                self.fail(self.position, "a value that does not end; a quote or bracket is missing")
            self.more()

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise InputError with the line and column of a place in the window."""
        before = self.text[:position]
        line = self.lines_before + before.count("\n") + 1
        last_break = before.rfind("\n")
        column = self.columns_before + position if last_break < 0 else position - last_break - 1
        raise InputError(f"{self.path}: line {line}, column {column + 1}: not JSON: {problem}")


def members(window: Window) -> Iterator[str]:
    """The names of the object that the file is; the caller takes each one's value."""
    if window.peek() != "{":
        found = shown(window.value())
        raise InputError(
            f"{window.path}: not COCO's format: expected an object with images, annotations and "
            f"categories, found {found}"
        )
    window.take("{")
    if window.peek() == "}":
        window.take("}")
    else:
        while True:
            if window.peek() != '"':
                window.fail(window.position, "expected a name in double quotes")
            name = window.value()
            window.take(":")
            yield name
            if window.take(",}") == "}":
                break
    if window.peek():
        window.fail(window.position, "extra characters after its end")


def list_entries(window: Window, name: str) -> Iterator[list[Any]]:
    """The entries of the list that comes next, `ENTRIES_AT_ONCE` at a time."""
    if window.peek() != "[":
        found = shown(window.value())
        raise InputError(f"{window.path}: {name}: expected a list, found {found}")
    window.take("[")
    entries: list[Any] = []
    if window.peek() == "]":
        window.take("]")
        yield entries
        return
    while True:
        entries.append(window.value())
        ended = window.take(",]") == "]"
        if ended or len(entries) == ENTRIES_AT_ONCE:
            yield entries
            entries = []
        if ended:
            return


def _finite(column: list[Any]) -> NDArray[np.float64] | None:
    """The column as float64, or None where a value is not a finite number."""
    if not set(map(type, column)) <= {int, float}:
        return None
    try:
        array = np.array(column, dtype=np.float64)
    except OverflowError:
        return None
    return array if bool(np.isfinite(array).all()) else None


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and _finite([value]) is not None


def _is_box(value: object, *, largest: float) -> bool:
    if not (isinstance(value, list) and len(value) == 4 and all(map(_is_number, value))):
        return False
    return bool(value[2] >= 0 and value[3] >= 0 and max(map(abs, value)) <= largest)
