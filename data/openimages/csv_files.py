"""Opening OpenImages' CSV files, and naming a mistake in one by file, line and column."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

from retinanet.errors import InputError
from retinanet.regular_files import open_regular


@contextmanager
def open_csv(path: Path) -> Iterator[TextIO]:
    """A CSV file as text, without a byte order mark; line ends are left as they are.

    Raises InputError where the file cannot be read or, while the context lasts, is no UTF-8 or
    nothing that `csv.reader` can read.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text: {error.reason}; expected a CSV file, unpacked"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file: {error}; download it again") from error


def positions_of(columns: Sequence[str], *, header: Sequence[str], file: Path) -> list[int]:
    """Where the named columns stand in the header. Raises InputError for one that is missing."""
    for column in columns:
        if column not in header:
            found = ",".join(header)
            refuse(file, 1, column, expected="a column of this name", found=found)
    return [header.index(column) for column in columns]


def refuse(file: Path, line: int, column: str, *, expected: str, found: str) -> NoReturn:
    """Raise InputError about one field; `line` counts from 1."""
    text = found if len(found) <= 60 else found[:57] + "..."
    raise InputError(f"{file}: line {line}: {column}: expected {expected}, found {text!r}")


def refuse_empty(file: Path) -> NoReturn:
    """Raise InputError about a file without rows."""
    raise InputError(f"{file}: empty: it has no rows; download it again")
