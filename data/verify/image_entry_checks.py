"""Images without boxes, and which images training reads."""

import numpy as np
from numpy.typing import NDArray

from data.positions import repeated
from data.verify.entries import Entries
from data.verify.findings import Findings, Place
from data.verify.kinds import Severity


def check_image_entries(
    entries: Entries, findings: Findings, *, skip_images_without_boxes: bool
) -> NDArray[np.bool_]:
    """Find images without boxes, and files that are named twice.

    Returns which images [I] are read in training: with `skip_images_without_boxes` those with a
    box of a single object, else all.
    """
    total, single = boxes_of_images(entries)
    severity = Severity.MENDED if skip_images_without_boxes else Severity.NOTE
    # An image whose boxes cannot be read has some.
    without = (total == 0) & ~entries.image_had_unreadable_boxes
    only_crowds = (total > 0) & (single == 0) & ~entries.image_had_unreadable_boxes
    for kind, flags in (("image_without_boxes", without), ("image_with_crowds_only", only_crowds)):
        findings.add_rows(
            kind,
            np.flatnonzero(flags),
            lambda row: entries.image_place(row, "", f"{total[row]} boxes"),
            severity=severity,
        )
    check_file_names(entries, findings)
    if not skip_images_without_boxes:
        return np.ones(len(total), dtype=np.bool_)
    if not single.any():
        found = f"{len(entries.boxes)} boxes, all of crowds" if len(entries.boxes) else "no box"
        findings.add("nothing_to_train_on", Place(entries.box_list, found))
    return single > 0


def boxes_of_images(entries: Entries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many boxes each image has [I], and how many of them mark a single object [I]."""
    images = len(entries.image_ids)
    known = entries.image_of_box >= 0
    total = np.bincount(entries.image_of_box[known], minlength=images)
    single = np.bincount(entries.image_of_box[known & ~entries.box_is_crowd], minlength=images)
    return total, single


def check_file_names(entries: Entries, findings: Findings) -> None:
    """Find files that several images name."""
    # Hashes take a tenth of the memory of the names; Python's are of 64 bits.
    hashes = np.fromiter(map(hash, entries.file_names), dtype=np.int64)
    findings.add_rows(
        "file_name_duplicate",
        repeated(hashes),
        lambda row: entries.image_place(row, ".file_name", entries.file_names[row]),
    )
