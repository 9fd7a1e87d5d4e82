"""OpenImages' CSV file of boxes as columns: 14.6 million boxes of the training split in 630 MB."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from data.openimages.box_rows import CORNERS, FLAGS, parse_names, parse_numbers, read_lines
from data.openimages.class_lists import NOT_CHOSEN, ClassList
from retinanet.progress import Advance

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of the chosen classes, in the CSV's order: B boxes."""

    image_ids: NDArray[np.uint64]
    """[B] ImageID as a number"""
    class_indices: NDArray[np.int16]
    """[B] positions in the list of classes, from 0"""
    corners: NDArray[np.float64]
    """[B, 4] xyxy, as fractions of the image's width and height"""
    flags: NDArray[np.uint8]
    """[B] bit k is `box_rows.FLAGS[k]`"""

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self.image_ids)


def ignore_progress(done: int, note: str) -> None:
    """An `advance` that shows nothing."""


def read_boxes(path: Path, class_list: ClassList, *, advance: Advance = ignore_progress) -> Boxes:
    """Read the boxes of the chosen classes from `train-annotations-bbox.csv` or its like.

    Columns are found by the names in the first line, so that v6's further ones do no harm.
    `advance` is called with the bytes read so far, of `path.stat().st_size`. Raises InputError of
    one line, naming file, line and column, for anything that is no such CSV, a LabelName that the
    class descriptions lack, or corners that are out of order or outside the image.
    """
    parts = []
    columns = ["ImageID", "LabelName", *CORNERS, *FLAGS]
    for lines in read_lines(path, columns=columns, advance=advance):
        image_ids, class_indices = parse_names(lines, class_list.index_of_label)
        corners, flags = parse_numbers(lines)
        chosen = class_indices != NOT_CHOSEN
        parts.append([part[chosen] for part in (image_ids, class_indices, corners, flags)])
    image_id_parts, class_parts, corner_parts, flag_parts = map(list, zip(*parts, strict=True))
    parts.clear()
    return Boxes(
        image_ids=_joined(image_id_parts),
        class_indices=_joined(class_parts),
        corners=_joined(corner_parts),
        flags=_joined(flag_parts),
    )


def image_ids_with_boxes(
    path: Path, class_list: ClassList, *, advance: Advance = ignore_progress
) -> NDArray[np.uint64]:
    """The ids of the images with a box of a chosen class, sorted, each once.

    Arguments and errors as in `read_boxes`; only the columns ImageID and LabelName are read.
    """
    found = [np.empty(0, dtype=np.uint64)]
    for lines in read_lines(path, columns=["ImageID", "LabelName"], advance=advance):
        image_ids, class_indices = parse_names(lines, class_list.index_of_label)
        found.append(np.unique(image_ids[class_indices != NOT_CHOSEN]))
    return np.unique(np.concatenate(found))


def _joined(parts: list[NDArray[Number]]) -> NDArray[Number]:
    """The parts as one array; they are dropped, so that only one column is held twice."""
    joined = np.concatenate(parts)
    parts.clear()
    return joined
