"""The image files that a benchmark reads."""

import json
from collections.abc import Sequence
from pathlib import Path

from data.decoding.decode import SUFFIXES
from retinanet.errors import InputError


def photos_in(folder: Path, *, limit: int, option: str = "--images") -> list[Path]:
    """Up to `limit` images of a folder, spread evenly over its names in order; absolute paths.

    `option` is the one that names the folder, for messages.

    Raises:
        InputError: It is no folder, or it holds no image.
    """
    if not folder.is_dir():
        raise InputError(f"{option}: {folder} is not a folder; give one with images")
    photos = sorted(file for file in folder.resolve().iterdir() if file.suffix.lower() in SUFFIXES)
    if not photos:
        raise InputError(f"{option}: {folder} holds no {', '.join(SUFFIXES)}; give another folder")
    count = min(limit, len(photos))
    return [photos[place * len(photos) // count] for place in range(count)]


def write_list(photos: Sequence[Path], file: Path) -> None:
    """List photos in a file, for the processes of contestants."""
    file.write_text(json.dumps([str(photo) for photo in photos]), encoding="utf-8")


def read_list(file: str) -> list[Path]:
    """The photos of `write_list`."""
    return [Path(photo) for photo in json.loads(Path(file).read_text(encoding="utf-8"))]
