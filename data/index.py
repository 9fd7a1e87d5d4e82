"""Annotations as files that are mapped into memory, not read.

An index is a folder with one `.npy` file for each column of `data.annotations.Annotations` and a
description. Opening it takes no longer for ten million boxes than for ten, and every process of a
host shares the same pages of the kernel's cache.

The index of a JSON file is made once, by one process while others wait. It lies beside the file in
`NAME.json.index/`, or below the user's cache where that folder cannot be written. It belongs to
the file's content: a file that was copied or touched keeps its index, a changed one gets another.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.cache_folders import first_writable, user_cache
from common.console import Advance, ignore_progress, make_console, progress_in_bytes
from common.errors import InputError, printable
from common.files import (
    new_folder_beside,
    open_regular,
    or_unreadable,
    put_in_place,
    read_bytes,
    replacing,
)
from common.locks import one_process_at_a_time
from common.walk import real_path
from data.annotations import Annotations, TextColumn
from data.coco_json import read_annotations
from data.findings import KINDS, Findings

DTYPES = {
    "category_ids": "int64",
    "image_ids": "int64",
    "widths": "int32",
    "heights": "int32",
    "is_displayed": "bool",
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
    # Of packed images, see `data.packed`.
    "offsets": "int64",
    "sizes": "int64",
    "order": "int32",
}
FORMAT = 3  # another number for every change of the files, so that old indexes are not misread
COLUMNS = [field.name for field in fields(Annotations)]
TEXTS = ("category_names", "file_names")
COUNTS = ("categories", "images", "boxes")
DESCRIPTION = "index.json"
CURRENT = "current.json"
"""File beside the indexes of an annotation file: the index of its content, and its stamp."""
LOCK = ".lock"
FILES = [DESCRIPTION, *(f"{name}.npy" for name in DTYPES)]
INDEX_NAME = re.compile(r"[0-9a-f]{16}-format\d+|\.[0-9a-f]{16}-format\d+\.[0-9a-f]{16}\.partial")
"""An index beside others, or one that a killed process was writing."""
TEMPORARY_NOTE = re.compile(r"\.current\.json\.([0-9a-f]{16}\.partial|\d+)")


class FoundIndex(NamedTuple):
    """Opened annotations; `folder` is None if no folder is writable."""

    annotations: Annotations
    folder: Path | None
    was_made: bool  # by this call


class Stamp(NamedTuple):
    """Size and time of change, by which a file is recognized without reading it."""

    size: int
    modified_ns: int


def is_index(folder: Path) -> bool:
    """Return whether this is an index's folder."""
    return (folder / DESCRIPTION).is_file()


def write_index(folder: Path, annotations: Annotations, *, made_from: str) -> None:
    """Write an index atomically: the folder appears only when it is complete.

    It must not exist, or be empty. The index stores the name of the file that it was `made_from`.
    Raises OSError if it cannot be written.
    """
    description = {
        "format": FORMAT,
        "made_from": made_from,
        "categories": len(annotations.category_ids),
        "images": len(annotations),
        "boxes": len(annotations.boxes),
    }
    columns = {name: getattr(annotations, name) for name in COLUMNS}
    write_columns(folder, columns, {DESCRIPTION: json.dumps(description, indent=2) + "\n"})


