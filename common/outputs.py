"""Outputs of commands: none replaces a file that is read or a user's folder; space for them."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import InputError, printable
from common.files import or_refused
from common.walk import identity, real_path
from common.wording import listed

if TYPE_CHECKING:
    from rich.console import Console

NAMES_SHOWN = 3


def require_no_input(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse outputs that are a file of the inputs, however it is spelled or linked.

    Folders and missing files among them do not count. Raises InputError that names both.
    """
    present = [output for output in outputs if output.is_file()]
    # A data set has many files: they are looked at only where there is something to replace.
    read = {identity(file): file for file in inputs if file.is_file()} if present else {}
    for output in present:
        if source := read.get(identity(output)):
            raise InputError(
                f"{output}: would replace {source}, which this command reads; set another output"
            )


def require_outside(source: Path, folder: Path, *, advice: str) -> None:
    """Refuse to replace a folder that is, or contains, an input; `advice` is the fix."""
    place, replaced = real_path(source), real_path(folder)
    if place == replaced or replaced in place.parents:
        raise InputError(f"{folder}: would replace {source}, which this command reads; {advice}")


LOG = re.compile(r"\.(log|out|err|[oe][0-9]+)$")
"""The ends of names of logs that shells and batch systems write where they are told."""


def other_entries(folder: Path, *, advice: str) -> list[Path]:
    """Return a folder's entries, sorted, except hidden ones, such as those of NFS, and logs.

    It may be missing, or a file. Raises InputError that ends with `advice` if it cannot be listed.
    """
    with or_refused(folder, "cannot be listed", advice=advice):
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        entry
        for entry in entries
        if not (entry.name.startswith(".") or (LOG.search(entry.name) and entry.is_file()))
    ]


def format_names(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    return printable(listed(names, NAMES_SHOWN))


def require_space(folder: Path, needed: int, *, fix: str = "set another --out") -> None:
    """Raise InputError, with the `fix`, if a folder has less free space than needed [bytes].

    Some libraries that write files themselves end the process on a full disk.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder}: {free / 1e6:,.0f} MB are free and {needed / 1e6:,.0f} MB needed; "
            f"free some space, or {fix}"
        )


def check_space(
    folder: Path,
    *,
    images: int,
    bytes_each: int,
    console: "Console",
    fix: str = "set another --out, or download fewer images with --limit",
) -> None:
    """Warn if the images may not fit on the disk; raise InputError if not even half of them do."""
    free, needed = shutil.disk_usage(folder).free, images * bytes_each
    if needed <= free:
        return
    text = (
        f"{folder}: {images} images need about {needed / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are "
        f"free; free some space, {fix}"
    )
    # The estimate is a mean, so only a clear lack of space is an error.
    if free < needed / 2:
        raise InputError(f"--out: {text}")
    console.print(f"warning: {text}", soft_wrap=True)
