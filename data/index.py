"""Annotations as files that are mapped into memory, not read.

An index is a folder with one `.npy` file for each column of `data.annotations.Annotations` and a
description. Opening it takes no longer for ten million boxes than for ten, and every process of a
host sees the same pages of the kernel's cache.
"""

import json
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from data.text_column import TextColumn
from retinanet.errors import InputError
from retinanet.regular_files import open_regular, read_bytes

DTYPES = {
    "category_ids": "int64",
    "image_ids": "int64",
    "widths": "int32",
    "heights": "int32",
    "box_offsets": "int64",
    "boxes": "float64",
    "box_category_ids": "int64",
    "box_is_crowd": "bool",
    "box_areas": "float64",
    "box_ids": "int64",
    "category_names": "uint8",
    "category_names_starts": "int64",
    "file_names": "uint8",
    "file_names_starts": "int64",
}
FORMAT = 1
"""Another number for every change of the files, so that no index is read as what it is not."""
COUNTS = ("categories", "images", "boxes")
DESCRIPTION = "index.json"
TEXTS = ("category_names", "file_names")


def is_index(folder: Path) -> bool:
    """Whether this is an index's folder."""
    return (folder / DESCRIPTION).is_file()


def write_index(folder: Path, annotations: Annotations, *, made_from: str) -> None:
    """Write an index; the folder appears whole or not at all.

    Args:
        folder: Where; must not exist, or be an empty folder.
        annotations: What goes in.
        made_from: For people: which file it was.

    Raises:
        OSError: It cannot be written there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        whole = Path(temporary, "index")
        whole.mkdir()
        for name, array in arrays_of(annotations).items():
            np.save(whole / f"{name}.npy", array, allow_pickle=False)
        counts = {
            "categories": len(annotations.category_ids),
            "images": len(annotations),
            "boxes": len(annotations.boxes),
        }
        description = {"format": FORMAT, "made_from": made_from, **counts}
        (whole / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        whole.rename(folder)


def open_index(folder: Path) -> Annotations:
    """Map an index into memory.

    Raises:
        InputError: One line: the folder is no index, of another format, or damaged.
    """
    description = read_description(folder)
    try:
        columns: dict[str, Any] = {}
        for field in fields(Annotations):
            columns[field.name] = (
                read_texts(folder, field.name)
                if field.name in TEXTS
                else map_array(folder, field.name)
            )
        annotations = Annotations(**columns)
        check_lengths(annotations, description)
        check_offsets(annotations.box_offsets, end=len(annotations.boxes), name="box_offsets")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{folder}: a damaged index ({error}); remove the folder, and convert again"
        ) from error
    return annotations


def read_description(folder: Path) -> dict[str, Any]:
    """What the index says of itself: `format`, `made_from`, `categories`, `images`, `boxes`.

    Raises:
        InputError: It is no index, or of another format.
    """
    try:
        description = json.loads(read_bytes(folder / DESCRIPTION))
        number = description["format"]
        counts = [description[name] for name in COUNTS] if number == FORMAT else []
        if not set(map(type, counts)) <= {int}:
            raise ValueError("a count is no number")  # noqa: TRY301 - told below as other damage
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: not an index: {DESCRIPTION} is missing or damaged") from error
    if number != FORMAT:
        raise InputError(
            f"{folder}: an index of format {number}, this program reads {FORMAT}; remove the "
            "folder, and convert again"
        )
    return dict(description)


def arrays_of(annotations: Annotations) -> dict[str, NDArray[Any]]:
    """The files of an index: a column each, and two for texts."""
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields(Annotations):
        column = getattr(annotations, field.name)
        if field.name in TEXTS:
            texts = column if isinstance(column, TextColumn) else TextColumn.of(column)
            arrays[field.name] = texts.content
            arrays[f"{field.name}_starts"] = texts.starts
        else:
            arrays[field.name] = column
    return arrays


def map_array(folder: Path, name: str) -> NDArray[Any]:
    """One file, as an array whose pages are the kernel's."""
    path = folder / f"{name}.npy"
    try:
        array = load_array(path)
    except OSError:
        raise
    except Exception as error:  # the header is a piece of Python, which can be wrong in any way
        raise ValueError(f"{path.name}: {error}") from error
    shape = array.shape[1:]
    if array.dtype != DTYPES[name] or array.ndim < 1 or shape != ((4,) if name == "boxes" else ()):
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}")
    # As a plain array: each access to a np.memmap would make another Python object of its class.
    return array.view(np.ndarray)


def load_array(path: Path) -> NDArray[Any]:
    """A file of numpy's, mapped."""
    open_regular(path).close()  # numpy would wait for the writer of a FIFO
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        # The kernel maps no file of zero length; the header says that nothing is missing.
        array = np.load(path, allow_pickle=False)
        if array.size:
            raise
    return array


def read_texts(folder: Path, name: str) -> TextColumn:
    """A column of texts."""
    content, starts = map_array(folder, name), map_array(folder, f"{name}_starts")
    check_offsets(starts, end=len(content), name=f"{name}_starts")
    return TextColumn(content, starts)


def check_lengths(annotations: Annotations, description: dict[str, Any]) -> None:
    """Refuse columns that do not belong together."""
    for field in fields(Annotations):
        wanted = rows_of(field.name, description)
        found = len(getattr(annotations, field.name))
        if found != wanted:
            raise ValueError(f"{field.name} has {found} rows in place of {wanted}")


def check_offsets(offsets: NDArray[np.int64], *, end: int, name: str) -> None:
    """Refuse offsets that do not rise from 0 to `end`. The only columns that are read whole."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} does not rise from 0 to {end}")


def rows_of(column: str, description: dict[str, Any]) -> int:
    """How many rows a column has by the index's description."""
    if column == "box_offsets":
        return int(description["images"]) + 1
    if column.startswith("box"):
        return int(description["boxes"])
    return int(description["categories" if column.startswith("category") else "images"])
