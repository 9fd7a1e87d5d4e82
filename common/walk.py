"""Files of somebody else's data set: which ones a command may take, and the walk that finds them.

A data set from outside can hold anything: links to any file of the machine, links between its own
folders, FIFOs and devices with the names of images, paths such as `/` in its description. What the
user names is taken, wherever it leads. What the data set's files and links name is taken if it is a
regular file in the folders that the user named; for others he must give `--allow-outside`. A walk
counts what it leaves out.
"""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self, TypedDict, Unpack

from common.errors import InputError

ALLOW_OUTSIDE = "--allow-outside"
OUTSIDE = f"paths that lead outside of the data set ({ALLOW_OUTSIDE} takes them)"
VISITED = "folders that a link names again"
IRREGULAR = "FIFOs, devices, sockets and links to nothing"
UNREADABLE = "folders that cannot be read"
PHOTOS = "photos in formats that are not read (convert them to JPEG)"
PHOTO_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".nrw"),
    *(".arw", ".srf", ".raf", ".orf", ".rw2", ".pef", ".srw", ".raw"),
)
"""Those of phones and cameras: where pictures are searched for, they are named."""


@dataclass(frozen=True)
class Reach:
    """Where a command takes files from: from these folders, or with the user's word from all."""

    name: str  # of the data set's folder, as the user gave it
    folders: tuple[str, ...]  # resolved
    allows_outside: bool
    real: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Folders without links: the many files of a data set have few folders"""

    def __reduce__(self) -> tuple[type[Self], tuple[str, tuple[str, ...], bool]]:
        # Without the folders: processes get it with each of their tasks.
        return type(self), (self.name, self.folders, self.allows_outside)

    @classmethod
    def of(cls, *folders: Path, allow_outside: bool = False) -> Self:
        """Return the reach of a command for which a user named folders, the data set's first."""
        return cls(str(folders[0]), tuple(map(os.path.realpath, folders)), allow_outside)

    def has(self, path: Path | str) -> bool:
        """Return whether a path is in the folders, links followed; it need not exist."""
        text = str(path)
        if "\0" in text:
            return False  # no file has such a name
        folder, name = os.path.split(text)
        if name in ("", ".", "..") or os.path.islink(text):  # noqa: PTH114
            real = os.path.realpath(text)
        else:
            if folder not in self.real:
                self.real[folder] = os.path.realpath(folder or ".")
            real = f"{self.real[folder].rstrip('/')}/{name}"
        return any(f"{real}/".startswith(f"{top.rstrip('/')}/") for top in self.folders)

    def covers(self, path: Path | str) -> bool:
        """Return whether the file of a path may be taken."""
        return self.allows_outside or self.has(path)

    def require(self, path: Path) -> Path:
        """Return a path that may be taken; raise InputError for another one."""
        if not self.covers(path):
            raise InputError(f"{path}: {self.describe_outside()}")
        return path

    def describe_outside(self) -> str:
        """Return what is wrong with a path that is not covered, and the fix."""
        return f"leads outside of {self.name}; give {ALLOW_OUTSIDE} if you trust the data set"

    def fault(self, path: Path | str) -> str | None:
        """Return why a path is no file to take, to be said after its name; None if it is one."""
        if not self.covers(path):
            return self.describe_outside()
        # These functions answer for names that no file can have too.
        if os.path.isfile(path):  # noqa: PTH113
            return None
        return "is not a regular file" if os.path.lexists(path) else "does not exist"


