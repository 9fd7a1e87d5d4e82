"""What a data set's annotations say, as columns.

A dict per box costs about a kilobyte: tens of gigabytes for OpenImages' boxes. Columns cost 70
bytes a box, and those of an index (`data.index`) are files that all processes of a host share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Annotations:
    """What a data set's JSON says, as columns: C categories, I images, B boxes.

    Categories and images are in the JSON's order. The boxes of image `i` are rows
    `box_offsets[i]` to `box_offsets[i + 1]` of the `box_*` columns, in the JSON's order.
    """

    category_ids: NDArray[np.int64]
    """[C]"""
    category_names: Sequence[str]
    """C names"""
    image_ids: NDArray[np.int64]
    """[I]"""
    file_names: Sequence[str]
    """I paths, relative to the folder of images"""
    widths: NDArray[np.int32]
    """[I] pixels"""
    heights: NDArray[np.int32]
    """[I] pixels"""
    box_offsets: NDArray[np.int64]
    """[I + 1]"""
    boxes: NDArray[np.float64]
    """[B, 4] xyxy in pixels of the original image, not clipped to it"""
    box_category_ids: NDArray[np.int64]
    """[B]"""
    box_is_crowd: NDArray[np.bool_]
    """[B] COCO's iscrowd, OpenImages' IsGroupOf: one box around several objects"""
    box_areas: NDArray[np.float64]
    """[B] square pixels, the JSON's `area` (of the mask where there is one), else width × height"""
    box_ids: NDArray[np.int64]
    """[B] the JSON's annotation ids"""

    def __len__(self) -> int:
        """The number of images."""
        return len(self.image_ids)

    def size_of(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of image `index` in pixels."""
        return int(self.heights[index]), int(self.widths[index])

    def boxes_of(self, index: int) -> slice:
        """The rows of image `index` in the `box_*` columns."""
        return slice(int(self.box_offsets[index]), int(self.box_offsets[index + 1]))

    def images_with_objects(self) -> NDArray[np.int32]:
        """Rows of the images that have a box of a single object, not only crowds.

        Takes a few bytes an image: the boxes' columns are only looked at.
        """
        starts, ends = self.box_offsets[:-1], self.box_offsets[1:]
        if not len(self.box_is_crowd):
            return np.zeros(0, dtype=np.int32)
        # reduceat wants places inside the column, and takes one row where an image has none.
        inside = np.minimum(starts, len(self.box_is_crowd) - 1)
        only_crowds = np.logical_and.reduceat(self.box_is_crowd, inside)
        return np.flatnonzero(~only_crowds & (ends > starts)).astype(np.int32)