def write_columns(folder: Path, columns: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write a folder of columns, and of files with these texts, as `write_index` does."""
    with new_folder_beside(folder) as whole:
        for key, column in columns.items():
            array = column
            if key in TEXTS:
                joined = column if isinstance(column, TextColumn) else TextColumn.of(column)
                np.save(whole / f"{key}_starts.npy", joined.starts, allow_pickle=False)
                array = joined.content
            np.save(whole / f"{key}.npy", array, allow_pickle=False)
        for key, text in texts.items():
            (whole / key).write_bytes(text.encode())
        put_in_place(whole, folder)


def open_index(folder: Path) -> Annotations:
    """Map an index into memory; raise InputError for one that is damaged or of another format."""
    try:
        description = json.loads(read_bytes(folder / DESCRIPTION))
        number = description["format"]
        counts = [description[name] for name in COUNTS] if number == FORMAT else []
        if not set(map(type, counts)) <= {int}:
            raise ValueError("a count is not a number")  # noqa: TRY301
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: not an index: {DESCRIPTION} is missing or damaged") from error
    if number != FORMAT:
        raise InputError(
            f"{folder}: index format {number}, this program reads format {FORMAT}; remove the "
            "folder, and convert again"
        )
    try:
        columns = {name: map_column(folder, name) for name in COLUMNS}
        check_lengths(columns, *counts)
        check_offsets(columns["box_offsets"], end=len(columns["boxes"]), name="box_offsets")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{folder}: damaged index ({error}); remove the folder, and convert again"
        ) from error
    return Annotations(**columns)


def map_column(folder: Path, name: str) -> Any:
    """Return a column, mapped into memory; raise OSError or ValueError for a damaged one."""
    column = map_array(folder, name)
    if name not in TEXTS:
        return column
    starts = map_array(folder, f"{name}_starts")
    check_offsets(starts, end=len(column), name=f"{name}_starts")
    return TextColumn(column, starts)


def map_array(folder: Path, name: str) -> NDArray[Any]:
    """Return one file as an array whose pages are the kernel's."""
    path = folder / f"{name}.npy"
    try:
        open_regular(path).close()  # numpy would wait for the writer of a FIFO
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            # The kernel maps no file of zero length; the header shows that nothing is missing.
            array = np.load(path, allow_pickle=False)
            if array.size:
                raise
    except OSError:
        raise
    except Exception as error:  # the header is a piece of Python, which can be wrong in any way
        raise ValueError(f"{path.name}: {error}") from error
    shape = array.shape[1:]
    if array.dtype != DTYPES[name] or array.ndim < 1 or shape != ((4,) if name == "boxes" else ()):
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}")
    # As a plain array: each access to a np.memmap would make another Python object of its class.
    return array.view(np.ndarray)


def check_lengths(columns: dict[str, Any], categories: int, images: int, boxes: int) -> None:
    """Raise ValueError for columns of inconsistent lengths."""
    row_counts = {"category": categories, "box": boxes}
    for name, column in columns.items():
        expected = row_counts.get(name.partition("_")[0], images)
        if name in ("boxes", "box_offsets"):
            expected = boxes if name == "boxes" else images + 1
        if len(column) != expected:
            raise ValueError(f"{name} has {len(column)} rows, expected {expected}")


