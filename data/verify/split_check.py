"""All checks of one split."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from data.index_cache import find_or_make_index
from data.process_pool import process_pool
from data.sources import Split, SplitName
from data.verify.box_checks import check_boxes
from data.verify.category_checks import check_categories_fit
from data.verify.class_counts import ClassCounts, count_classes
from data.verify.entries import Entries, Good, entries_of_index
from data.verify.findings import Findings, Place
from data.verify.id_checks import check_ids
from data.verify.image_entry_checks import check_image_entries
from data.verify.image_files import FileFault, check_files, processes_for
from data.verify.json_entries import read_entries
from retinanet.config import Config
from retinanet.errors import InputError
from retinanet.progress import progress, progress_in_bytes


@dataclass(frozen=True)
class Contents:
    """What could be read of a split, and counted."""

    entries: Entries
    good: Good
    classes: ClassCounts
    is_read: NDArray[np.bool_]
    """[I] whether the run reads the image"""


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
    name: SplitName, split: Split, config: Config, *, console: Console
) -> CheckedSplit:
    """Check what a split's annotations say; no image is looked at."""
    began = time.monotonic()
    findings = Findings()
    entries = open_entries(split.annotations, findings, console=console)
    checked = CheckedSplit(name, split, findings, None)
    if entries is not None:
        good = Good.everything(entries)
        check_ids(entries, findings, good)
        check_boxes(entries, findings, good, image_size=config.data.image_size)
        check_categories_fit(
            entries,
            findings,
            class_indices=config.data.class_indices,
            num_classes=config.model.num_classes,
        )
        skips = name == "train" and config.data.images_without_boxes == "skip"
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


def check_images(
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
