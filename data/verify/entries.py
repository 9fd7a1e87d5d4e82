"""What can be read of a split's annotations, as columns, with the place of each entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from data.verify.findings import Place


@dataclass(frozen=True, eq=False)
class Entries:
    """C categories, I images and B boxes, in the order of their lists."""

    path: Path
    """The JSON file, or the index"""
    box_list: str
    """What places call the list of boxes: `annotations` of a JSON, `boxes` of an index"""
    category_ids: NDArray[np.int64]
    """[C]"""
    category_names: Sequence[str]
    """C names"""
    category_places: NDArray[np.int32]
    """[C] which entry of its list each is; the same for images and boxes"""
    image_ids: NDArray[np.int64]
    """[I]"""
    file_names: Sequence[str]
    """I paths relative to the folder of images, which none of them leaves"""
    widths: NDArray[np.int32]
    """[I] pixels"""
    heights: NDArray[np.int32]
    """[I] pixels"""
    image_places: NDArray[np.int32]
    """[I]"""
    image_had_unreadable_boxes: NDArray[np.bool_]
    """[I] whether a box that cannot be read names the image"""
    image_of_box: NDArray[np.int32]
    """[B] which of the I images; -1 where its image is unknown or cannot be read"""
    boxes: NDArray[np.float64]
    """[B, 4] xyxy in pixels of the original image"""
    box_category_ids: NDArray[np.int64]
    """[B]"""
    box_is_crowd: NDArray[np.bool_]
    """[B]"""
    box_areas: NDArray[np.float64]
    """[B]"""
    box_ids: NDArray[np.int64]
    """[B]"""
    box_places: NDArray[np.int32]
    """[B]"""
    unreadable_category_ids: frozenset[int]
    """Of entries that say their id, and are wrong otherwise"""
    unreadable_categories: int
    unreadable_images: int
    unreadable_boxes: int

    def image_place(self, row: int, field: str, found: str) -> Place:
        """The place of an image's entry."""
        entry = f"images[{self.image_places[row]}]{field}"
        return Place(entry, found, self.file_names[row])

    def box_place(self, row: int, field: str, found: str) -> Place:
        """The place of a box's entry."""
        image = int(self.image_of_box[row])
        file = self.file_names[image] if image >= 0 else None
        return Place(f"{self.box_list}[{self.box_places[row]}]{field}", found, file)

    def category_place(self, row: int, field: str, found: str) -> Place:
        """The place of a category's entry."""
        return Place(f"categories[{self.category_places[row]}]{field}", found)


def entries_of_index(folder: Path, annotations: Annotations) -> Entries:
    """An index's columns; all of its entries can be read."""
    images, boxes = len(annotations), len(annotations.boxes)
    boxes_per_image = np.diff(annotations.box_offsets)
    return Entries(
        path=folder,
        box_list="boxes",
        category_ids=annotations.category_ids,
        category_names=annotations.category_names,
        category_places=np.arange(len(annotations.category_ids), dtype=np.int32),
        image_ids=annotations.image_ids,
        file_names=annotations.file_names,
        widths=annotations.widths,
        heights=annotations.heights,
        image_places=np.arange(images, dtype=np.int32),
        image_had_unreadable_boxes=np.zeros(images, dtype=np.bool_),
        image_of_box=np.repeat(np.arange(images, dtype=np.int32), boxes_per_image),
        boxes=annotations.boxes,
        box_category_ids=annotations.box_category_ids,
        box_is_crowd=annotations.box_is_crowd,
        box_areas=annotations.box_areas,
        box_ids=annotations.box_ids,
        box_places=np.arange(boxes, dtype=np.int32),
        unreadable_category_ids=frozenset(),
        unreadable_categories=0,
        unreadable_images=0,
        unreadable_boxes=0,
    )


@dataclass(frozen=True, eq=False)
class Good:
    """Which entries a clean index keeps; checks clear what is bad."""

    images: NDArray[np.bool_]
    """[I]"""
    boxes: NDArray[np.bool_]
    """[B]"""

    @classmethod
    def everything(cls, entries: Entries) -> "Good":
        """All entries that can be read and whose image is known."""
        return cls(np.ones(len(entries.image_ids), dtype=np.bool_), entries.image_of_box >= 0)
