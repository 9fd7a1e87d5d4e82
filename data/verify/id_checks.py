"""Ids that are there twice, and categories that are not there."""

import numpy as np

from data.positions import positions_in, repeated
from data.verify.entries import Entries, Good
from data.verify.findings import Findings


def check_ids(entries: Entries, findings: Findings, good: Good) -> None:
    """Find duplicate ids in each of the lists, and boxes of unknown categories."""
    check_categories_of_boxes(entries, findings, good)
    ids = entries.category_ids
    findings.add_rows(
        "category_id_duplicate",
        repeated(ids),
        lambda row: entries.category_place(row, ".id", str(ids[row])),
    )
    check_image_ids(entries, findings, good)
    later = repeated(entries.box_ids)
    findings.add_rows(
        "annotation_id_duplicate",
        later,
        lambda row: entries.box_place(row, ".id", str(entries.box_ids[row])),
    )
    good.boxes[later] = False


def check_categories_of_boxes(entries: Entries, findings: Findings, good: Good) -> None:
    """Find boxes of categories that are not listed; one that is listed wrongly is told itself."""
    unknown = positions_in(entries.category_ids, entries.box_category_ids) < 0
    good.boxes[unknown] = False
    unreadable = np.fromiter(entries.unreadable_category_ids, dtype=np.int64)
    unlisted = unknown & ~np.isin(entries.box_category_ids, unreadable)
    findings.add_rows(
        "category_id_unknown",
        np.flatnonzero(unlisted),
        lambda row: entries.box_place(row, ".category_id", str(entries.box_category_ids[row])),
    )


def check_image_ids(entries: Entries, findings: Findings, good: Good) -> None:
    """Find images that have another's id.

    Of the same image twice the first is good. Of different images none is: which of them the
    boxes belong to is anyone's guess.
    """
    later = repeated(entries.image_ids)
    findings.add_rows(
        "image_id_duplicate",
        later,
        lambda row: entries.image_place(row, ".id", str(entries.image_ids[row])),
    )
    good.images[later] = False
    earliest = positions_in(entries.image_ids, entries.image_ids[later]).tolist()
    for row, first in zip(later.tolist(), earliest, strict=True):
        if what_it_is(entries, row) != what_it_is(entries, first):
            good.images[first] = False


def what_it_is(entries: Entries, row: int) -> tuple[str, int, int]:
    """An image but for its id."""
    return entries.file_names[row], int(entries.widths[row]), int(entries.heights[row])
