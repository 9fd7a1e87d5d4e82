"""Split annotations: most images to train on, the others to evaluate on.

Takes the COCO-format JSON that a labelling tool exports, and writes DIR/train.json and
DIR/validation.json. Images stay where they are, and the JSON as it is.

  python -m data split my-photos/annotations/instances_default.json --out my-photos
  python -m data split result.json --out splits --validation 0.1 --seed 7

Images are dealt out at random, stratified: each class gets its share of the images on both sides,
and a class that two images show has one on each, as far as the sides' sizes allow (iterative
stratification, Sechidis et al. 2011).

Photos that are nearly alike, such as frames of one video, should all be on one side, or the mAP
promises too much: a random split does not see to that.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from common.console import make_console
from common.errors import InputError, printable
from common.files import read_bytes, require_free_outputs, write_whole
from data.coco_json import read_annotations
from data.sources import SPLITS, SplitName


def add_split(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `split`."""
    parser = commands.add_parser(
        "split",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("annotations", type=Path, metavar="JSON", help="in COCO's format")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where both files are written"
    )
    parser.add_argument(
        "--validation",
        type=share,
        default=0.2,
        metavar="SHARE",
        help="of the images to evaluate on (default: 0.2)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one deals anew (default: 0)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")


def share(text: str) -> float:
    """A number between 0 and 1, neither of them."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, found {text!r}")
    return value


def run(annotations: Path, *, out: Path, validation: float, seed: int, overwrite: bool) -> int:
    """Write both splits and say what is in them; returns the exit code.

    Raises:
        InputError: The annotations are not COCO's or one image, or a file is there already.
    """
    files = {split: out / f"{split}.json" for split in SPLITS}
    if annotations.resolve() in [file.resolve() for file in files.values()]:
        raise InputError(f"{annotations}: would be replaced by its own part; name another --out")
    require_free_outputs(list(files.values()), overwrite=overwrite)
    content = read_content(annotations)
    try:
        splits = split_content(content, validation=validation, seed=seed)
    except InputError as error:
        raise InputError(f"{annotations}: {error}") from error
    console = make_console()
    for split, file in files.items():
        write_whole(file, json.dumps(splits[split], ensure_ascii=False))
        images, boxes = len(splits[split]["images"]), len(splits[split]["annotations"])
        console.print(f"{split:<10}  {images:,} images, {boxes:,} boxes: {file}", soft_wrap=True)
    for note in lacking_notes(content, splits):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    return 0


Content = dict[str, Any]
"""A COCO-format JSON, parsed."""


def lacking_notes(content: Content, splits: Mapping[SplitName, Content]) -> Iterator[str]:
    """Yield a line for each reason why classes have no box in a split."""
    images = images_of_classes(content)
    unused = [name for name, count in images.items() if not count]
    if unused:
        yield f"no box at all: {shown(unused)}; leave these classes out, or label photos of them"
    for split, part in splits.items():
        missing = [name for name, boxes in boxes_of_classes(part).items() if not boxes]
        once = [name for name in missing if images[name] == 1]
        if once:
            yield f"no box in {split}: {shown(once)}; one image shows each: label more photos"
        others = [name for name in missing if images[name] > 1]
        if others:
            advice = "another --validation or --seed may do better, more photos do"
            yield f"no box in {split}: {shown(others)}; {advice}"


def shown(names: Sequence[str]) -> str:
    """The first few names."""
    text = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
    return printable(text)


MOST_BYTES = 2_000_000_000
"""Of annotations to split: parsed they take about eight times as much memory."""


def read_content(path: Path) -> Content:
    """The file with all its fields, of which those that training reads are checked.

    Raises:
        InputError: One line, as `read_annotations`.
    """
    read_annotations(path)
    try:
        content: Content = json.loads(read_bytes(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise InputError(f"{path}: not JSON that can be read: it is nested too deep") from error
    return content


def split_content(content: Content, *, validation: float, seed: int) -> dict[SplitName, Content]:
    """Deal the images out at random, each class in the shares of the whole; see `stratify.py`.

    Args:
        content: Checked, as `read_content` gives it.
        validation: The share of the images to evaluate on; each side gets one image at least.
        seed: The same one gives the same splits.

    Returns:
        Each split with its images and their boxes in their old order, and all other fields.

    Raises:
        InputError: There are fewer than two images.
    """
    ids = [image["id"] for image in content["images"]]
    if len(ids) < 2:
        raise InputError(f"images: {len(ids)}; two sides need two at least")
    count = min(max(round(len(ids) * validation), 1), len(ids) - 1)
    shown = classes_of_images(content)
    rows = stratified_rows([shown[image_id] for image_id in ids], count=count, seed=seed)
    held_out = {ids[row] for row in rows}
    parts: dict[SplitName, set[int]] = {"train": set(ids) - held_out, "validation": held_out}
    return {split: only_images(content, parts[split]) for split in SPLITS}


def only_images(content: Content, ids: Iterable[int]) -> Content:
    """The same without the images that are not named, and their boxes."""
    kept = set(ids)
    images = [image for image in content["images"] if image["id"] in kept]
    boxes = [box for box in content["annotations"] if box["image_id"] in kept]
    return content | {"images": images, "annotations": boxes}


def classes_of_images(content: Content) -> Mapping[int, frozenset[int]]:
    """Return the ids of the categories that each image has a box of, by the image's id."""
    found: dict[int, set[int]] = {image["id"]: set() for image in content["images"]}
    for box in content["annotations"]:
        found[box["image_id"]].add(box["category_id"])
    return {image_id: frozenset(ids) for image_id, ids in found.items()}


