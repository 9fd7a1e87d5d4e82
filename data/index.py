"""Annotations as files that are mapped into memory, not read.

An index is a folder with one `.npy` file for each column of `data.annotations.Annotations` and a
description. Opening it takes no longer for ten million boxes than for ten, and every process of a
host sees the same pages of the kernel's cache.

The index of a JSON file is made once, by one process while others wait. It lies beside the file in
`NAME.json.index/`, or below the user's cache where that folder cannot be written. Which index is
the file's depends on its content: a file that was copied or touched keeps it, one that was changed
gets another.
"""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.console import make_console, progress_in_bytes
from common.errors import InputError
from common.files import open_regular, read_bytes
from common.locks import first_writable, one_process_at_a_time, user_cache
from data.annotations import Annotations, TextColumn
from data.coco_json import Advance, read_annotations

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
    """Return whether this is an index's folder."""
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
    """Return the index's description: `format`, `made_from`, `categories`, `images`, `boxes`.

    Raises:
        InputError: It is no index, or of another format.
    """
    try:
        description = json.loads(read_bytes(folder / DESCRIPTION))
        number = description["format"]
        counts = [description[name] for name in COUNTS] if number == FORMAT else []
        if not set(map(type, counts)) <= {int}:
            raise ValueError("a count is no number")  # noqa: TRY301
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: not an index: {DESCRIPTION} is missing or damaged") from error
    if number != FORMAT:
        raise InputError(
            f"{folder}: an index of format {number}, this program reads {FORMAT}; remove the "
            "folder, and convert again"
        )
    return dict(description)


def arrays_of(annotations: Annotations) -> dict[str, NDArray[Any]]:
    """Return the files of an index: a column each, and two for texts."""
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
    """Return one file as an array whose pages are the kernel's."""
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
    """Map a file of numpy's into memory."""
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
    """Return a column of texts."""
    content, starts = map_array(folder, name), map_array(folder, f"{name}_starts")
    check_offsets(starts, end=len(content), name=f"{name}_starts")
    return TextColumn(content, starts)


def check_lengths(annotations: Annotations, description: dict[str, Any]) -> None:
    """Refuse columns that do not belong together."""
    for field in fields(Annotations):
        expected = rows_of(field.name, description)
        rows = len(getattr(annotations, field.name))
        if rows != expected:
            raise ValueError(f"{field.name} has {rows} rows in place of {expected}")


def check_offsets(offsets: NDArray[np.int64], *, end: int, name: str) -> None:
    """Refuse offsets that do not rise from 0 to `end`. The only columns that are read whole."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} does not rise from 0 to {end}")


def rows_of(column: str, description: dict[str, Any]) -> int:
    """Return how many rows a column has by the index's description."""
    if column == "box_offsets":
        return int(description["images"]) + 1
    if column.startswith("box"):
        return int(description["boxes"])
    return int(description["categories" if column.startswith("category") else "images"])


CURRENT = "current.json"
"""Beside the indexes made of a file: which one is its content's, and how the file looked then."""
LOCK = ".lock"


class FoundIndex(NamedTuple):
    """Annotations that were opened, and where they come from."""

    annotations: Annotations
    folder: Path | None
    """The index; None where there was no folder to make one in."""
    was_made: bool
    """Made just now, and not found."""


class Stamp(NamedTuple):
    """What shows without reading a file that it is still the same."""

    size: int
    modified_ns: int


def open_annotations(path: Path, *, console: Console | None = None) -> Annotations:
    """Return annotations mapped into memory: of an index, or of a JSON file by way of its index.

    Args:
        path: A COCO-format JSON file, an index's folder, or a JSON file's `.index` folder.
        console: Where to show the progress of making an index.

    Raises:
        InputError: One line: the file is not there or not COCO's, the folder is no index.
    """
    return find_or_make_index(path, console=console).annotations


def find_or_make_index(path: Path, *, console: Console | None = None) -> FoundIndex:
    """Open annotations as `open_annotations`; return also its index, and if that was made."""
    if path.is_dir():
        return index_of_folder(path)
    stamp = stamp_of(path)
    homes = index_homes(path)
    for home in homes:
        index = current_index(home, stamp)
        if index:
            return index
    console = console or make_console()
    try:
        return make_for_all(path, stamp, first_writable(homes), console=console)
    except OSError as error:
        console.print(f"no index of {path} can be written ({error}): this process reads it itself")
        return FoundIndex(read_annotations(path), None, was_made=False)


def index_of_folder(folder: Path) -> FoundIndex:
    """Return the index in a folder, or of the file whose `.index` folder it is."""
    if not is_index(folder):
        current = read_current(folder)
        if current is None:
            raise InputError(
                f"{folder}: neither a JSON file nor an index; give annotations in COCO's format, "
                "or a folder that `python -m data convert` made"
            )
        folder = folder / current["index"]
    return FoundIndex(open_index(folder), folder, was_made=False)


