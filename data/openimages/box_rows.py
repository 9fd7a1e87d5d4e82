"""Lines of the boxes CSV to checked numbers, many at once; a culprit is searched for on failure.

`numpy.loadtxt` reads a million lines in 1.2 s, the `csv` module with `float` in 8 s.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from data.openimages.csv_files import open_csv, positions_of, refuse, refuse_empty
from data.openimages.image_ids import EXPECTED as AN_IMAGE_ID
from data.openimages.image_ids import IMAGE_ID, image_id_numbers
from retinanet.progress import Advance

CORNERS = ("XMin", "YMin", "XMax", "YMax")
FLAGS = ("IsOccluded", "IsInside", "IsDepiction", "IsTruncated", "IsGroupOf")

SLACK = 0.01
"""How far outside the image a corner may lie: rounding stays below, pixels are far above."""

CHARACTERS_AT_ONCE = 4_000_000
"""Larger chunks are no faster, and take more memory."""

NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", re.ASCII)


class Lines(NamedTuple):
    """Some consecutive lines of a CSV file."""

    file: Path
    header: list[str]
    first: int
    """The number of the first of them, from 1"""
    texts: list[str]


def read_lines(path: Path, *, columns: Sequence[str], advance: Advance) -> Iterator[Lines]:
    """A CSV file without quoted fields, a few megabytes at a time; `advance` gets the bytes read.

    Raises InputError if it cannot be read, has no rows or lacks one of the columns.
    """
    with open_csv(path) as file:
        header = file.readline().rstrip("\r\n").split(",")
        positions_of(columns, header=header, file=path)
        first, is_empty = 2, True
        while texts := file.readlines(CHARACTERS_AT_ONCE):
            read = len(texts)
            while texts and not texts[-1].strip():
                texts.pop()  # blank lines at the end
            if texts:
                is_empty = False
                yield Lines(path, header, first, texts)
            first += read
            advance(file.buffer.tell(), "")
        if is_empty:
            refuse_empty(path)


class Check(NamedTuple):
    """What one column's fields must be, given all fields of a line by column."""

    column: str
    expected: str
    is_valid: Callable[[dict[str, str]], bool]


def parse_names(
    lines: Lines, index_of_label: dict[str, int]
) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """ImageID and class index of each of N lines: [N], [N].

    Raises InputError naming the first field that is no ImageID, or no LabelName that is known.
    """
    width = max(map(len, index_of_label)) + 1  # room for one more, to tell a longer label
    try:
        table = _table(lines, {"ImageID": "S17", "LabelName": f"U{width}"})
        indices = [index_of_label[label] for label in table["LabelName"].tolist()]
        return image_id_numbers(table["ImageID"]), np.array(indices, dtype=np.int16)
    except (ValueError, KeyError):
        known = "a label of the class descriptions"
        _refuse_first(
            lines,
            Check("ImageID", AN_IMAGE_ID, lambda row: bool(IMAGE_ID.fullmatch(row["ImageID"]))),
            Check("LabelName", known, lambda row: row["LabelName"] in index_of_label),
        )


def parse_numbers(lines: Lines) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Corners (xyxy, fractions of the sides) and flags of each of N lines: [N, 4], [N].

    Bit k of the flags is `FLAGS[k]`. Raises InputError naming the first field that is no number,
    lies outside the image or is less than the opposite side, or is no flag.
    """
    try:
        table = _table(lines, dict.fromkeys(CORNERS, "f8") | dict.fromkeys(FLAGS, "i1"))
        corners = np.stack([table[name] for name in CORNERS], axis=1)
        flags = np.stack([table[name] for name in FLAGS], axis=1)
        _require_in_range(corners, flags)
    except ValueError:
        _refuse_first(lines, *map(_fraction, CORNERS), *ORDERED, *map(_flag, FLAGS))
    # -1, unknown, is true: FiftyOne, whose export MLPerf's JSON is, takes bool(int(field)).
    return corners, np.packbits(flags != 0, axis=1, bitorder="little")[:, 0]


def _require_in_range(corners: NDArray[np.float64], flags: NDArray[np.int8]) -> None:
    inside = ((corners >= -SLACK) & (corners <= 1 + SLACK)).all()
    ordered = (corners[:, :2] <= corners[:, 2:]).all()
    if not (inside and ordered and ((flags >= -1) & (flags <= 1)).all()):
        raise ValueError("a number out of its range")


def _fraction(column: str) -> Check:
    def is_valid(row: dict[str, str]) -> bool:
        field = row[column]
        return bool(NUMBER.fullmatch(field)) and -SLACK <= float(field) <= 1 + SLACK

    return Check(column, "a fraction from 0 to 1", is_valid)


def _flag(column: str) -> Check:
    return Check(column, "0, 1 or -1", lambda row: row[column] in ("0", "1", "-1"))


ORDERED = (
    Check("XMax", "at least XMin", lambda row: float(row["XMin"]) <= float(row["XMax"])),
    Check("YMax", "at least YMin", lambda row: float(row["YMin"]) <= float(row["YMax"])),
)


def _table(lines: Lines, dtypes: dict[str, str]) -> NDArray[np.void]:
    """The named columns as a structured array [N]; ValueError where a field is no such thing."""
    separators = len(lines.header) - 1
    if set(map(methodcaller("count", ","), lines.texts)) != {separators}:
        raise ValueError("a line with another number of fields")
    return np.loadtxt(
        lines.texts,
        delimiter=",",
        comments=None,
        usecols=positions_of(list(dtypes), header=lines.header, file=lines.file),
        dtype=list(dtypes.items()),
        ndmin=1,
    )


def _refuse_first(lines: Lines, *checks: Check) -> NoReturn:
    """Name the first line that fails a check; the checks are made in their order."""
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
    raise AssertionError(f"no culprit from line {lines.first} of {lines.file}")
