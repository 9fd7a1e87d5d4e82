"""COCO-format annotations, read and checked once, held as columns.

A dict per box costs about a kilobyte: tens of gigabytes for OpenImages' boxes. Columns cost 70
bytes a box, and can later come from a memory-mapped file with the same fields.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.columns import JsonTable, shown
from retinanet.errors import InputError

INT32_MAX = 2**31 - 1
GROUP_FIELDS = ("IsGroupOf", "isgroupof")


@dataclass(frozen=True, eq=False)
class Annotations:
    """What a data set's JSON says, as columns: C categories, I images, B boxes.

    Categories and images are in the JSON's order. The boxes of image `i` are rows
    `box_offsets[i]` to `box_offsets[i + 1]` of the `box_*` columns, in the JSON's order.
    """

    category_ids: NDArray[np.int64]
    """[C]"""
    category_names: tuple[str, ...]
    """C names"""
    image_ids: NDArray[np.int64]
    """[I]"""
    file_names: tuple[str, ...]
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

    def boxes_of(self, index: int) -> slice:
        """The rows of image `index` in the `box_*` columns."""
        return slice(int(self.box_offsets[index]), int(self.box_offsets[index + 1]))


def read_annotations(path: Path) -> Annotations:
    """Read and check a COCO-format JSON file (https://cocodataset.org/#format-data).

    `iscrowd`, `area` and the annotations' `id` may be missing (0, width × height, 1, 2, 3, …);
    a true `IsGroupOf`, in the annotation or its `attributes`, counts as `iscrowd`.
    Raises InputError of one line naming the file and the entry for anything COCO's format
    does not allow: see `data.columns`. Extra fields are ignored.
    """
    tables = _read_tables(path)
    categories, images, boxes = tables["categories"], tables["images"], tables["annotations"]
    category_ids = _unique_ids(categories)
    image_ids = _unique_ids(images)
    image_of_box = _rows_of(boxes.integers("image_id"), image_ids, table=boxes, field="image_id")
    box_category_ids = boxes.integers("category_id")
    _rows_of(box_category_ids, category_ids, table=boxes, field="category_id")
    xywh = boxes.boxes("bbox")
    by_image = np.argsort(image_of_box, kind="stable")
    boxes_per_image = np.bincount(image_of_box, minlength=len(image_ids))
    return Annotations(
        category_ids=category_ids,
        category_names=categories.strings("name"),
        image_ids=image_ids,
        file_names=_relative_file_names(images),
        widths=images.integers("width", minimum=1, maximum=INT32_MAX).astype(np.int32),
        heights=images.integers("height", minimum=1, maximum=INT32_MAX).astype(np.int32),
        box_offsets=np.concatenate([[0], np.cumsum(boxes_per_image)]).astype(np.int64),
        boxes=np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)[by_image],
        box_category_ids=box_category_ids[by_image],
        box_is_crowd=_is_crowd(boxes)[by_image],
        box_areas=boxes.numbers("area", default=xywh[:, 2] * xywh[:, 3])[by_image],
        box_ids=_box_ids(boxes)[by_image],
    )


def _read_tables(path: Path) -> dict[str, JsonTable]:
    try:
        content: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: not COCO's format: expected an object with images, annotations and "
            f"categories, found {shown(content)}"
        )
    names = ("images", "annotations", "categories")
    for name in names:
        if name not in content:
            raise InputError(f"{path}: {name}: missing, so this is not COCO's format")
        if not isinstance(content[name], list):
            raise InputError(f"{path}: {name}: expected a list, found {shown(content[name])}")
        if name != "annotations" and not content[name]:
            raise InputError(f"{path}: {name}: empty; a data set needs at least one")
    return {name: JsonTable(path, name, content[name]) for name in names}


def _unique_ids(table: JsonTable) -> NDArray[np.int64]:
    """The `id` column. Strings, as OpenImages' own image ids, are refused: pycocotools and
    MLPerf's JSON want integers.
    """
    ids = table.integers("id")
    _, first = np.unique(ids, return_index=True)
    if len(first) < len(ids):
        repeated = np.setdiff1d(np.arange(len(ids)), first)[0]
        table.fail(
            int(repeated), "id", f"{ids[repeated]} was given to an earlier entry; make ids unique"
        )
    return ids


def _box_ids(table: JsonTable) -> NDArray[np.int64]:
    if not any("id" in entry for entry in table.entries):
        return np.arange(1, len(table.entries) + 1)
    return _unique_ids(table)


def _rows_of(
    ids: NDArray[np.int64], known: NDArray[np.int64], *, table: JsonTable, field: str
) -> NDArray[np.int64]:
    """The position in `known` of every id; InputError for one that is not there."""
    order = np.argsort(known)
    rows = order[np.minimum(np.searchsorted(known[order], ids), len(known) - 1)]
    unknown = np.flatnonzero(known[rows] != ids)
    if len(unknown):
        index = int(unknown[0])
        target = {"image_id": "images", "category_id": "categories"}[field]
        table.fail(index, field, f"{ids[index]} is no id in {target}; add it there or drop the box")
    return rows


def _relative_file_names(table: JsonTable) -> tuple[str, ...]:
    names = table.strings("file_name")
    for index, name in enumerate(names):
        leaves = ".." in name and ".." in PurePosixPath(name).parts
        if leaves or name.startswith("/") or "\0" in name:
            table.fail(
                index,
                "file_name",
                f"expected a path inside the folder of images, found {shown(name)}",
            )
    return names


def _is_crowd(table: JsonTable) -> NDArray[np.bool_]:
    crowd = table.flags("iscrowd")
    for field in GROUP_FIELDS:
        crowd |= table.flags(field)
    attributes = table.values("attributes", default=None)
    if any(attributes):
        nested = JsonTable(
            table.file, table.name, [a if isinstance(a, dict) else {} for a in attributes]
        )
        for field in GROUP_FIELDS:
            crowd |= nested.flags(field)
    return crowd
