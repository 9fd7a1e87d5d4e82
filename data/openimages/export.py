"""Export OpenImages' CSV files as COCO-format JSON, as MLPerf's export with FiftyOne does.

MLPerf's `openimages-mlperf.json` comes from FiftyOne 0.15, whose importer sorts images by id and
whose exporter scales the boxes, and from a script that sets `iscrowd` to `IsGroupOf`
(https://github.com/mlcommons/training, single_stage_detector/scripts/fiftyone_openimages.py).
Fields, order and arithmetic are theirs. The CSV files do not contain the images' sizes: these are
read from the image files. The JSON is written as a stream.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from common.console import Advance, progress, progress_in_bytes
from common.errors import InputError
from common.files import (
    or_refused,
    removed_on_failure,
    require_free_outputs,
    write_parts,
)
from data.decoding import read_photo
from data.json_lists import entries_of, list_parts, slices
from data.openimages.boxes import (
    FLAGS,
    IMAGE_ID,
    Boxes,
    image_id_texts,
    read_boxes,
    read_image_ids,
    resolve_classes,
)
from data.parts import read_in_parts

SUFFIX = ".jpg"
FILES_AT_ONCE = 256  # for one process: a hundredth of a second's work, more from a slow disk
PROCESSES_PER_CORE = 2
"""While one waits for the disk another parses. Threads slow each other down: two took 50 µs a
file, one 37, two processes 21."""
GROUP = 1 << FLAGS.index("IsGroupOf")
FLAG_FIELDS = tuple(
    {name: bool(flags >> bit & 1) for bit, name in enumerate(FLAGS)} for flags in range(32)
)
"""The attributes of a box with such flags."""


def write_coco_json(
    boxes_csv: Path,
    class_descriptions: Path,
    *,
    classes: Sequence[str],
    images: Path,
    out: Path,
    image_ids: Path | None = None,
    skip_missing_images: bool = False,
    overwrite: bool = False,
    console: Console,
) -> int:
    """Write the boxes of the chosen classes, and the images that have one, as COCO-format JSON.

    Takes 1.6 GB of memory for 14.6 million boxes, the training split's. Nothing is at `out` until
    all is written; folders above it are made. The CSV files are those of v5 to v7; `classes` are as
    in `resolve_classes`; width and height are read from the files `<ImageID>.jpg` in `images`. If a
    CSV with a column `ImageID` is given as `image_ids`, only its images are written; with all
    classes, those without boxes too. Returns how many images with boxes, or of that list, are not
    in the folder.

    Raises:
        InputError: `out` exists or cannot be written, a CSV is invalid (with file, line and
            column), images are missing or cannot be read, or there is nothing to write.
    """
    require_free_outputs([out], overwrite=overwrite)
    class_list = resolve_classes(classes, class_descriptions)
    names = class_list.names
    listed = None if image_ids is None else read_image_ids(image_ids)
    size = boxes_csv.stat().st_size if boxes_csv.is_file() else 0  # opening it raises the error
    with progress_in_bytes(console, f"reading {boxes_csv.name}", total=size) as advance:
        boxes = read_boxes(boxes_csv, class_list, advance=advance)
    selected = np.unique(boxes.image_ids)
    if listed is not None:
        selected = listed if list(classes) == ["all"] else np.intersect1d(selected, listed)
    if not len(selected):
        raise InputError(f"{boxes_csv}: no image has a box of the {len(names)} classes")
    present = _images_in(images, selected, skip_missing_images=skip_missing_images)
    sizes = read_sizes(images, present, console=console)
    # Boxes image by image, within each in the CSV's order; those of other images are left out.
    image_of_box = np.searchsorted(present, boxes.image_ids).astype(np.int32)
    # The place of an id above all others is outside the array. Any valid row does, since the
    # comparison in the next line leaves the box out.
    image_of_box[image_of_box == len(present)] = 0
    rows = np.flatnonzero(present[image_of_box] == boxes.image_ids)
    rows = rows[np.argsort(image_of_box[rows], kind="stable")]
    with progress(console, f"writing {out.name}, boxes", total=len(rows)) as advance:
        lists = (
            ("images", _images(present, sizes)),
            ("annotations", _annotations(boxes, rows, image_of_box, sizes, advance)),
        )
        with removed_on_failure([out]):
            write_parts(out, list_parts(head_of(names, source=boxes_csv.name), lists))
    return len(selected) - len(present)


def _images_in(
    folder: Path, selected: NDArray[np.uint64], *, skip_missing_images: bool
) -> NDArray[np.uint64]:
    """Return the selected images that are in the folder, sorted."""
    exists = np.isin(selected, list_images(folder), assume_unique=True)
    missing = selected[~exists]
    if len(missing) and not skip_missing_images:
        raise InputError(
            f"{folder}: {len(missing)} of {len(selected)} images are missing, the first is "
            f"{image_id_texts(missing[:1])[0]}{SUFFIX}; download them, or skip them with "
            "--skip-missing-images"
        )
    if len(missing) == len(selected):
        raise InputError(f"{folder}: none of the {len(selected)} images exists; download them")
    return selected[exists]


Blocks = Iterator[list[dict[str, Any]]]  # the entries of a list, some at a time


def head_of(names: Sequence[str], *, source: str) -> dict[str, Any]:
    """Return the JSON without its long lists; `source` is the name of the file of the boxes."""
    # FiftyOne's fields; without a date, so that the same data give the same file.
    info = {
        "year": "",
        "version": "",
        "description": f"OpenImages, {len(names)} classes, from {source}",
        "contributor": "",
        "url": "https://storage.googleapis.com/openimages/web/index.html",
        "date_created": "",
    }
    categories = [
        {"id": index, "name": name, "supercategory": None} for index, name in enumerate(names)
    ]
    return {"info": info, "licenses": [], "categories": categories}


def _images(image_ids: NDArray[np.uint64], sizes: NDArray[np.int32]) -> Blocks:
    for rows in slices(len(image_ids)):
        names = [f"{text}{SUFFIX}" for text in image_id_texts(image_ids[rows])]
        widths, heights = sizes[rows].T.tolist()
        yield entries_of(
            id=range(rows.start + 1, rows.start + 1 + len(names)),
            file_name=names,
            height=heights,
            width=widths,
            license=[None] * len(names),
            coco_url=[None] * len(names),
        )


def _annotations(
    boxes: Boxes,
    rows: NDArray[np.int64],
    image_of_box: NDArray[np.int32],
    sizes: NDArray[np.int32],
    advance: Advance,
) -> Blocks:
    for block in slices(len(rows)):
        of_block = rows[block]
        images, corners = image_of_box[of_block], boxes.corners[of_block]
        sides, flags = sizes[images], boxes.flags[of_block].tolist()
        # FiftyOne's arithmetic, to the last bit: the difference first, then times the side.
        bboxes = np.concatenate(
            [corners[:, :2] * sides, (corners[:, 2:] - corners[:, :2]) * sides], axis=1
        )
        entries = entries_of(
            id=range(block.start + 1, block.start + 1 + len(of_block)),
            image_id=(images + 1).tolist(),
            category_id=boxes.class_indices[of_block].tolist(),
            bbox=bboxes.tolist(),
            area=(bboxes[:, 2] * bboxes[:, 3]).tolist(),
            iscrowd=[int(bits & GROUP != 0) for bits in flags],
        )
        yield [entry | FLAG_FIELDS[bits] for entry, bits in zip(entries, flags, strict=True)]
        advance(block.start + len(of_block), "")


def list_images(folder: Path) -> NDArray[np.uint64]:
    """Return the ids of the files `<ImageID>.jpg` in a folder, in any order."""
    with or_refused(folder, "folder of images cannot be read"), os.scandir(folder) as entries:
        stems = (entry.name.removesuffix(SUFFIX) for entry in entries if is_image(entry.name))
        return np.fromiter((int(stem, 16) for stem in stems), dtype=np.uint64)


def is_image(name: str) -> bool:
    """Return whether this is the name of an image of OpenImages."""
    return name.endswith(SUFFIX) and IMAGE_ID.fullmatch(name.removesuffix(SUFFIX)) is not None


def read_sizes(
    folder: Path, image_ids: NDArray[np.uint64], *, console: Console
) -> NDArray[np.int32]:
    """Return width and height [I, 2] of images [I] in pixels, as stored (before EXIF rotation).

    Only headers are read, by several processes; `console` shows the progress.
    Raises InputError if some are damaged or no images, naming how many and the first.
    """
    parts = read_in_parts(
        partial(_read_sizes, folder),
        image_ids,
        at_once=FILES_AT_ONCE,
        title="reading sizes of images",
        console=console,
        per_core=PROCESSES_PER_CORE,
    )
    faults = [fault for _, faults_of_part in parts for fault in faults_of_part]
    if faults:
        raise InputError(
            f"{folder}: {len(faults)} of {len(image_ids)} images cannot be read, the first is "
            f"{faults[0]}; download them again"
        )
    return np.concatenate([np.zeros((0, 2), dtype=np.int32), *(sizes for sizes, _ in parts)])


def _read_sizes(folder: Path, image_ids: NDArray[np.uint64]) -> tuple[NDArray[np.int32], list[str]]:
    """Return sizes [I, 2] in pixels (0 if unreadable), and the faults."""
    sizes = np.zeros((len(image_ids), 2), dtype=np.int32)
    faults = []
    for row, text in enumerate(image_id_texts(image_ids)):
        file = folder / f"{text}{SUFFIX}"
        try:
            sizes[row], _ = read_photo(file)
        except InputError as error:
            # Without the path, and without the fix, which is another one here.
            reason = str(error).removeprefix(f"{file}: ").partition(";")[0]
            faults.append(f"{file.name} ({reason})")
    return sizes, faults
