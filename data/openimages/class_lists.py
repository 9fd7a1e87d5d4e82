"""Which of OpenImages' classes are wanted: MLPerf's, all, or those that are named.

TODO-DOC Opening OpenImages' CSV files, and naming a mistake in one by file, line and column.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

from common.errors import InputError
from common.files import open_regular

HEADER = ["LabelName", "DisplayName"]
"""The first line of v7's class descriptions; v5's and v6's have none."""

MLPERF_CLASSES = Path(__file__).with_name("mlperf_classes.txt")

NOT_CHOSEN = -1
"""The index of a class that OpenImages has and that is not wanted."""


class ClassList(NamedTuple):
    """The classes that are wanted, and how OpenImages writes them."""

    names: tuple[str, ...]
    """C display names; the position is the category id"""
    index_of_label: dict[str, int]
    """For every LabelName (`/m/011k07`) that OpenImages has: its position in `names`, or
    `NOT_CHOSEN`"""


def resolve_classes(classes: Sequence[str], class_descriptions: Path) -> ClassList:
    """The classes that words of a command line stand for.

    Args:
        classes: `["mlperf"]`, MLPerf's 264; `["all"]`, every class, sorted by name; one path that
            ends with `.txt`, a file with a name on each line; or names themselves. The order of
            MLPerf's list, of a file and of names is that of the category ids.
        class_descriptions: OpenImages' `class-descriptions-boxable.csv`, of v5 or v7.

    Raises:
        InputError: A file cannot be read or is not what it should be, no class is named, or a name
            is named twice or is no class; the message suggests the nearest.
    """
    name_of_label = read_class_descriptions(class_descriptions)
    if list(classes) == ["all"]:
        source, names = str(class_descriptions), sorted(name_of_label.values())
    elif list(classes) == ["mlperf"]:
        source, names = "MLPerf's classes", mlperf_classes()
    elif len(classes) == 1 and classes[0].endswith(".txt"):
        source, names = classes[0], _read_names(Path(classes[0]))
    else:
        source, names = "classes", list(classes)
    if not names:
        raise InputError(f"{source}: no class is named; expected mlperf, all, or names of classes")
    _check_names(names, name_of_label, source=source, class_descriptions=class_descriptions)
    index_of_name = {name: index for index, name in enumerate(names)}
    return ClassList(
        names=tuple(names),
        index_of_label={
            label: index_of_name.get(name, NOT_CHOSEN) for label, name in name_of_label.items()
        },
    )


def mlperf_classes() -> list[str]:
    """The names of the 264 classes that MLPerf's detection benchmark trains on, in its order."""
    return MLPERF_CLASSES.read_text(encoding="utf-8").splitlines()


def read_class_descriptions(path: Path) -> dict[str, str]:
    """The display name of every LabelName.

    Raises InputError for a file that is not `class-descriptions-boxable.csv`: v5's, without a
    header, or v7's, with one.
    """
    names: dict[str, str] = {}
    with open_csv(path) as file:
        rows = csv.reader(file)
        for row in rows:
            if row == HEADER or not row:
                continue
            line, found = rows.line_num, ",".join(row)
            if len(row) != 2 or not row[1] or not row[0].startswith("/"):
                refuse(path, line, "LabelName,DisplayName", expected="/m/…,a name", found=found)
            label, name = row
            if names.setdefault(label, name) != name:
                refuse(path, line, "LabelName", expected="each label once", found=found)
    if not names:
        refuse_empty(path)
    return names


def _read_names(path: Path) -> list[str]:
    with open_csv(path) as file:
        return [line.strip() for line in file if line.strip()]


def _check_names(
    names: list[str], name_of_label: dict[str, str], *, source: str, class_descriptions: Path
) -> None:
    """Raise InputError unless every name is one class, and is there once."""
    labels_with = Counter(name_of_label.values())
    for name, times in Counter(names).items():
        if labels_with[name] > 1:
            raise InputError(
                f"{class_descriptions}: {labels_with[name]} labels are called {name!r}; "
                "use class-descriptions-boxable.csv, where names are unique"
            )
        if times > 1:
            raise InputError(f"{source}: {name!r} is there {times} times; name each class once")
        if not labels_with[name]:
            suggestion = _nearest(name, list(labels_with))
            raise InputError(f"{source}: {name!r} is no class of {class_descriptions}{suggestion}")


def _nearest(name: str, known: list[str]) -> str:
    by_lower_case = {other.lower(): other for other in known}
    found = get_close_matches(name.lower(), by_lower_case, n=1)
    return f"; did you mean {by_lower_case[found[0]]!r}?" if found else ""


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