def images_of_classes(content: Content) -> dict[str, int]:
    """How many images show each class, in the order of the categories."""
    counts = Counter(one for ids in classes_of_images(content).values() for one in ids)
    return {category["name"]: counts[category["id"]] for category in content["categories"]}


def boxes_of_classes(content: Content) -> dict[str, int]:
    """How many boxes each class has, in the order of the categories."""
    counts = Counter(box["category_id"] for box in content["annotations"])
    return {category["name"]: counts[category["id"]] for category in content["categories"]}


SIDES = (TRAIN, VALIDATION) = (0, 1)


def stratified_rows(classes: Sequence[frozenset[int]], *, count: int, seed: int) -> set[int]:
    """Return the rows of `count` images to evaluate on, given the classes that each image shows.

    The rarest class among the images left is dealt out first, since later there is no choice.
    The same seed gives the same rows.
    """
    random = Random(seed)
    rows = random.sample(range(len(classes)), len(classes))
    rows_of: dict[int, list[int]] = {}
    for row in rows:
        for one in sorted(classes[row]):
            rows_of.setdefault(one, []).append(row)
    wanted = {
        one: _wanted(len(of_class), count / len(classes)) for one, of_class in rows_of.items()
    }
    left = {one: len(rows_of[one]) for one in random.sample(sorted(rows_of), len(rows_of))}
    room = [len(classes) - count, count]
    side_of: dict[int, int] = {}
    while left:
        rarest = min(left, key=left.__getitem__)  # of equally rare ones the first, at random
        # Training usually gets the first: those that show most of what validation lacks come last.
        of_class = [row for row in rows_of[rarest] if row not in side_of]
        lacking = [sum(wanted[one][VALIDATION] > 0 for one in classes[row]) for row in of_class]
        for _, row in sorted(zip(lacking, of_class, strict=True), key=itemgetter(0)):
            side = _side(wanted[rarest], room, random)
            side_of[row] = side
            room[side] -= 1
            for one in classes[row]:
                wanted[one][side] -= 1
                left[one] -= 1
        left = {one: images for one, images in left.items() if images}
    without_classes = [row for row in rows if row not in side_of]
    held_out = {row for row, side in side_of.items() if side == VALIDATION}
    return held_out | set(without_classes[: room[VALIDATION]])


def _wanted(images: int, share: float) -> list[float]:
    """How many images of a class each side is to have."""
    in_validation = images * share
    if images >= len(SIDES):
        in_validation = min(max(in_validation, 1.0), images - 1.0)
    return [images - in_validation, in_validation]


def _side(wanted: Sequence[float], room: Sequence[int], random: Random) -> int:
    """The side that lacks most of a class, then the one with more room, then either."""
    with_room = [side for side in SIDES if room[side]]
    return max(with_room, key=lambda side: (wanted[side], room[side], random.random()))
