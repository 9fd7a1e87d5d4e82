"""Whether a run's folder can be written."""

import tempfile
from pathlib import Path

from retinanet.file_lock import has_locks
from retinanet.preflight.finding import Finding, failure, ok

SUBJECT = "writing"
FIX = "set run.root to a folder that can be written"
WRITTEN_TO = ("checkpoints", "eval", "pictures", "tensorboard")
"""Folders of a run that may be there already, and another user's."""


def check_writing(folder: Path) -> Finding:
    """Write a file there, or in the nearest folder above it that exists; nothing is left.

    Modes alone do not tell: root may write where they forbid it, and nobody may on a file system
    that is mounted read-only.

    Args:
        folder: The run's.
    """
    try:
        place = existing(folder)
        places = [place]
        if place == folder.absolute():
            places += [place / name for name in WRITTEN_TO if (place / name).is_dir()]
    except OSError as error:
        return failure(SUBJECT, f"{folder}: cannot be looked into: {error.strerror}", fix=FIX)
    if not place.is_dir():
        return failure(SUBJECT, f"{place}: is a file", fix="set run.name or run.root")
    for one in places:
        problem = trial_write(one)
        if problem:
            return failure(SUBJECT, f"{one}: cannot be written: {problem}", fix=FIX)
    made = "" if place == folder.absolute() else f", where {folder} will be made"
    written = f"a file was written in {place}{made}, and removed"
    if not has_locks(place):
        written += "; its file system has no locks: .lock.owner shows where a run is alive"
    return ok(SUBJECT, written)


def existing(path: Path) -> Path:
    """The path itself, or the nearest above it that exists; absolute.

    Raises:
        OSError: It cannot be told, since a folder on the way may not be entered.
    """
    whole = path.absolute()
    return next(one for one in (whole, *whole.parents) if one.exists())


def trial_write(folder: Path) -> str | None:
    """Write a page into a file that has no name, so that not even a kill leaves it behind.

    Returns:
        Why it fails; None where it does not.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None
