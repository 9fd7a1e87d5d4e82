"""OpenImages' CSV files: boxes as columns, image ids, and the classes that a user selects.

The training split has 14.6 million boxes, 630 MB as columns. `numpy.loadtxt` reads a million lines
in 1.2 s, the `csv` module with `float` takes 8 s; so lines are converted many at once, and the
faulty one is searched for only after a failure. Image ids, 16 hexadecimal digits, are held as
64-bit numbers. Mistakes are reported with file, line and column.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from common.console import Advance, ignore_progress
from common.errors import InputError, require_few_classes
from common.files import open_regular, or_unreadable
from data.annotations import SLACK
from data.formats.labels import named_classes, nearest_name, quoted

CORNERS = ("XMin", "YMin", "XMax", "YMax")
FLAGS = ("IsOccluded", "IsInside", "IsDepiction", "IsTruncated", "IsGroupOf")
CHARACTERS_AT_ONCE = 4_000_000  # larger chunks are no faster, and take more memory
NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", re.ASCII)

IMAGE_ID = re.compile("[0-9a-f]{16}")
AN_IMAGE_ID = "16 digits of 0-9 and a-f"
NO_DIGIT = 255
DIGIT_OF_BYTE = np.full(256, NO_DIGIT, dtype=np.uint8)
DIGIT_OF_BYTE[list(b"0123456789abcdef")] = range(16)

HEADER = ["LabelName", "DisplayName"]
"""The first line of v7's class descriptions; v5's and v6's have none."""
MLPERF_CLASSES = Path(__file__).with_name("mlperf_classes.txt")
NOT_CHOSEN = -1  # the index of a class that OpenImages has and that is not wanted


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of the chosen classes, in the CSV's order: B boxes."""

    image_ids: NDArray[np.uint64]  # [B] ImageID as a number
    class_indices: NDArray[np.int16]  # [B] positions in the list of classes, from 0
    corners: NDArray[np.float64]  # [B, 4] xyxy, as fractions of the image's width and height
    flags: NDArray[np.uint8]  # [B] bit k is `FLAGS[k]`

    def __len__(self) -> int:
        return len(self.image_ids)


class ClassList(NamedTuple):
    """The classes that are wanted, and how OpenImages writes them."""

    names: tuple[str, ...]  # display names; the position is the category id
    index_of_label: dict[str, int]
    """For every LabelName (`/m/011k07`) of OpenImages its position in `names`, or `NOT_CHOSEN`"""


def read_boxes(path: Path, class_list: ClassList, *, advance: Advance = ignore_progress) -> Boxes:
    """Read the boxes of the chosen classes from `train-annotations-bbox.csv` or its like.

    Columns are found by the names in the first line; v6's additional ones are ignored. `advance` is
    called with the bytes read so far, of `path.stat().st_size`. Raises InputError with file, line
    and column for another kind of file, a LabelName that the class descriptions lack, or corners
    that are out of order or outside the image.
    """
    parts: list[tuple[NDArray[Any], ...]] = []
    columns = ["ImageID", "LabelName", *CORNERS, *FLAGS]
    for lines in read_lines(path, columns=columns, advance=advance):
        image_ids, class_indices = parse_names(lines, class_list.index_of_label)
        corners, flags = parse_numbers(lines)
        chosen = class_indices != NOT_CHOSEN
        parts.append((image_ids[chosen], class_indices[chosen], corners[chosen], flags[chosen]))
    parts_of_columns = list(map(list, zip(*parts, strict=True)))
    parts.clear()
    # Parts are dropped as soon as they are joined, so that only one column is held twice.
    return Boxes(*(np.concatenate(parts_of_columns.pop(0)) for _ in range(4)))


