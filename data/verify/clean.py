"""An index of what is good in a split."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.annotations import Annotations
from data.index import write_index
from data.text_column import TextColumn
from data.verify.entries import Entries, Good
from data.verify.split_check import CheckedSplit
from retinanet.errors import InputError

CATEGORY_FINDINGS = ("category_id_duplicate", "categories_do_not_fit", "categories_differ")


def index_folder(folder: Path, split: str) -> Path:
    """Where a split's clean index goes."""
    return folder / f"{split}.index"


def require_no_index(folder: Path, splits: Sequence[str]) -> None:
    """Refuse to replace an index, before the work.

    Raises:
        InputError: Names the one that exists, or the file that is in the folder's place.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; give --write-clean a folder")
    for split in splits:
        path = index_folder(folder, split)
        if path.exists():
            raise InputError(f"{path}: exists; give --write-clean another folder, or remove it")
    require_writable(folder)


def require_writable(path: Path) -> None:
    """Refuse a path below which nothing can be written, before hours of work.

    Raises:
        InputError: Names the folder that is in the way.
    """
    existing = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{existing}: is no folder that can be written to; name another")


def obstacle(checked: CheckedSplit) -> str | None:
    """Why no clean index of a split can be made; None if one can."""
    contents = checked.contents
    if contents is None:
        return f"{checked.name}: the annotations cannot be read"
    if contents.entries.unreadable_categories or any(
        checked.findings.count(name) for name in CATEGORY_FINDINGS
    ):
        return (
            f"{checked.name}: mistakes in categories cannot be left out: boxes would get other "
            "classes; mend them first"
        )
    if not clean_images(contents.entries, contents.good).any():
        return f"{checked.name}: no image would remain"
    return None


def write_clean_index(folder: Path, checked: CheckedSplit) -> Annotations:
    """Write the clean index of a split that no obstacle hinders; returns what is in it.

    Raises:
        InputError: It cannot be written there.
    """
    assert checked.contents is not None
    annotations = clean_annotations(checked.contents.entries, checked.contents.good)
    path = index_folder(folder, checked.name)
    try:
        write_index(path, annotations, made_from=f"{checked.split.annotations.resolve()}, cleaned")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    return annotations


def clean_images(entries: Entries, good: Good) -> NDArray[np.bool_]:
    """Images [I] that remain.

    One all of whose boxes are bad goes with them: it would teach that there is nothing in it.
    """
    images = len(entries.image_ids)
    named = entries.image_of_box[entries.image_of_box >= 0]
    had_boxes = np.bincount(named, minlength=images) > 0
    had_boxes |= entries.image_had_unreadable_boxes
    has_boxes = np.bincount(entries.image_of_box[good.boxes], minlength=images) > 0
    return good.images & (has_boxes | ~had_boxes)


def clean_annotations(entries: Entries, good: Good) -> Annotations:
    """The good entries, boxes in the order of their images."""
    images = clean_images(entries, good)
    kept = np.flatnonzero(good.boxes & images[entries.image_of_box])
    rows = np.cumsum(images) - 1
    image_of_box = rows[entries.image_of_box[kept]]
    order = kept[np.argsort(image_of_box, kind="stable")]
    per_image = np.bincount(image_of_box, minlength=int(images.sum()))
    names = (entries.file_names[row] for row in np.flatnonzero(images).tolist())
    return Annotations(
        category_ids=entries.category_ids,
        category_names=tuple(entries.category_names),
        image_ids=entries.image_ids[images],
        file_names=TextColumn.of(names),
        widths=entries.widths[images],
        heights=entries.heights[images],
        box_offsets=np.concatenate([[0], np.cumsum(per_image)]).astype(np.int64),
        boxes=entries.boxes[order],
        box_category_ids=entries.box_category_ids[order],
        box_is_crowd=entries.box_is_crowd[order],
        box_areas=entries.box_areas[order],
        box_ids=entries.box_ids[order],
    )