@dataclass
class LeftOut:
    """What walks left out: the number and the first path of each kind."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)
    others: int = 0  # regular files with other endings

    def add(self, kind: str, path: str) -> None:
        """Count a path."""
        number, first = self.found.get(kind, (0, path))
        self.found[kind] = number + 1, min(first, path)

    def note(self) -> str:
        """Return all in one line; empty if nothing was left out."""
        kinds = [
            f"{kind}: {number:,}, first {first}"
            for kind, (number, first) in sorted(self.found.items())
        ]
        return f"left out: {'; '.join(kinds)}" if kinds else ""

    def notes(self) -> list[str]:
        """Return the note as a list, which is empty if nothing was left out."""
        return [self.note()] if self.found else []

    def reason(self) -> str:
        """Return the note as the end of an error about missing files."""
        return f"; {self.note()}" if self.found else ""


class Options(TypedDict, total=False):
    """What a walk yields."""

    suffixes: tuple[str, ...]  # files whose names end so, in lower case; default: all
    hidden: bool  # also what has a name that begins with a dot, but not macOS's `._NAME`
    depth: int  # of the lowest folders, 0 for the root alone; default: all
    without: Path  # a folder that is skipped
    linked_folders: bool  # what is behind links to folders; default: yes


def walk_files(
    root: Path, reach: Reach, left_out: LeftOut, **options: Unpack[Options]
) -> Iterator[str]:
    """Yield the regular files of `walk_folders`, relative to the root."""
    for folder in walk_folders(root, reach, left_out, **options):
        yield from (f"{folder.below}{name}" for name in folder.files)


class Folder(NamedTuple):
    """A folder: its path relative to the root (empty, or ends with `/`), and what is in it."""

    below: str
    files: list[str]  # names, in order
    folders: list[str]
    links: list[str]  # to folders


def walk_folders(
    root: Path, reach: Reach, left_out: LeftOut, **options: Unpack[Options]
) -> Iterator[Folder]:
    """Yield a folder and those below it, each once, however many links lead to it.

    The order is that of the names, with a folder's files before those below it, and linked folders
    at the end: a folder that is below the root has its own path.
    """
    depth, without = options.get("depth"), options.get("without")
    # A link to a folder above the root leads to the root again.
    visited = {identity(str(parent)) for parent in Path(os.path.realpath(root)).parents}
    excluded = None if without is None else identity(str(without))
    linked = deque([""])
    while linked:
        waiting = [linked.popleft()]
        while waiting:
            below = waiting.pop()
            path = os.path.join(root, below)  # noqa: PTH118
            place = identity(path)
            if place in visited and place is not None:
                left_out.add(VISITED, path.rstrip("/"))
                continue
            if place is not None and place == excluded:
                continue
            visited.add(place)
            folder = list_folder(path, below, reach, left_out, options)
            yield folder
            if depth is None or below.count("/") < depth:
                waiting += [f"{below}{name}/" for name in reversed(folder.folders)]
                if options.get("linked_folders", True):
                    linked += [f"{below}{name}/" for name in folder.links]


def identity(path: Path | str) -> tuple[int, int] | None:
    """Return device and inode, links followed: no other file or folder has both; None: unknown."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def real_path(path: Path) -> Path:
    """Return a path with all links followed, as far as they lead anywhere.

    `Path.resolve` raises RuntimeError for links that lead to each other, before Python 3.13.
    """
    return Path(os.path.realpath(path))


def list_folder(path: str, below: str, reach: Reach, left_out: LeftOut, options: Options) -> Folder:
    """Return what is in a folder, without what must not be taken from it."""
    found = Folder(below, [], [], [])
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                # `._a.jpg` holds what other file systems cannot store of a.jpg, and no picture.
                dots = "._" if options.get("hidden") else "."
                if not entry.name.startswith(dots):
                    add_entry(entry, found, reach, left_out, options.get("suffixes", ("",)))
    except OSError:
        left_out.add(UNREADABLE, path.rstrip("/"))
    for names in (found.files, found.folders, found.links):
        names.sort()
    return found


def add_entry(
    entry: os.DirEntry[str],
    found: Folder,
    reach: Reach,
    left_out: LeftOut,
    suffixes: tuple[str, ...],
) -> None:
    """Add what an entry of a folder is to the lists of the folder, or to what is left out."""
    is_wanted = entry.name.lower().endswith(suffixes)
    if entry.is_dir(follow_symlinks=False):
        found.folders.append(entry.name)
    elif entry.is_file(follow_symlinks=False):
        if is_wanted:
            found.files.append(entry.name)
        elif ".jpg" in suffixes and entry.name.lower().endswith(PHOTO_SUFFIXES):
            left_out.add(PHOTOS, entry.path)
        else:
            left_out.others += 1
    elif (is_folder := os.path.isdir(entry.path)) or is_wanted:  # noqa: PTH112 - a link, or neither
        if not reach.covers(entry.path):
            left_out.add(OUTSIDE, entry.path)
        elif is_folder:
            found.links.append(entry.name)
        elif os.path.isfile(entry.path):  # noqa: PTH113
            found.files.append(entry.name)
        else:
            left_out.add(IRREGULAR, entry.path)
