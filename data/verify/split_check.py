"""All checks of one split.

TODO-DOC What the image files' faults mean to a run, as findings.

TODO-DOC Image files, decoded as training does: which are missing, damaged or of another shape.

TODO-DOC Image files that no annotation names.
"""

import os
import posixpath
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from common.console import Advance, progress, progress_in_bytes
from common.errors import InputError
from common.processes import process_pool, results_of, usable_cores
from data.decoding import QUARTER_TURNS, SUFFIXES, decode_image
from data.index import find_or_make_index
from data.sources import Split, SplitName, fits_both_ways, is_resized_copy, leaves_folder
from data.verify.checks import (
    ClassCounts,
    check_boxes,
    check_categories_fit,
    check_ids,
    check_image_entries,
    count_classes,
)
from data.verify.entries import Entries, Good, entries_of_index, read_entries
from data.verify.findings import KINDS, Findings, Place, Severity


@dataclass(frozen=True)
class TrainingRules:
    """What a training run accepts and does with images."""

    decoder: str
    """As `resolve_decoder` gives it"""
    image_size: int
    """Side of the square that images are resized to [pixels]"""
    class_indices: str
    """`contiguous` or `category_id`, see `data.dataset.class_map_of`"""
    num_classes: int | None
    """Outputs of the model; None for as many as the categories need"""
    skip_images_without_boxes: bool
    """Whether training leaves out images without a box of a single object"""
    bad_image_limit: int | None
    """How many unreadable images are replaced; None: the first one stops training"""


@dataclass(frozen=True)
class Contents:
    """What could be read of a split, and counted."""

    entries: Entries
    good: Good
    classes: ClassCounts
    is_read: NDArray[np.bool_]
    """[I] whether the run reads the image"""


class FileFault(NamedTuple):
    """What is the matter with an image file."""

    row: int
    """Which of the I images"""
    kind: str
    found: str


@dataclass
class CheckedSplit:
    """A split, and what was found."""

    name: SplitName
    split: Split
    findings: Findings
    contents: Contents | None
    """None where the annotations cannot be read"""
    file_faults: list[FileFault] = field(default_factory=list)
    images_checked: int = 0
    seconds_of_images: float = 0.0
    seconds_of_annotations: float = 0.0

    @property
    def checked_all_images(self) -> bool:
        """Whether every image was decoded."""
        contents = self.contents
        return contents is None or self.images_checked == len(contents.entries.image_ids)


def check_annotations(
    name: SplitName, split: Split, rules: TrainingRules, *, console: Console
) -> CheckedSplit:
    """Check what a split's annotations say; no image is looked at."""
    began = time.monotonic()
    findings = Findings()
    entries = open_entries(split.annotations, findings, console=console)
    checked = CheckedSplit(name, split, findings, None)
    if entries is not None:
        good = Good.everything(entries)
        check_ids(entries, findings, good)
        check_boxes(entries, findings, good, image_size=rules.image_size)
        check_categories_fit(
            entries,
            findings,
            class_indices=rules.class_indices,
            num_classes=rules.num_classes,
        )
        skips = name == "train" and rules.skip_images_without_boxes
        is_read = check_image_entries(entries, findings, skip_images_without_boxes=skips)
        checked.contents = Contents(entries, good, count_classes(entries, findings), is_read)
    checked.seconds_of_annotations = time.monotonic() - began
    return checked


def open_entries(path: Path, findings: Findings, *, console: Console) -> Entries | None:
    """The columns of a JSON file, as far as it can be read, or of an index."""
    if not path.is_dir():
        size = path.stat().st_size
        with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
            return read_entries(path, findings, advance=lambda done: advance(done, ""))
    try:
        entries = entries_of_index(path, find_or_make_index(path).annotations)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        findings.add("annotations_unreadable", Place(path.name, reason))
        return None
    if not len(entries.image_ids):
        findings.add("no_images", Place("images", "[]"))
        return None
    return entries


def check_split_images(
    checked: CheckedSplit,
    *,
    decoder: str,
    sample: int | None,
    console: Console,
) -> None:
    """Decode a split's images, or `sample` of them, as training does."""
    contents = checked.contents
    if contents is None:
        return
    rows = rows_to_check(len(contents.entries.image_ids), sample)
    began = time.monotonic()
    # The processes are copies of this one: they are started before the progress bar's thread.
    with (
        process_pool(processes_for(len(rows))) as pool,
        progress(console, f"decoding {checked.name} images", total=len(rows)) as advance,
    ):
        checked.file_faults = check_files(
            pool,
            checked.split.images,
            contents.entries,
            rows,
            decoder=decoder,
            advance=advance,
        )
    checked.images_checked = len(rows)
    checked.seconds_of_images = time.monotonic() - began


def rows_to_check(images: int, sample: int | None) -> NDArray[np.int64]:
    """All images, or as many as wanted: always the same ones, from all over the list."""
    if sample is None or sample >= images:
        return np.arange(images)
    return np.sort(np.random.default_rng(0).choice(images, size=sample, replace=False))


def add_image_findings(checked: Sequence[CheckedSplit], rules: TrainingRules) -> None:
    """Add the faults of the splits' image files to their findings; what is bad is no more good.

    Where a run replaces bad images they stop nothing, unless there are too many.
    """
    with_contents = [(one, one.contents) for one in checked if one.contents is not None]
    are_replaced = can_be_replaced(with_contents, rules.bad_image_limit)
    for one, contents in with_contents:
        for fault in one.file_faults:
            severity = KINDS[fault.kind].severity
            if severity is Severity.STOPS:
                contents.good.images[fault.row] = False
                # Opening a split asks for the first image's file, whether or not it is read later.
                is_first = fault.row == 0 and fault.kind == "image_missing"
                is_wanted = contents.is_read[fault.row] or (
                    is_first and rules.bad_image_limit is None
                )
                if are_replaced or not is_wanted:
                    severity = Severity.MENDED
            place = contents.entries.image_place(fault.row, "", fault.found)
            one.findings.add(fault.kind, place, severity=severity)


def can_be_replaced(splits: Sequence[tuple[CheckedSplit, Contents]], limit: int | None) -> bool:
    """Return whether bad images are within the limit, and some others remain to train on."""
    if limit is None:
        return False
    total = 0
    for one, contents in splits:
        bad = bad_images_read(one, contents)
        if one.name == "train" and bad >= contents.is_read.sum():
            return False
        total += bad
    return total <= limit


def bad_images_read(checked: CheckedSplit, contents: Contents) -> int:
    """How many of the images that the run reads cannot be used."""
    return sum(
        bool(contents.is_read[fault.row])
        for fault in checked.file_faults
        if KINDS[fault.kind].severity is Severity.STOPS
    )


IMAGES_AT_ONCE = 8
"""A process gets so many at a time: a tenth of a second's work."""
TASKS_PER_PROCESS = 4
"""Handed out at a time: enough that none runs dry, few enough to end soon after Ctrl-C."""


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
