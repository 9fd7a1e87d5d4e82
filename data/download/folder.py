"""The folder that a data set is downloaded to: whose it is, what is in it, whether it fits.

TODO-DOC What a user asks to download.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from common.errors import InputError, printable
from common.locks import FileLock, LockHeldError
from data.download.http import PART_SUFFIX
from data.download.images import HttpOptions
from data.sources import SplitName

LOCK_FILE = ".download.lock"
MISSING_LIST = "missing.txt"


@contextmanager
def one_download(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other downloads out of it while the context lasts.

    The lock ends with the process, however it ends; its empty file stays.
    Raises InputError if the folder cannot be written, or another download is at work in it.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder}: is a file; name a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE)
        lock.take()
    except LockHeldError as error:
        raise InputError(
            f"--out: {folder}: another download is at work here; wait for it or end it"
        ) from error
    except OSError as error:
        raise InputError(
            f"--out: {folder}: {error.strerror}; name a folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()


def tidy(folder: Path) -> set[str]:
    """Names of the files in a folder, which is made if need be; parts of images are removed.

    Reads the names only: a file has its name because it was checked when it came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    for name in [name for name in names if name.endswith(PART_SUFFIX)]:
        (folder / name).unlink()
        names.remove(name)
    return names


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that has its name only when it is complete."""
    part = path.with_name(path.name + PART_SUFFIX)
    part.write_bytes(content)
    part.replace(path)


def write_missing_list(folder: Path, failed: Mapping[str, str]) -> None:
    """List what could not be had: a line `file, tab, reason` each. No file if there is nothing."""
    path = folder / MISSING_LIST
    if not failed:
        path.unlink(missing_ok=True)
        return
    lines = [f"{printable(name)}\t{reason}\n" for name, reason in failed.items()]
    write_atomically(path, "".join(lines).encode())


def check_space(folder: Path, *, images: int, bytes_each: int, console: Console) -> None:
    """Refuse what cannot fit, and say so if it will be close.

    Args:
        folder: Where images go.
        images: How many are still to come.
        bytes_each: How large one is on average; a mirror's may be smaller.
        console: Where the warning goes.

    Raises:
        InputError: Less than half of the space that is needed is free.
    """
    free, needed = shutil.disk_usage(folder).free, images * bytes_each
    if needed <= free:
        return
    text = (
        f"{folder}: {images} images take about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
        "free; free some, name another --out, or get fewer with --limit"
    )
    if free < needed / 2:
        raise InputError(f"--out: {text}")
    console.print(f"warning: {text}", soft_wrap=True)


class Request(NamedTuple):
    """Which part of a data set, from where, and where to."""

    out: Path
    splits: tuple[SplitName, ...]
    limit: int | None
    """Images of each split; None for all."""
    classes: tuple[str, ...]
    """Names of classes, or the one word `all` (or `mlperf`, for OpenImages)."""
    mirror: str | None
    """Address of a server that holds copies, without a slash at its end; None for the owners'."""
    manners: HttpOptions
