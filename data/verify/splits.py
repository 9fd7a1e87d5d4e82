"""Check splits of a data set: their annotations, every image file, and unused files.

Images are decoded as in training, by one process per core. The severity of a faulty file depends on
the run: whether it reads the image, and whether it replaces unreadable ones. Files that are decoded
are hashed, so that copies of training images are found among the validation images.
"""

import hashlib
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from common.console import progress_in_bytes
from common.errors import InputError
from common.walk import LeftOut, Reach, real_path
from data.annotations import SPLITS, Split, TrainingRules, images_in_other, leaves_folder
from data.coco_json import Entries, check_ids, entries_of_index, leave_out_root, read_entries
from data.decoding import (
    AS_STORED,
    QUARTER_TURNS,
    SUFFIXES,
    Notes,
    decode_image,
    fits_both_ways,
    is_resized_copy,
)
from data.findings import KINDS, Findings, Place, Severity
from data.index import find_or_make_index
from data.packed import list_images, open_image_file, pack_of
from data.parts import read_in_parts
from data.verify.annotations import (
    check_boxes,
    check_categories_agree,
    check_categories_fit,
    check_image_entries,
    count_classes,
)


class FileFault(NamedTuple):
    """A fault of an image file; `row` is the image's."""

    row: int
    kind: str
    found: str


@dataclass
class CheckedSplit:
    """A split and its findings."""

    name: str  # `train`, `validation`; in a conversion also others
    split: Split
    findings: Findings
    entries: Entries | None  # None if the annotations cannot be read
    file_faults: list[FileFault] = field(default_factory=list)
    content_hashes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[I] of the image files; 0: not decoded, or not readable. Without any decoding empty"""
    images_checked: int = 0
    seconds_of_images: float = 0.0
    seconds_of_annotations: float = 0.0

    @property
    def checked_all_images(self) -> bool:
        """Whether every image was decoded."""
        return self.entries is None or self.images_checked == len(self.entries.image_ids)


def check_splits(
    splits: Mapping[str, Split],
    rules: TrainingRules,
    *,
    sample: int | None,
    console: Console,
) -> list[CheckedSplit]:
    """Check annotations, then `sample` images of each split (None: all); `train` comes first."""
    checked = [
        check_annotations(name, split, rules, console=console) for name, split in splits.items()
    ]
    by_name = {split.name: split for split in checked}
    if set(SPLITS) <= by_name.keys():
        train, validation = (by_name[name] for name in SPLITS)
        if (
            train.entries
            and validation.entries
            and not (
                train.entries.unreadable_categories or validation.entries.unreadable_categories
            )
        ):
            check_categories_agree(train.entries, validation.entries, validation.findings)
    if sample != 0:
        for split in checked:
            check_images(split, decoder=rules.decoder, sample=sample, console=console)
        add_image_findings(checked, rules)
        # One split's files may lie in the other's folder.
        if sample is None and len(checked) == len(SPLITS):
            find_unused_files(checked)
    if set(SPLITS) <= by_name.keys():
        find_shared_images(train=by_name["train"], validation=by_name["validation"])
    return checked


def check_annotations(
    name: str, split: Split, rules: TrainingRules, *, console: Console
) -> CheckedSplit:
    """Check a split's annotations, but no image."""
    began = time.monotonic()
    findings = Findings()
    entries = open_entries(split.annotations, findings, console=console)
    if entries is not None:
        leave_out_root(entries, findings)
        check_ids(entries, findings)
        check_boxes(entries, findings, rules)
        check_categories_fit(entries, findings, rules)
        skips = name == "train" and rules.skip_images_without_boxes
        check_image_entries(entries, findings, skip_images_without_boxes=skips)
        count_classes(entries, findings)
    seconds = time.monotonic() - began
    return CheckedSplit(name, split, findings, entries, seconds_of_annotations=seconds)


