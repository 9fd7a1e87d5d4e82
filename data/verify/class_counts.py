"""How many boxes each class has."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.positions import positions_in
from data.verify.entries import Entries
from data.verify.findings import Findings


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Of every category [C], in the list's order."""

    boxes: NDArray[np.int64]
    """[C] crowds included"""
    crowds: NDArray[np.int64]
    """[C] boxes of crowds or groups"""
    images: NDArray[np.int64]
    """[C] images with a box of the class"""


def count_classes(entries: Entries, findings: Findings) -> ClassCounts:
    """Count the boxes that can be read, and find classes without any."""
    classes = len(entries.category_ids)
    rows = positions_in(entries.category_ids, entries.box_category_ids)
    known = rows >= 0
    boxes = np.bincount(rows[known], minlength=classes)
    crowds = np.bincount(rows[known & entries.box_is_crowd], minlength=classes)
    with_image = known & (entries.image_of_box >= 0)
    pairs = entries.image_of_box[with_image].astype(np.int64) * classes + rows[with_image]
    images = np.bincount(np.unique(pairs) % classes, minlength=classes)
    findings.add_rows(
        "class_without_boxes",
        np.flatnonzero(boxes == 0),
        lambda row: entries.category_place(row, "", entries.category_names[row]),
    )
    return ClassCounts(boxes, crowds, images)
