"""OpenImages' CSV files as a COCO-format JSON: what MLPerf's export with FiftyOne gives.

MLPerf's `openimages-mlperf.json` comes from FiftyOne 0.15, whose importer sorts images by id and
whose exporter scales the boxes, and from a script that sets `iscrowd` to `IsGroupOf`
(https://github.com/mlcommons/training, single_stage_detector/scripts/fiftyone_openimages.py).
Fields, order and arithmetic are theirs.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from data.openimages.boxes import read_boxes
from data.openimages.class_lists import resolve_classes
from data.openimages.coco_writer import arrange, write_json
from data.openimages.image_files import SUFFIX, list_images, read_sizes
from data.openimages.image_ids import image_id_texts, read_image_ids
from retinanet.errors import InputError
from retinanet.progress import progress, progress_in_bytes


class Summary(NamedTuple):
    """What a JSON holds."""

    classes: int
    images: int
    images_left_out: int
    """Images with boxes (or of the list of ids) that are not in the folder"""
    boxes: int


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
) -> Summary:
    """Write the boxes of the chosen classes, and the images that have one, as COCO-format JSON.

    Takes 1.6 GB of memory for 14.6 million boxes, the training split's. Nothing is at `out` until
    all is written.

    Args:
        boxes_csv: `train-annotations-bbox.csv` or its like, of v5 to v7.
        class_descriptions: `class-descriptions-boxable.csv`, of v5 to v7.
        classes: `["mlperf"]`, `["all"]`, a text file or names: see `resolve_classes`.
        images: The folder of the files `<ImageID>.jpg`; width and height are read from them.
        out: The JSON. Folders above it are made.
        image_ids: A CSV with a column `ImageID`: only images that are in it are written. With all
            classes, images of it without boxes are written too.
        skip_missing_images: Leave images out that are not in the folder, instead of refusing.
        overwrite: Replace what is at `out`.
        console: Where to show progress.

    Raises:
        InputError: `out` exists or cannot be written, a CSV is not what it should be (file, line
            and column are named), images are missing or cannot be read, or there is nothing to
            write.
    """
    _make_room(out, overwrite=overwrite)
    class_list = resolve_classes(classes, class_descriptions)
    listed = None if image_ids is None else read_image_ids(image_ids)
    size = boxes_csv.stat().st_size if boxes_csv.is_file() else 0  # refused when it is opened
    with progress_in_bytes(console, f"reading {boxes_csv.name}", total=size) as advance:
        boxes = read_boxes(boxes_csv, class_list, advance=advance)
    wanted = np.unique(boxes.image_ids)
    if listed is not None:
        wanted = listed if list(classes) == ["all"] else np.intersect1d(wanted, listed)
    if not len(wanted):
        raise InputError(f"{boxes_csv}: no image has a box of the {len(class_list.names)} classes")
    there = _images_in(images, wanted, skip_missing_images=skip_missing_images)
    sizes = read_sizes(images, there, console=console)
    content = arrange(boxes, class_names=class_list.names, image_ids=there, sizes=sizes)
    with progress(console, f"writing {out.name}, boxes", total=len(content.rows)) as advance:
        write_json(out, content, source=boxes_csv.name, advance=advance)
    return Summary(
        classes=len(class_list.names),
        images=len(there),
        images_left_out=len(wanted) - len(there),
        boxes=len(content.rows),
    )


def _make_room(out: Path, *, overwrite: bool) -> None:
    """Refuse at once what would fail in the end."""
    if out.is_dir() or (out.exists() and not overwrite):
        raise InputError(f"{out}: is there already; remove it, name another file or overwrite it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out.parent}: cannot be made: {error.strerror}") from error
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out.parent}: cannot be written to; name another file")


def _images_in(
    folder: Path, wanted: NDArray[np.uint64], *, skip_missing_images: bool
) -> NDArray[np.uint64]:
    """Those of the wanted images that are in the folder, sorted."""
    is_there = np.isin(wanted, list_images(folder), assume_unique=True)
    missing = wanted[~is_there]
    if len(missing) and not skip_missing_images:
        raise InputError(
            f"{folder}: {len(missing)} of {len(wanted)} images are missing, the first is "
            f"{image_id_texts(missing[:1])[0]}{SUFFIX}; download them, or leave them out with "
            "--skip-missing-images"
        )
    if len(missing) == len(wanted):
        raise InputError(f"{folder}: none of {len(wanted)} images is there; download them")
    return wanted[is_there]