def open_entries(path: Path, findings: Findings, *, console: Console) -> Entries | None:
    """Return the columns of a JSON file, as far as it can be read, or of an index."""
    if not path.is_dir():
        size = path.stat().st_size
        with progress_in_bytes(console, f"reading {path.name}", total=size) as advance:
            return read_entries(path, findings, advance=advance)
    try:
        entries = entries_of_index(find_or_make_index(path).annotations)
    except InputError as error:
        reason = str(error).removeprefix(f"{path}: ")
        findings.add("annotations_unreadable", Place(path.name, reason))
        return None
    if not len(entries.image_ids):
        findings.add("no_images", Place("images", "[]"))
        return None
    return entries


IMAGES_AT_ONCE = 8  # for one process: a tenth of a second's work
Task = Sequence[tuple[int, str, tuple[int, int], bool]]
"""Images for one process to decode: row, file name, annotated (height, width) in pixels, and
`is_displayed` of annotations."""


def check_images(
    checked: CheckedSplit, *, decoder: str, sample: int | None, console: Console
) -> None:
    """Decode a split's images, or `sample` of them, and add the faults of their files."""
    entries = checked.entries
    if entries is None:
        return
    pack_of(checked.split.images.absolute())  # raises: a damaged index is no fault of each image
    rows, began = rows_to_check(len(entries.image_ids), sample), time.monotonic()

    def prepare(part: NDArray[np.int64]) -> Task:
        sizes = zip(entries.heights[part].tolist(), entries.widths[part].tolist(), strict=True)
        names = [entries.file_names[row] for row in part.tolist()]
        are_displayed = entries.is_displayed[part].tolist()
        return list(zip(part.tolist(), names, sizes, are_displayed, strict=True))

    parts = read_in_parts(
        partial(check_files, checked.split.images, decoder),
        rows,
        at_once=IMAGES_AT_ONCE,
        title=f"decoding {checked.name} images",
        console=console,
        prepare=prepare,
    )
    checked.content_hashes = np.zeros(len(entries.image_ids), dtype=np.int64)
    checked.content_hashes[rows] = [number for _, hashes in parts for number in hashes]
    checked.file_faults = [fault for faults, _ in parts for fault in faults]
    checked.images_checked = len(rows)
    checked.seconds_of_images = time.monotonic() - began


def rows_to_check(images: int, sample: int | None) -> NDArray[np.int64]:
    """Return the rows of all images, or of a sample: always the same, spread over the list."""
    if sample is None or sample >= images:
        return np.arange(images)
    return np.sort(np.random.default_rng(0).choice(images, size=sample, replace=False))


def check_files(folder: Path, decoder: str, task: Task) -> tuple[list[FileFault], list[int]]:
    """Decode the files of a task; return faults, and `CheckedSplit.content_hashes` of all."""
    faults, hashes = [], []
    for row, name, size, is_displayed in task:
        hashes.append(0)
        if leaves_folder(name):
            continue  # a finding of its own, whatever the file is
        fault = check_file(
            folder / name, decoder=decoder, annotated=size, is_displayed=is_displayed
        )
        if fault is not None:
            faults.append(FileFault(row, *fault))
        if fault is None or KINDS[fault[0]].severity is not Severity.STOPS:
            hashes[-1] = hash_content(folder / name)
    return faults, hashes


def hash_content(path: Path) -> int:
    """Return a hash of 64 bits of a file that was just decoded, and so is in the page cache."""
    try:
        with open_image_file(path) as file:
            content = file.read()
    except OSError:  # removed meanwhile
        return 0
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)