def check_offsets(offsets: NDArray[np.int64], *, end: int, name: str) -> None:
    """Refuse offsets that do not increase from 0 to `end`; only these columns are read entirely."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name} does not increase from 0 to {end}")


def open_annotations(path: Path, *, console: Console | None = None) -> Annotations:
    """Return annotations mapped into memory: of an index, or of a JSON file by way of its index.

    `path` is a COCO-format JSON file, an index's folder, or a JSON file's `.index` folder. The
    console shows the progress of making an index.

    Raises:
        InputError: One line: the file is not there or not COCO's, the folder is no index.
    """
    return find_or_make_index(path, console=console).annotations


def find_or_make_index(path: Path, *, console: Console | None = None) -> FoundIndex:
    """Open annotations as `open_annotations`; return also its index, and if that was made."""
    if path.is_dir():
        return index_of_folder(path)
    stamp = read_stamp(path)
    homes = index_homes(path)
    for home in homes:
        index = current_index(home, stamp)
        if index:
            return index
    console = console or make_console()
    try:
        return make_for_all(path, stamp, first_writable(homes), console=console)
    except OSError as error:
        console.print(f"cannot write an index of {path} ({error}): reading the JSON file instead")
        return FoundIndex(read_annotations(path), None, was_made=False)


def index_of_folder(folder: Path) -> FoundIndex:
    """Return the index in a folder, or of the file whose `.index` folder it is."""
    if not is_index(folder):
        current = read_current(folder)
        if current is None:
            raise InputError(
                f"{folder}: neither a JSON file nor an index; give annotations in COCO's format, "
                "or a folder that `retinanet data convert` made"
            )
        folder = folder / current["index"]
    return FoundIndex(open_index(folder), folder, was_made=False)


def index_homes(path: Path) -> list[Path]:
    """Return the possible folders of a file's indexes, the preferred one first.

    Raises InputError for one that is a link: what it leads to is not the index's to write or clear.
    """
    whole_path = str(real_path(path))
    name = f"{path.name}-{hashlib.sha256(whole_path.encode()).hexdigest()[:16]}.index"
    beside, cache = path.with_name(f"{path.name}.index"), user_cache()
    homes = [beside, cache / "indexes" / name] if cache else [beside]
    for home in homes:
        if home.is_symlink():
            raise InputError(f"{home}: is a link; an index is written into a folder; remove it")
    return homes


def read_stamp(path: Path) -> Stamp:
    """Return the file's size and time of change. Raises InputError where it cannot be read."""
    with or_unreadable(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe might never end, or never begin
            raise InputError(
                f"{path}: is not a regular file; give annotations in COCO's format, or an index"
            )
        with path.open("rb"):
            return Stamp(status.st_size, status.st_mtime_ns)


def current_index(home: Path, stamp: Stamp) -> FoundIndex | None:
    """Return the current index in a folder, if it is complete and matches the file's stamp."""
    current = read_current(home)
    if current is None or (current["size"], current["modified_ns"]) != stamp:
        return None
    return usable_index(home / current["index"])


def usable_index(folder: Path) -> FoundIndex | None:
    """Return the index in a folder, if it is complete."""
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
    # It must name a folder in this one, and must not lead to another.
    if not isinstance(name, str) or Path(name).name != name or name == ".." or "\0" in name:
        return None
    return note


def make_for_all(path: Path, stamp: Stamp, home: Path, *, console: Console) -> FoundIndex:
    """Create the index in one process; the others wait for it and then open it."""
    try:
        with one_process_at_a_time(
            home / LOCK, what=f"building the index of {path}", tell=console.print
        ):
            # The process that held the lock before may have made the index meanwhile.
            return current_index(home, stamp) or make_index(path, stamp, home, console=console)
    except (InputError, KeyboardInterrupt):
        # A folder with nothing but the lock was made by this attempt.
        lock = home / LOCK
        if list(home.iterdir()) == [lock] and lock.is_file() and not lock.is_symlink():
            lock.unlink(missing_ok=True)
            with suppress(OSError):
                home.rmdir()
        raise


def make_index(path: Path, stamp: Stamp, home: Path, *, console: Console) -> FoundIndex:
    """Make a file's index, unless there is one of the same content, and note it as current."""
    # The file is read twice: for a touched or copied one the hash is enough, without parsing.
    with progress_in_bytes(console, f"indexing {path.name}", total=2 * stamp.size) as advance:
        content = digest(path, advance=lambda done, _: advance(done, "hashing"))
        folder = home / f"{content[:16]}-format{FORMAT}"
        index = usable_index(folder)
        if index is None:
            findings = Findings(refusing=path)
            annotations = read_annotations(
                path,
                advance=lambda done, _: advance(stamp.size + done, "parsing"),
                findings=findings,
            )
            for each in findings.taken():
                note = f"note: {path}: {KINDS[each.name].meaning}: {each.count:,}"
                console.print(note, soft_wrap=True)
            remove_index(folder)  # a damaged one
            try:
                write_index(folder, annotations, made_from=str(real_path(path)))
            except OSError:
                # If the file system has no locks another process may have been faster.
                index = usable_index(folder)
                if index is None:
                    raise
            # The parsed columns are memory of this process alone; the mapped files are shared.
            del annotations
            index = index or FoundIndex(open_index(folder), folder, was_made=True)
        advance(2 * stamp.size, "")
    # Content that changed after it was hashed would be kept under the wrong hash.
    if read_stamp(path) != stamp:
        raise InputError(f"{path}: changed while it was read; run the same command again")
    # Written last and replaced atomically: other processes open what this file names.
    with replacing(home / CURRENT) as stream:
        stream.write(json.dumps({"index": folder.name, **stamp._asdict()}).encode())
    remove_earlier(home, folder, console=console)
    return index


def remove_earlier(home: Path, current: Path, *, console: Console) -> None:
    """Remove indexes of what the file was before, and temporary files of killed processes.

    A note names what else is there, which stays: it is somebody's.
    """
    strange = []
    for entry in sorted(home.iterdir()):
        if entry.name in (current.name, CURRENT, LOCK):
            continue
        if TEMPORARY_NOTE.fullmatch(entry.name) and not entry.is_dir():
            entry.unlink(missing_ok=True)
        elif not (INDEX_NAME.fullmatch(entry.name) and remove_index(entry)):
            strange.append(entry.name)
    if strange:
        console.print(
            f"note: {home}: {', '.join(map(printable, strange[:3]))}"
            f"{', …' if len(strange) > 3 else ''} stays: not files of an index",
            soft_wrap=True,
        )


def remove_index(folder: Path) -> bool:
    """Remove an index's folder, and return whether it is gone; a missing one is.

    A link stays, and a folder that holds anything but an index's files stays as it is.
    """
    if not os.path.lexists(folder):
        return True
    if folder.is_symlink() or not folder.is_dir():
        return False
    files = list(folder.iterdir())
    if not all(file.name in FILES and not file.is_dir() for file in files):
        return False
    for file in files:
        file.unlink(missing_ok=True)
    folder.rmdir()
    return True


def digest(path: Path, *, advance: Advance = ignore_progress) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    sha = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while part := file.read(4 << 20):
            sha.update(part)
            done += len(part)
            advance(done, "")
    return sha.hexdigest()
