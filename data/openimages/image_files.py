"""The image files in a folder: which are there, and their sizes, which the CSV files do not say."""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.decoding.decode import DAMAGE, FORMATS
from data.openimages.image_ids import IMAGE_ID, image_id_texts
from data.worker_signals import signals_blocked
from retinanet.errors import InputError
from retinanet.progress import Advance

SUFFIX = ".jpg"

FILES_AT_ONCE = 256
"""A process gets so many at a time: a hundredth of a second's work, more from a slow disk."""

PROCESSES_PER_CORE = 2
"""While one waits for the disk another parses. Threads would get in each other's way: two took 50
µs a file, one 37, two processes 21."""


class Sizes(NamedTuple):
    """What the headers of some image files say."""

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
    folder: Path, image_ids: NDArray[np.uint64], *, advance: Advance
) -> NDArray[np.int32]:
    """Width and height of images [I] in pixels, as stored, without a turn by EXIF: [I, 2].

    Only headers are read, by several processes; `advance` gets the number of images.
    Raises InputError if some are damaged or no images, naming how many and the first.
    """
    blocks = [
        image_ids[start : start + FILES_AT_ONCE]
        for start in range(0, len(image_ids), FILES_AT_ONCE)
    ]
    parts = [np.empty((0, 2), dtype=np.int32)]
    faults: list[str] = []
    done = 0
    with _processes(limit=len(blocks)) as pool:
        with signals_blocked():  # the first submission starts the processes
            results = pool.map(partial(_sizes_of, folder), blocks)
        for part in results:
            parts.append(part.width_height)
            faults += part.faults
            done += len(part.width_height)
            advance(done, "")
    if faults:
        raise InputError(
            f"{folder}: {len(faults)} of {len(image_ids)} images cannot be read, the first is "
            f"{faults[0]}; download them again"
        )
    return np.concatenate(parts)


def _sizes_of(folder: Path, image_ids: NDArray[np.uint64]) -> Sizes:
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
    return Sizes(sizes, faults)


def _size_of(path: Path) -> tuple[int, int]:
    with Image.open(path, formats=FORMATS) as image:
        return image.size


@contextmanager
def _processes(*, limit: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, whatever ends it."""
    cores = len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(
        max(1, min(PROCESSES_PER_CORE * cores, limit)),
        mp_context=multiprocessing.get_context("fork"),  # others would import torch in each
        initializer=_end_with_parent,
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