def check_file(
    path: Path, *, decoder: str, annotated: tuple[int, int], is_displayed: bool = False
) -> tuple[str, str] | None:
    """Return the kind of finding for an image file, and its text; None for a good file."""
    notes = Notes()
    try:
        pixels = decode_image(
            path,
            decoder=decoder,
            annotated_size=annotated,
            is_displayed=is_displayed,
            notes=notes,
        )
    except InputError as error:
        # decode_image raises one class of error; the kind of fault is in its cause.
        kinds = {
            FileNotFoundError: "image_missing",
            Image.UnidentifiedImageError: "image_other_format",
            Image.DecompressionBombError: "image_too_large",
        }
        names = (name for cause, name in kinds.items() if isinstance(error.__cause__, cause))
        return next(names, "image_damaged"), str(error).removeprefix(f"{path}: ")
    height, width = pixels.shape[:2]
    sizes = f"{width}×{height}, annotated {annotated[1]}×{annotated[0]}"
    if not is_resized_copy((height, width), annotated):
        return "image_other_shape", sizes
    if notes.doubt or notes.is_dark:
        dark = "image_dark", "no value above 4095"
        return ("image_doubtful", notes.doubt) if notes.doubt else dark
    if notes.orientation != AS_STORED:
        text = f"{sizes}, EXIF orientation {notes.orientation}"
        if notes.is_turned:
            return "image_turned", text
        if notes.orientation not in QUARTER_TURNS or fits_both_ways((height, width), annotated):
            return "image_orientation_unclear", text
    return None if (height, width) == annotated else ("image_resized", sizes)


def add_image_findings(checked: Sequence[CheckedSplit], rules: TrainingRules) -> None:
    """Add the faults of image files to the findings; they do not stop a run that replaces them."""
    readable = [(split, split.entries) for split in checked if split.entries is not None]
    limit, total, are_replaced = rules.bad_image_limit, 0, rules.bad_image_limit is not None
    for split, entries in readable:
        stopping = [f for f in split.file_faults if KINDS[f.kind].severity is Severity.STOPS]
        bad = sum(bool(entries.is_read[fault.row]) for fault in stopping)
        total += bad
        # Unreadable images are replaced by others of the training split: one must be left.
        if split.name == "train" and bad >= entries.is_read.sum():
            are_replaced = False
    are_replaced = are_replaced and limit is not None and total <= limit

    for split, entries in readable:
        for fault in split.file_faults:
            severity = KINDS[fault.kind].severity
            if severity is Severity.STOPS:
                entries.good_images[fault.row] = False
                # Opening a split checks for the first image's file, even if it is not read later.
                is_first = fault.row == 0 and fault.kind == "image_missing"
                is_needed = entries.is_read[fault.row] or (is_first and limit is None)
                if are_replaced or not is_needed:
                    severity = Severity.MENDED
            place = entries.image_place(fault.row, "", fault.found)
            split.findings.add(fault.kind, place, severity=severity)


def find_shared_images(*, train: CheckedSplit, validation: CheckedSplit) -> None:
    """Find validation images whose file is a training image's, or has the same content."""
    if train.entries is None or validation.entries is None:
        return
    shared = images_in_other(
        validation.entries.file_names,
        validation.split.images,
        other_names=train.entries.file_names,
        other_folder=train.split.images,
    )
    hashes = validation.content_hashes
    copies = np.flatnonzero((hashes != 0) & np.isin(hashes, train.content_hashes))
    entries = validation.entries
    validation.findings.add_rows(
        "image_in_both_splits",
        np.union1d(shared, copies),
        lambda row: entries.image_place(row, ".file_name", entries.file_names[row]),
    )


def find_unused_files(checked: Sequence[CheckedSplit]) -> None:
    """Find image files that are in no annotations; a shared folder counts for the first split."""
    sharing: dict[Path, list[CheckedSplit]] = {}
    for split in checked:
        sharing.setdefault(real_path(split.split.images), []).append(split)
    for folder, sharers in sharing.items():
        readable = [split.entries for split in sharers if split.entries is not None]
        # Without a split's annotations, all of its files would be reported as unused.
        if len(readable) < len(sharers):
            continue
        # Names such as `a//b.jpg` or `./b.jpg` are valid too.
        named = {posixpath.normpath(name) for entries in readable for name in entries.file_names}
        # Only names are read, so files behind links count too.
        reach = Reach.of(folder, allow_outside=True)
        for file in list_images(folder, reach, LeftOut(), suffixes=SUFFIXES, linked_folders=False):
            if file not in named:
                sharers[0].findings.add("file_unused", Place(file, "not in images"))
