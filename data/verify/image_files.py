"""Image files, decoded as training does: which are missing, damaged or of another shape."""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data.decoding.decode import decode_image
from data.decoding.orientation import QUARTER_TURNS
from data.image_paths import leaves_folder
from data.process_pool import results_of, usable_cores
from data.sizes import fits_both_ways, is_resized_copy
from data.verify.entries import Entries
from retinanet.errors import InputError
from retinanet.progress import Advance

IMAGES_AT_ONCE = 8
"""A process gets so many at a time: a tenth of a second's work."""
TASKS_PER_PROCESS = 4
"""Handed out at a time: enough that none runs dry, few enough to end soon after Ctrl-C."""


class FileFault(NamedTuple):
    """What is the matter with an image file."""

    row: int
    """Which of the I images"""
    kind: str
    found: str


class Task(NamedTuple):
    """Some images, to be decoded by one process."""

    rows: list[int]
    names: list[str]
    sizes: list[tuple[int, int]]
    """(height, width) in pixels, as annotated"""


def processes_for(images: int) -> int:
    """One for each core, unless there are too few images."""
    return max(1, min(usable_cores(), -(-images // IMAGES_AT_ONCE)))


def check_files(
    pool: ProcessPoolExecutor,
    folder: Path,
    entries: Entries,
    rows: NDArray[np.int64],
    *,
    decoder: str,
    advance: Advance,
) -> list[FileFault]:
    """Decode the files of some images; returns the faults, in the order of images.

    Args:
        pool: Of `processes_for` so many images.
        folder: Of the images.
        entries: Which images there are.
        rows: Which of them to look at.
        decoder: As `resolve_decoder` gives it.
        advance: Called with the number of images that were looked at.
    """
    faults: list[FileFault] = []
    done, began = 0, time.monotonic()
    work = partial(check_some, folder, decoder)
    at_once = TASKS_PER_PROCESS * processes_for(len(rows))
    for count, found in results_of(pool, work, tasks_of(entries, rows), at_once=at_once):
        faults += found
        done += count
        rate = done / max(1e-9, time.monotonic() - began)
        advance(done, f"{rate:.0f} images/s")
    return sorted(faults)


def tasks_of(entries: Entries, rows: NDArray[np.int64]) -> Iterator[Task]:
    """The images in portions."""
    for start in range(0, len(rows), IMAGES_AT_ONCE):
        part = rows[start : start + IMAGES_AT_ONCE]
        sizes = zip(entries.heights[part].tolist(), entries.widths[part].tolist(), strict=True)
        names = [entries.file_names[row] for row in part.tolist()]
        yield Task(part.tolist(), names, list(sizes))


def check_some(folder: Path, decoder: str, task: Task) -> tuple[int, list[FileFault]]:
    """How many images there were, and the faults of their files."""
    faults = []
    for row, name, size in zip(*task, strict=True):
        if leaves_folder(name):
            continue  # told as such; what lies there is no matter
        fault = fault_of_file(folder / name, decoder=decoder, annotated=size)
        if fault is not None:
            faults.append(FileFault(row, *fault))
    return len(task.rows), faults


def fault_of_file(
    path: Path, *, decoder: str, annotated: tuple[int, int]
) -> tuple[str, str] | None:
    """The kind of finding that an image file is, and what was found; None for a good one."""
    doubts: list[str] = []
    orientations: list[tuple[int, bool]] = []
    try:
        pixels = decode_image(
            path,
            decoder=decoder,
            annotated_size=annotated,
            note_doubt=doubts.append,
            note_orientation=lambda *noted: orientations.append(noted),
        )
    except InputError as error:
        return kind_of_failure(error), str(error).removeprefix(f"{path}: ")
    height, width = pixels.shape[:2]
    found = f"{width}×{height}, annotated {annotated[1]}×{annotated[0]}"
    if not is_resized_copy((height, width), annotated):
        return "image_other_shape", found
    if doubts:
        return "image_doubtful", doubts[0]
    for orientation, is_turned in orientations:
        told = f"{found}, EXIF orientation {orientation}"
        if is_turned:
            return "image_turned", told
        if orientation not in QUARTER_TURNS or fits_both_ways((height, width), annotated):
            return "image_orientation_unclear", told
    return None if (height, width) == annotated else ("image_resized", found)


def kind_of_failure(error: InputError) -> str:
    """The kind of finding that an image is which `decode_image` refused."""
    match error.__cause__:
        case FileNotFoundError():
            return "image_missing"
        case Image.UnidentifiedImageError():
            return "image_other_format"
        case Image.DecompressionBombError():
            return "image_too_large"
        case _:
            return "image_damaged"
