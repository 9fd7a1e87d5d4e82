"""Boxes in columns to COCO-format JSON in FiftyOne's words, written as a stream."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from data.openimages.box_rows import FLAGS
from data.openimages.boxes import Boxes
from data.openimages.image_files import SUFFIX
from data.openimages.image_ids import image_id_texts
from retinanet.errors import InputError
from retinanet.progress import Advance

ENTRIES_AT_ONCE = 10_000

FLAG_FIELDS = tuple(
    {name: bool(flags >> bit & 1) for bit, name in enumerate(FLAGS)} for flags in range(32)
)
"""The attributes of a box with such flags."""

GROUP = 1 << FLAGS.index("IsGroupOf")


class Content(NamedTuple):
    """What is to be written: I images with some of B boxes."""

    class_names: tuple[str, ...]
    """The position is the category id"""
    image_ids: NDArray[np.uint64]
    """[I] sorted"""
    sizes: NDArray[np.int32]
    """[I, 2] width and height in pixels"""
    boxes: Boxes
    """[B]"""
    image_of_box: NDArray[np.int32]
    """[B] a position in `image_ids`"""
    rows: NDArray[np.int64]
    """The boxes of these images, image by image, as the CSV has them within each"""


def arrange(
    boxes: Boxes,
    *,
    class_names: tuple[str, ...],
    image_ids: NDArray[np.uint64],
    sizes: NDArray[np.int32],
) -> Content:
    """Group the boxes by image. `image_ids` [I], at least one, are sorted; boxes of others are
    left out. `sizes` [I, 2] are width and height in pixels.
    """
    image_of_box = np.searchsorted(image_ids, boxes.image_ids).astype(np.int32)
    image_of_box[image_of_box == len(image_ids)] = 0
    rows = np.flatnonzero(image_ids[image_of_box] == boxes.image_ids)
    rows = rows[np.argsort(image_of_box[rows], kind="stable")]
    return Content(class_names, image_ids, sizes, boxes, image_of_box, rows)


def write_json(out: Path, content: Content, *, source: str, advance: Advance) -> None:
    """Write a COCO-format JSON.

    The text grows at `out` + `.part`, which gets its name when all is written.
    Raises InputError if `out` cannot be written.

    Args:
        out: The file, in a folder that is there.
        content: Classes, images and boxes.
        source: Where the boxes are from, for the JSON's `info`.
        advance: Called with the number of boxes that are written.
    """
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            _write(file, content, source=source, advance=advance)
        part.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()  # what was interrupted cannot be gone on with


def _write(file: TextIO, content: Content, *, source: str, advance: Advance) -> None:
    head = json.dumps({"info": _info(content, source), "licenses": []})
    file.write(f'{head.removesuffix("}")}, "categories": [')
    _write_entries(file, [_categories(content.class_names)])
    file.write('], "images": [')
    _write_entries(file, _images(content))
    file.write('], "annotations": [')
    _write_entries(file, _annotations(content, advance=advance))
    file.write("]}\n")


def _write_entries(file: TextIO, blocks: Iterable[list[dict[str, Any]]]) -> None:
    """The entries of a list, without its brackets."""
    separator = ""
    for block in blocks:
        file.write(f"{separator}{json.dumps(block)[1:-1]}")
        separator = ", "


def _info(content: Content, source: str) -> dict[str, str]:
    """FiftyOne's fields; without a date, so that the same data give the same file."""
    return {
        "year": "",
        "version": "",
        "description": f"OpenImages, {len(content.class_names)} classes, from {source}",
        "contributor": "",
        "url": "https://storage.googleapis.com/openimages/web/index.html",
        "date_created": "",
    }


def _categories(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"id": index, "name": name, "supercategory": None} for index, name in enumerate(names)]


def _images(content: Content) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(content.image_ids), ENTRIES_AT_ONCE):
        block = slice(start, start + ENTRIES_AT_ONCE)
        texts = image_id_texts(content.image_ids[block])
        sizes = content.sizes[block].tolist()
        yield [
            {
                "id": number,
                "file_name": f"{text}{SUFFIX}",
                "height": height,
                "width": width,
                "license": None,
                "coco_url": None,
            }
            for number, (text, (width, height)) in enumerate(
                zip(texts, sizes, strict=True), start=start + 1
            )
        ]


def _annotations(content: Content, *, advance: Advance) -> Iterator[list[dict[str, Any]]]:
    boxes, rows = content.boxes, content.rows
    for start in range(0, len(rows), ENTRIES_AT_ONCE):
        block = rows[start : start + ENTRIES_AT_ONCE]
        images = content.image_of_box[block]
        corners, sizes = boxes.corners[block], content.sizes[images]
        # FiftyOne's arithmetic, to the last bit: the difference first, then times the side.
        bboxes = np.concatenate(
            [corners[:, :2] * sizes, (corners[:, 2:] - corners[:, :2]) * sizes], axis=1
        )
        columns = (
            (images + 1).tolist(),
            boxes.class_indices[block].tolist(),
            bboxes.tolist(),
            (bboxes[:, 2] * bboxes[:, 3]).tolist(),
            boxes.flags[block].tolist(),
        )
        yield [
            {
                "id": number,
                "image_id": image_id,
                "category_id": class_index,
                "bbox": bbox,
                "area": area,
                "iscrowd": int(flags & GROUP != 0),
                **FLAG_FIELDS[flags],
            }
            for number, (image_id, class_index, bbox, area, flags) in enumerate(
                zip(*columns, strict=True), start=start + 1
            )
        ]
        advance(start + len(block), "")