def image_ids_with_boxes(
    path: Path, class_list: ClassList, *, advance: Advance = ignore_progress
) -> NDArray[np.uint64]:
    """Return the sorted ids of images with a box of a chosen class; else as `read_boxes`."""
    parts = [np.empty(0, dtype=np.uint64)]
    for lines in read_lines(path, columns=["ImageID", "LabelName"], advance=advance):
        image_ids, class_indices = parse_names(lines, class_list.index_of_label)
        parts.append(np.unique(image_ids[class_indices != NOT_CHOSEN]))
    return np.unique(np.concatenate(parts))


class Lines(NamedTuple):
    """Some consecutive lines of a CSV file; `first` is the first one's number, from 1."""

    file: Path
    header: list[str]
    first: int
    texts: list[str]


def read_lines(path: Path, *, columns: Sequence[str], advance: Advance) -> Iterator[Lines]:
    """Yield a CSV without quotes, some megabytes at a time, or raise InputError as `read_boxes`."""
    with open_csv(path) as file:
        header = file.readline().rstrip("\r\n").split(",")
        column_positions(columns, header=header, file=path)
        first, is_empty = 2, True
        # readlines(n) returns whole lines, of about n characters together.
        while texts := file.readlines(CHARACTERS_AT_ONCE):
            read = len(texts)
            while texts and not texts[-1].strip():
                texts.pop()  # blank lines at the end
            if texts:
                is_empty = False
                yield Lines(path, header, first, texts)
            first += read
            # tell() of the text file raises OSError after its lines were iterated; the buffer's
            # works.
            advance(file.buffer.tell(), "")
        if is_empty:
            refuse_empty(path)


class Check(NamedTuple):
    """A check of one column's fields, given all fields of a line by column."""

    column: str
    expected: str
    is_valid: Callable[[dict[str, str]], bool]


def parse_names(
    lines: Lines, index_of_label: dict[str, int]
) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Return ImageID [N] and class index [N] of lines, or raise InputError for a fault."""
    known = "a label of the class descriptions"
    checks = (
        Check("ImageID", AN_IMAGE_ID, lambda row: bool(IMAGE_ID.fullmatch(row["ImageID"]))),
        Check("LabelName", known, lambda row: row["LabelName"] in index_of_label),
    )
    # Both columns have room for one character more, so that longer words are recognized.
    width = max(map(len, index_of_label)) + 1
    try:
        table = parse_table(lines, {"ImageID": "S17", "LabelName": f"U{width}"})
        indices = [index_of_label[label] for label in table["LabelName"].tolist()]
    except (ValueError, KeyError):
        refuse_first(lines, *checks)
    characters = np.ascontiguousarray(table["ImageID"]).view(np.uint8).reshape(-1, 17)
    digits = DIGIT_OF_BYTE[characters[:, :16]]
    if (digits == NO_DIGIT).any() or characters[:, 16].any():
        refuse_first(lines, *checks)
    # Two digits are an octet; eight octets, the highest first, are one big-endian number.
    octets = digits[:, 0::2] << 4 | digits[:, 1::2]
    return octets.view(">u8").reshape(-1).astype(np.uint64), np.array(indices, dtype=np.int16)


def parse_numbers(lines: Lines) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return corners (xyxy, fractions of the sides) and flags of N lines: [N, 4], [N].

    Bit k of the flags is `FLAGS[k]`. Raises InputError naming the first field that is no number,
    lies outside the image or is less than the opposite side, or is no flag.
    """
    try:
        table = parse_table(lines, dict.fromkeys(CORNERS, "f8") | dict.fromkeys(FLAGS, "i1"))
    except ValueError:
        refuse_first(lines, *NUMBER_CHECKS)
    corners = np.stack([table[name] for name in CORNERS], axis=1)
    flags = np.stack([table[name] for name in FLAGS], axis=1)
    inside = ((corners >= -SLACK) & (corners <= 1 + SLACK)).all()
    ordered = (corners[:, :2] <= corners[:, 2:]).all()
    if not (inside and ordered and ((flags >= -1) & (flags <= 1)).all()):
        refuse_first(lines, *NUMBER_CHECKS)
    # -1, unknown, is true: FiftyOne, whose export MLPerf's JSON is, takes bool(int(field)).
    return corners, np.packbits(flags != 0, axis=1, bitorder="little")[:, 0]