def index_homes(path: Path) -> list[Path]:
    """Return the folders that may hold a file's indexes, the best first."""
    whole_path = str(path.resolve())
    name = f"{path.name}-{hashlib.sha256(whole_path.encode()).hexdigest()[:16]}.index"
    beside, cache = path.with_name(f"{path.name}.index"), user_cache()
    return [beside, cache / "indexes" / name] if cache else [beside]


def stamp_of(path: Path) -> Stamp:
    """Return the file's size and time of change. Raises InputError where it cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe might never end, or never begin
            raise InputError(f"{path}: is no file; give annotations in COCO's format, or an index")
        with path.open("rb"):
            return Stamp(status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def current_index(home: Path, stamp: Stamp) -> FoundIndex | None:
    """Return the index there, if it is of a file with this stamp, and whole."""
    current = read_current(home)
    if current is None or (current["size"], current["modified_ns"]) != stamp:
        return None
    return usable_index(home / current["index"])


def usable_index(folder: Path) -> FoundIndex | None:
    """Return the index there, if it is whole."""
    try:
        return FoundIndex(open_index(folder), folder, was_made=False)
    except InputError:
        return None


def read_current(home: Path) -> dict[str, Any] | None:
    """Return the note on a file's current index: `index`, `size`, `modified_ns`."""
    try:
        current = json.loads(read_bytes(home / CURRENT))
        note = {name: current[name] for name in ("index", "size", "modified_ns")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    name = note["index"]
    # A name of a folder in this one, and no way to another.
    if not isinstance(name, str) or Path(name).name != name or name == ".." or "\0" in name:
        return None
    return note


def make_for_all(path: Path, stamp: Stamp, home: Path, *, console: Console) -> FoundIndex:
    """Make the index in one process, while others wait for it and then open what it made."""
    try:
        with one_process_at_a_time(home / LOCK, waiting=lambda: say_waiting(console, path)):
            return current_index(home, stamp) or make_index(path, stamp, home, console=console)
    except (InputError, KeyboardInterrupt):
        remove_if_bare(home)
        raise


def make_index(path: Path, stamp: Stamp, home: Path, *, console: Console) -> FoundIndex:
    """Make the index of a file, unless there is one of the same content, and note it as current.

    Raises:
        InputError: The file is not COCO's, or changed meanwhile.
        OSError: It cannot be written.
    """
    with progress_in_bytes(console, f"indexing {path.name}", total=2 * stamp.size) as advance:
        content = digest(path, advance=lambda done: advance(done, "identifying it"))
        folder = home / f"{content[:16]}-format{FORMAT}"
        index = usable_index(folder)
        if index is None:
            annotations = read_annotations(
                path, advance=lambda done: advance(stamp.size + done, "reading it")
            )
            index = keep_index(folder, annotations, made_from=path)
            del annotations
        advance(2 * stamp.size, "")
    if stamp_of(path) != stamp:
        raise InputError(f"{path}: changed while it was read; run the same command again")
    write_current(home, folder=folder, stamp=stamp)
    remove_others(home, keep=folder.name)
    return index


def keep_index(folder: Path, annotations: Annotations, *, made_from: Path) -> FoundIndex:
    """Write an index in the place of what may be there, which is of no use.

    Raises:
        OSError: It cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        write_index(folder, annotations, made_from=str(made_from.resolve()))
    except OSError:
        # Where the file system has no locks another process may have been faster.
        index = usable_index(folder)
        if index is None:
            raise
        return index
    return FoundIndex(open_index(folder), folder, was_made=True)


def digest(path: Path, *, advance: Advance) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    sha = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while part := file.read(4 << 20):
            sha.update(part)
            done += len(part)
            advance(done)
    return sha.hexdigest()


def write_current(home: Path, *, folder: Path, stamp: Stamp) -> None:
    """Note which index is the file's."""
    content = {"index": folder.name, **stamp._asdict()}
    part = home / f".{CURRENT}.{os.getpid()}"
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(home / CURRENT)


def remove_others(home: Path, *, keep: str) -> None:
    """Remove indexes of what the file was before, and what a killed process has left."""
    for entry in home.iterdir():
        if entry.name in (keep, CURRENT, LOCK):
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove_if_bare(home: Path) -> None:
    """Remove the folder of a file that no index can be made of."""
    if [entry.name for entry in home.iterdir()] == [LOCK]:
        shutil.rmtree(home, ignore_errors=True)


def say_waiting(console: Console, path: Path) -> None:
    """Print a line into the log of a process that waits."""
    console.print(f"waiting for another process, which makes the index of {path}")
