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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from data.sources import SPLITS, SplitName
from data.split.split import (
    Content,
    boxes_of_classes,
    images_of_classes,
    read_content,
    split_content,
)
from retinanet.errors import InputError
from retinanet.output_files import require_free_outputs, write_whole
from retinanet.printable import printable
from retinanet.terminal import make_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data split`."""
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