def is_fraction(column: str, row: dict[str, str]) -> bool:
    """Return whether a field is a number from 0 to 1, but for rounding."""
    return bool(NUMBER.fullmatch(row[column])) and -SLACK <= float(row[column]) <= 1 + SLACK


def is_flag(column: str, row: dict[str, str]) -> bool:
    """Return whether a field is a flag; -1 is unknown."""
    return row[column] in ("0", "1", "-1")


NUMBER_CHECKS = (
    *(Check(name, "a fraction from 0 to 1", partial(is_fraction, name)) for name in CORNERS),
    Check("XMax", "at least XMin", lambda row: float(row["XMin"]) <= float(row["XMax"])),
    Check("YMax", "at least YMin", lambda row: float(row["YMin"]) <= float(row["YMax"])),
    *(Check(name, "0, 1 or -1", partial(is_flag, name)) for name in FLAGS),
)


def parse_table(lines: Lines, dtypes: dict[str, str]) -> NDArray[np.void]:
    """Return the named columns as a structured array [N]; ValueError where a field is invalid."""
    separators = len(lines.header) - 1
    # With `usecols` loadtxt ignores further fields: a line with too many would be accepted.
    if set(map(methodcaller("count", ","), lines.texts)) != {separators}:
        raise ValueError("a line with another number of fields")
    # comments=None: # begins a comment by default. ndmin=1: one line would be an array of no
    # dimension.
    return np.loadtxt(
        lines.texts,
        delimiter=",",
        comments=None,
        usecols=column_positions(list(dtypes), header=lines.header, file=lines.file),
        dtype=list(dtypes.items()),
        ndmin=1,
    )


def refuse_first(lines: Lines, *checks: Check) -> NoReturn:
    """Raise InputError about the first line that fails a check, checked in their order."""
    width = len(lines.header)
    for number, text in enumerate(lines.texts, start=lines.first):
        fields = text.rstrip("\r\n").split(",")
        if len(fields) != width:
            expected = f"{width} fields, as in line 1"
            refuse(lines.file, number, "line", expected=expected, found=",".join(fields))
        row = dict(zip(lines.header, fields, strict=True))
        for column, expected, is_valid in checks:
            if not is_valid(row):
                refuse(lines.file, number, column, expected=expected, found=row[column])
    raise AssertionError(f"no faulty line from line {lines.first} of {lines.file}")


def image_id_texts(numbers: NDArray[np.uint64]) -> list[str]:
    """Return ids as OpenImages writes them: 16 digits each, in lower case."""
    return [f"{number:016x}" for number in numbers.tolist()]


def read_image_ids(path: Path) -> NDArray[np.uint64]:
    """Return the ids that a CSV file with a column `ImageID` lists, sorted, each once.

    OpenImages publishes such files for each split (`validation-images-with-rotation.csv`, …).
    Raises InputError for a file that is not one, naming line and column.
    """
    numbers: list[int] = []
    with open_csv(path) as file:
        rows = csv.reader(file)
        (position,) = column_positions(["ImageID"], header=next(rows, []), file=path)
        for row in rows:
            field = row[position] if len(row) > position else ",".join(row)
            if not IMAGE_ID.fullmatch(field):
                refuse(path, rows.line_num, "ImageID", expected=AN_IMAGE_ID, found=field)
            numbers.append(int(field, 16))
    if not numbers:
        refuse_empty(path)
    return np.unique(np.array(numbers, dtype=np.uint64))


