"""Image files that no annotation names."""

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from data.decoding.decode import SUFFIXES
from data.verify.findings import Findings, Place


def check_unused_files(folder: Path, named: Iterable[str], findings: Findings) -> None:
    """Find files with an image's suffix, in a folder and those below, that are not `named`."""
    known = {posixpath.normpath(name) for name in named}
    for parent, folders, files in os.walk(folder):
        folders.sort()
        below = os.path.relpath(parent, folder)
        for name in sorted(files):
            file = name if below == "." else f"{below}/{name}"
            if name.lower().endswith(SUFFIXES) and file not in known:
                findings.add("file_unused", Place(file, "not in images"))
