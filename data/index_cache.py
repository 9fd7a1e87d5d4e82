"""The index that belongs to a JSON file: found, or made once while other processes wait.

It lies beside the file in `NAME.json.index/`, or below the user's cache where that folder cannot be
written. Which index is the file's is settled by its content: a file that was copied or touched
keeps it, one that was changed gets another.
"""

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from data.annotations import Annotations
from data.coco_json import read_annotations
from data.index import FORMAT, is_index, open_index, write_index
from data.json_stream import Advance
from retinanet.cache_folder import first_writable, one_process_at_a_time, user_cache
from retinanet.errors import InputError
from retinanet.progress import progress_in_bytes
from retinanet.regular_files import read_bytes
from retinanet.terminal import make_console

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
    """Annotations mapped into memory: of an index, or of a JSON file by way of its index.

    Args:
        path: A COCO-format JSON file, an index's folder, or a JSON file's `.index` folder.
        console: Where to show the progress of making an index.

    Raises:
        InputError: One line: the file is not there or not COCO's, the folder is no index.
    """
    return find_or_make_index(path, console=console).annotations


def find_or_make_index(path: Path, *, console: Console | None = None) -> FoundIndex:
    """`open_annotations`, telling where the index lies and whether it had to be made."""
    if path.is_dir():
        return index_of_folder(path)
    stamp = stamp_of(path)
    homes = index_homes(path)
    for home in homes:
        found = current_index(home, stamp)
        if found:
            return found
    console = console or make_console()
    try:
        return make_for_all(path, stamp, first_writable(homes), console=console)
    except OSError as error:
        console.print(f"no index of {path} can be written ({error}): this process reads it itself")
        return FoundIndex(read_annotations(path), None, was_made=False)


def index_of_folder(folder: Path) -> FoundIndex:
    """The index in a folder, or of the file whose `.index` folder it is."""
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
    """Folders that may hold a file's indexes, the best first."""
    whole_path = str(path.resolve())
    name = f"{path.name}-{hashlib.sha256(whole_path.encode()).hexdigest()[:16]}.index"
    beside, cache = path.with_name(f"{path.name}.index"), user_cache()
    return [beside, cache / "indexes" / name] if cache else [beside]


def stamp_of(path: Path) -> Stamp:
    """The file's size and time of change. Raises InputError where it cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe might never end, or never begin
            raise InputError(f"{path}: is no file; give annotations in COCO's format, or an index")
        with path.open("rb"):
            return Stamp(status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def current_index(home: Path, stamp: Stamp) -> FoundIndex | None:
    """The index there, if it is of a file that looked so, and is whole."""
    current = read_current(home)
    if current is None or (current["size"], current["modified_ns"]) != stamp:
        return None
    return usable_index(home / current["index"])


def usable_index(folder: Path) -> FoundIndex | None:
    """The index there, if it is whole."""
    try:
        return FoundIndex(open_index(folder), folder, was_made=False)
    except InputError:
        return None


def read_current(home: Path) -> dict[str, Any] | None:
    """What is known of a file's current index: `index`, `size`, `modified_ns`."""
    try:
        current = json.loads(read_bytes(home / CURRENT))
        found = {name: current[name] for name in ("index", "size", "modified_ns")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    name = found["index"]
    # A name of a folder in this one, and no way to another.
    if not isinstance(name, str) or Path(name).name != name or name == ".." or "\0" in name:
        return None
    return found


def make_for_all(path: Path, stamp: Stamp, home: Path, *, console: Console) -> FoundIndex:
    """`make_index` in one process, while others wait for it and then find what it made."""
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
        found = usable_index(folder)
        if found is None:
            annotations = read_annotations(
                path, advance=lambda done: advance(stamp.size + done, "reading it")
            )
            found = keep_index(folder, annotations, made_from=path)
            del annotations
        advance(2 * stamp.size, "")
    if stamp_of(path) != stamp:
        raise InputError(f"{path}: changed while it was read; run the same command again")
    write_current(home, folder=folder, stamp=stamp)
    remove_others(home, keep=folder.name)
    return found


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
        found = usable_index(folder)
        if found is None:
            raise
        return found
    return FoundIndex(open_index(folder), folder, was_made=True)


def digest(path: Path, *, advance: Advance) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
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
    """Leave no folder behind for a file that no index can be made of."""
    if [entry.name for entry in home.iterdir()] == [LOCK]:
        shutil.rmtree(home, ignore_errors=True)


def say_waiting(console: Console, path: Path) -> None:
    """One line for the log of every process that waits."""
    console.print(f"waiting for another process, which makes the index of {path}")
