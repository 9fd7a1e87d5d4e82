"""The image files in a folder: which are there, and their sizes, which the CSV files do not say."""

import os
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from data.decoding.decode import DAMAGE, FORMATS
from data.openimages.image_ids import IMAGE_ID, image_id_texts
from data.process_pool import process_pool, results_of, usable_cores
from retinanet.errors import InputError
from retinanet.progress import progress

SUFFIX = ".jpg"

FILES_AT_ONCE = 256
"""A process gets so many at a time: a hundredth of a second's work, more from a slow disk."""

PROCESSES_PER_CORE = 2
"""While one waits for the disk another parses. Threads would get in each other's way: two took 50
µs a file, one 37, two processes 21."""


TASKS_PER_PROCESS = 4
"""Handed out at a time."""


class Sizes(NamedTuple):
    """What the headers of some image files say."""

    start: int
    """Which of all images is the first of these"""
    width_height: NDArray[np.int32]
    """[I, 2] pixels, as stored; 0 for a file that cannot be read"""
    faults: list[str]
    """Name of and trouble with each such file"""


def list_images(folder: Path) -> NDArray[np.uint64]:
    """The ids of the files `<ImageID>.jpg` in a folder, in no order; other files are no matter.

    Raises InputError for a folder that cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            stems = (entry.name.removesuffix(SUFFIX) for entry in entries if is_image(entry.name))
            return np.fromiter((int(stem, 16) for stem in stems), dtype=np.uint64)
    except OSError as error:
        raise InputError(f"{folder}: folder of images cannot be read: {error.strerror}") from error


def is_image(name: str) -> bool:
    """Whether this is the name of an image of OpenImages."""
    return name.endswith(SUFFIX) and IMAGE_ID.fullmatch(name.removesuffix(SUFFIX)) is not None


def read_sizes(
    folder: Path, image_ids: NDArray[np.uint64], *, console: Console
) -> NDArray[np.int32]:
    """Width and height of images [I] in pixels, as stored, without a turn by EXIF: [I, 2].

    Only headers are read, by several processes; `console` shows the progress.
    Raises InputError if some are damaged or no images, naming how many and the first.
    """
    starts = range(0, len(image_ids), FILES_AT_ONCE)
    tasks = ((start, image_ids[start : start + FILES_AT_ONCE]) for start in starts)
    processes = max(1, min(PROCESSES_PER_CORE * usable_cores(), len(starts)))
    sizes = np.zeros((len(image_ids), 2), dtype=np.int32)
    faults: dict[int, list[str]] = {}
    done = 0
    # The processes are started before the bar's thread is.
    with (
        process_pool(processes) as pool,
        progress(console, "reading sizes of images", total=len(image_ids)) as advance,
    ):
        work = partial(_sizes_of, folder)
        for part in results_of(pool, work, tasks, at_once=TASKS_PER_PROCESS * processes):
            sizes[part.start : part.start + len(part.width_height)] = part.width_height
            faults[part.start] = part.faults
            done += len(part.width_height)
            advance(done, "")
    in_order = [fault for start in sorted(faults) for fault in faults[start]]
    if in_order:
        raise InputError(
            f"{folder}: {len(in_order)} of {len(image_ids)} images cannot be read, the first is "
            f"{in_order[0]}; download them again"
        )
    return sizes


def _sizes_of(folder: Path, task: tuple[int, NDArray[np.uint64]]) -> Sizes:
    start, image_ids = task
    sizes = np.zeros((len(image_ids), 2), dtype=np.int32)
    faults = []
    for row, text in enumerate(image_id_texts(image_ids)):
        try:
            # Pillow warns of broken EXIF and of large sizes, which are read all the same.
            with warnings.catch_warnings(action="ignore"):
                sizes[row] = _size_of(folder / f"{text}{SUFFIX}")
        except (*DAMAGE, Image.DecompressionBombError) as error:
            reason = " ".join(str(error).split()).replace(f"{folder}{os.sep}", "")
            faults.append(f"{text}{SUFFIX} ({reason})")
    return Sizes(start, sizes, faults)


def _size_of(path: Path) -> tuple[int, int]:
    with Image.open(path, formats=FORMATS) as image:
        return image.size
