"""Split annotations into a training and a validation file.

Reads the COCO-format JSON file that a labelling tool exports, and writes DIR/train.json and
DIR/validation.json. The images and the original file are not changed.

  retinanet data split my-photos/annotations/instances_default.json --out my-photos
  retinanet data split result.json --out splits --validation 0.1 --seed 7

Images are assigned at random, with stratification: each class has its share of the images in both
files, and a class with two images has one in each, as far as the sizes allow (iterative
stratification, Sechidis et al. 2011). Entries with the same file name are one image.

Photos that are nearly equal, such as frames of one video, must all be in the same file, or the mAP
is too high. A random split does not ensure that.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from posixpath import normpath
from random import Random
from typing import Any

from common.cli import add_command, number_that
from common.console import make_console, print_line
from common.errors import InputError
from common.files import (
    or_unreadable,
    read_bytes,
    removed_on_failure,
    write_atomically,
)
from common.options import argument, option, overwrite_option
from data.annotations import SPLITS, SplitName, leaves_folder
from data.coco_json import INTEGERS, read_annotations, whole_number
from data.formats.coco import locate_images
from data.formats.labels import NOTES, some

share = partial(number_that, lambda x: 0 < x < 1, "a share between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """The options of `retinanet data split`."""

    annotations: Path = argument("annotations, COCO format", metavar="JSON")
    out: Path = option(
        "folder for both files", metavar="DIR", writes=[f"{split}.json" for split in SPLITS]
    )
    validation: float = option(
        "share of the images for validation", default=0.2, parse=share, metavar="SHARE"
    )
    seed: int = option("seed of the random split", default=0, metavar="N")
    images: Path | None = option(
        "folder of the images, where a tool's export names them by paths of its own machine "
        "and they are not near JSON",
        default=None,
        metavar="DIR",
    )
    overwrite: bool = overwrite_option()


def add_split(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `split`."""
    # The docstring of this module is the text of --help.
    add_command(commands, "split", about=__doc__ or "", options=SplitOptions, run=run_split)


Content = dict[str, Any]  # A COCO-format JSON, parsed
MOST_BYTES = 2_000_000_000
"""Limit for annotations to split: parsed, they take about eight times as much memory."""


def run_split(options: SplitOptions) -> int:
    """Write both splits and print their content; return the exit code."""
    annotations, images = options.annotations, options.images
    files = {split: options.out / f"{split}.json" for split in SPLITS}
    # Checks the fields that training reads.
    checked = read_annotations(annotations, is_export=True)
    try:
        # Parsed a second time, whole: the splits keep the fields that training does not read.
        with or_unreadable(annotations):
            content: Content = json.loads(read_bytes(annotations, most_bytes=MOST_BYTES))
    except RecursionError as error:
        raise InputError(f"{annotations}: the JSON is nested too deeply") from error

    take_plain_ids(content)
    console = make_console()
    given = [image["file_name"] for image in content["images"]]
    if images is not None or any(leaves_folder(name) or "\\" in name for name in given):
        folder, below = locate_images(annotations, checked.file_names, images=images)
        if below != given:
            print_line(console, f"note: {NOTES['shortened']} in {folder}")
        for image, name in zip(content["images"], below, strict=True):
            image["file_name"] = name

    # Each side gets one file at least; images, boxes and other fields keep their order. A file that
    # is listed twice is on one side, or training would learn what validation measures.
    file_of_id = {image["id"]: normpath(image["file_name"]) for image in content["images"]}
    classes: dict[str, set[int]] = {file: set() for file in file_of_id.values()}
    if len(classes) < 2:
        raise InputError(f"{annotations}: images: {len(classes)}; a split needs at least two")
    count = min(max(round(len(classes) * options.validation), 1), len(classes) - 1)
    for box in content["annotations"]:
        classes[file_of_id[box["image_id"]]].add(box["category_id"])
    names = list(classes)
    in_validation = {
        names[row]
        for row in stratified_rows(list(classes.values()), count=count, seed=options.seed)
    }
    held_out = {image_id for image_id, file in file_of_id.items() if file in in_validation}
    splits: dict[SplitName, Content] = {}
    for split in SPLITS:
        is_validation = split == "validation"
        kept = [image for image in content["images"] if (image["id"] in held_out) is is_validation]
        boxes = [
            box for box in content["annotations"] if (box["image_id"] in held_out) is is_validation
        ]
        splits[split] = content | {"images": kept, "annotations": boxes}
    with removed_on_failure(list(files.values())):
        for split, file in files.items():
            write_atomically(file, json.dumps(splits[split], ensure_ascii=False))
    for split, part in splits.items():
        console.print(
            f"{split:<10}  {len(part['images']):,} images, {len(part['annotations']):,} boxes: "
            f"{files[split]}",
            soft_wrap=True,
        )
    for note in lacking_notes(Counter(chain.from_iterable(classes.values())), splits):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    return 0