def resolve_classes(classes: Sequence[str], class_descriptions: Path) -> ClassList:
    """Return the classes selected on the command line.

    `classes` are `["mlperf"]`, MLPerf's 264; `["all"]`, every class, sorted by name; one path that
    ends with `.txt`, a file with a name on each line; or names themselves. Their order is that of
    the category ids. `class_descriptions` is OpenImages' `class-descriptions-boxable.csv`.

    Raises:
        InputError: A file cannot be read or has another content, no class is named, or a name
            occurs twice or is not a class; the message suggests the nearest class.
    """
    name_of_label = read_class_descriptions(class_descriptions)
    if list(classes) == ["all"]:
        source, names = str(class_descriptions), sorted(name_of_label.values())
    elif list(classes) == ["mlperf"]:
        source, names = "MLPerf's classes", mlperf_classes()
    else:
        names = named_classes(classes)
        source = "classes" if names == list(classes) else classes[0]
    require_few_classes(source, len(names))
    if not names:
        raise InputError(f"{source}: no class given; expected mlperf, all, or names of classes")
    labels_with = Counter(name_of_label.values())
    for name, times in Counter(names).items():
        if labels_with[name] > 1:
            raise InputError(
                f"{class_descriptions}: {labels_with[name]} labels have the name {name!r}; "
                "use class-descriptions-boxable.csv, where names are unique"
            )
        if times > 1:
            raise InputError(f"{source}: {name!r} occurs {times} times; list each class once")
        if not labels_with[name]:
            nearest = nearest_name(name, name_of_label.values())
            raise InputError(f"{source}: {name!r} is not in {class_descriptions}{nearest}")
    index_of_name = {name: index for index, name in enumerate(names)}
    indices = {label: index_of_name.get(name, NOT_CHOSEN) for label, name in name_of_label.items()}
    return ClassList(tuple(names), indices)


def mlperf_classes() -> list[str]:
    """Return the names of the 264 classes of MLPerf's detection benchmark, in its order."""
    return MLPERF_CLASSES.read_text(encoding="utf-8").splitlines()


def read_class_descriptions(path: Path) -> dict[str, str]:
    """Return the display name of every LabelName, from v5's file or v7's with a header."""
    names: dict[str, str] = {}
    with open_csv(path) as file:
        rows = csv.reader(file)
        for row in rows:
            if row == HEADER or not row:
                continue
            line, text = rows.line_num, ",".join(row)
            if len(row) != 2 or not row[1] or not row[0].startswith("/"):
                refuse(path, line, "LabelName,DisplayName", expected="/m/…,a name", found=text)
            label, name = row
            if names.setdefault(label, name) != name:
                refuse(path, line, "LabelName", expected="each label once", found=text)
            require_few_classes(path, len(names))
    if not names:
        refuse_empty(path)
    return names


@contextmanager
def open_csv(path: Path) -> Iterator[TextIO]:
    """Open a CSV file as text, without a byte order mark; line ends are not converted.

    Raises InputError if the file cannot be read or, while the context lasts, turns out not to be
    UTF-8 or CSV.
    """
    try:
        with (
            or_unreadable(path),
            TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file,
        ):
            yield file
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text: {error.reason}; expected a CSV file, unpacked"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file: {error}; download it again") from error


def column_positions(columns: Sequence[str], *, header: Sequence[str], file: Path) -> list[int]:
    """Return the named columns' places in the header.

    Raises InputError for a column that is missing or occurs more than once.
    """
    for column in columns:
        if header.count(column) != 1:
            refuse(file, 1, column, expected="one column of this name", found=",".join(header))
    return [header.index(column) for column in columns]


def refuse(file: Path, line: int, column: str, *, expected: str, found: str) -> NoReturn:
    """Raise InputError about one field; `line` counts from 1."""
    raise InputError(f"{file}: line {line}: {column}: expected {expected}, found {quoted(found)}")


def refuse_empty(file: Path) -> NoReturn:
    """Raise InputError about a file without rows."""
    raise InputError(f"{file}: empty: it has no rows; download it again")
