"""Where an image of annotations lies: always below the folder of images."""

from pathlib import Path, PurePosixPath

from data.columns import shown
from retinanet.errors import InputError


def leaves_folder(name: str) -> bool:
    """Whether a file name, put behind a folder, may name a file outside of it."""
    upwards = ".." in name and ".." in PurePosixPath(name).parts
    return upwards or name.startswith("/") or "\0" in name


def image_path(folder: Path, name: str) -> Path:
    """The file of an image. An index may be anybody's: its names are looked at where they are used.

    Raises:
        InputError: The name leads out of the folder. Links in it are followed: those are the
            user's own.
    """
    if leaves_folder(name):
        raise InputError(f"annotations: file_name {shown(name)}: leads out of {folder}")
    return folder / name