def take_plain_ids(content: Content) -> None:
    """Replace ids that are texts or floats by the numbers that `read_annotations` takes."""
    for name, fields in INTEGERS.items():
        for entry in content[name]:
            odd = [field for field in fields if isinstance(entry.get(field), str | float)]
            entry |= {field: whole_number(entry[field]) for field in odd}


def lacking_notes(
    images_of_class: Mapping[int, int], splits: Mapping[SplitName, Content]
) -> Iterator[str]:
    """Yield a note for each reason why classes lack boxes in a split."""

    def lacking(content: Content, *, images: int) -> str:
        """Return the first names of classes without boxes, with 0, 1 or several (2) images."""
        used = {box["category_id"] for box in content["annotations"]}
        names = [
            category["name"]
            for category in content["categories"]
            if category["id"] not in used and min(images_of_class[category["id"]], 2) == images
        ]
        return some(names, most=5)

    unused = lacking(splits["train"], images=0)
    if unused:
        yield f"classes without boxes: {unused}; remove these classes, or label photos of them"
    for split, content in splits.items():
        once = lacking(content, images=1)
        if once:
            yield f"no boxes in {split}: {once}; each is in one image only: label more photos"
        others = lacking(content, images=2)
        if others:
            advice = "try another --validation or --seed, or label more photos"
            yield f"no boxes in {split}: {others}; {advice}"


SIDES = (TRAIN, VALIDATION) = (0, 1)


def stratified_rows(classes: Sequence[Set[int]], *, count: int, seed: int) -> set[int]:
    """Return the rows of `count` validation images, given the classes in each image.

    The rarest class among the remaining images is assigned first, as later there is no choice
    (iterative stratification, Sechidis et al. 2011). The same seed gives the same rows.
    """
    random = Random(seed)
    rows = random.sample(range(len(classes)), len(classes))
    rows_by_category: dict[int, list[int]] = {}
    for row in rows:
        # Sorted, so that the result depends on the seed alone, not on the order of a set.
        for category in sorted(classes[row]):
            rows_by_category.setdefault(category, []).append(row)
    wanted = {}  # by class: how many images each side still needs
    for category, class_rows in rows_by_category.items():
        in_validation = len(class_rows) * (count / len(classes))
        # A share of a rare class may be below one image: each side gets one nevertheless.
        if len(class_rows) >= len(SIDES):
            in_validation = min(max(in_validation, 1.0), len(class_rows) - 1.0)
        wanted[category] = [len(class_rows) - in_validation, in_validation]
    remaining = {
        category: len(rows_by_category[category])
        for category in random.sample(sorted(rows_by_category), len(rows_by_category))
    }
    free = [len(classes) - count, count]
    side_by_row: dict[int, int] = {}
    while remaining:
        # Of equally rare classes the first one, which is at random.
        rarest = min(remaining, key=remaining.__getitem__)
        # Training usually gets the first images. Those with most of the classes that validation
        # still needs come last, so that one image serves several of them.
        class_rows = [row for row in rows_by_category[rarest] if row not in side_by_row]
        lacking = [
            sum(wanted[category][VALIDATION] > 0 for category in classes[row]) for row in class_rows
        ]
        # Sorted by the number alone: equal ones keep the random order of `rows`.
        for _, row in sorted(zip(lacking, class_rows, strict=True), key=itemgetter(0)):
            # The side that lacks most of the class, then the one with more space, then either.
            side = max(
                [side for side in SIDES if free[side]],
                key=lambda side: (wanted[rarest][side], free[side], random.random()),
            )
            side_by_row[row] = side
            free[side] -= 1
            for category in classes[row]:
                wanted[category][side] -= 1
                remaining[category] -= 1
        remaining = {category: images for category, images in remaining.items() if images}
    # Images without boxes are last and fill the places that are left.
    without_classes = [row for row in rows if row not in side_by_row]
    held_out = {row for row, side in side_by_row.items() if side == VALIDATION}
    return held_out | set(without_classes[: free[VALIDATION]])
