"""Check a data set before a run depends on it.

Reads the annotations of both splits and decodes every image with the run's decoder, on all cores.
Tells everything that would stop training, what training leaves out or mends (boxes without size,
boxes that reach beyond their image, …), and what is worth knowing; then the counts of classes.

  python -m data verify --config coco.yaml data.root=/data/coco
  python -m data verify --config coco.yaml data.root=/data/coco --no-images      # seconds
  python -m data verify --config coco.yaml data.root=/data/coco --sample 1000
  python -m data verify --config coco.yaml data.root=/data/coco --json found.json
  python -m data verify --config coco.yaml data.root=/data/coco --write-clean clean

--write-clean makes an index of each split without the bad images and boxes, and prints the command
that trains on it. Nothing else is changed: not the annotations, not the images.

Exit status: 0 nothing stops training, 1 something would, 2 wrong arguments or no such file,
130 Ctrl-C.
"""

import argparse
from pathlib import Path

from data.sources import SPLITS, SplitName
from data.verify.request import Request
from data.verify.verification import verify
from retinanet.command_line import add_json_option, add_overrides, positive
from retinanet.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m data verify`."""
    parser.add_argument(
        "--config",
        required=True,
        metavar="NAME",
        help="a YAML file, or a name in configs/, as train.py takes it",
    )
    add_overrides(parser)
    parser.add_argument(
        "--split",
        choices=["train", "validation"],
        help="only this one (default: both, whose categories are then compared)",
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--no-images", action="store_true", help="check annotations alone: a quick look"
    )
    how_many.add_argument(
        "--sample", type=positive, metavar="N", help="decode only N images of each split"
    )
    add_output_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """What is written, and where."""
    add_json_option(
        parser, "write everything here too: the first 1000 places of each kind, every class"
    )
    parser.add_argument(
        "--write-clean",
        dest="clean_folder",
        type=Path,
        metavar="DIR",
        help="write DIR/train.index and DIR/validation.index without the bad entries",
    )


def run(
    *,
    config: str,
    overrides: list[str],
    split: SplitName | None,
    no_images: bool,
    sample: int | None,
    json_file: Path | None,
    clean_folder: Path | None,
) -> int:
    """Run the command; returns the exit code."""
    if sample is not None and clean_folder is not None:
        raise InputError(
            "--write-clean: not with --sample, which leaves most images unchecked; leave one out"
        )
    splits: tuple[SplitName, ...] = SPLITS if split is None else (split,)
    return verify(
        Request(
            config=config,
            overrides=overrides,
            splits=splits,
            images=not no_images,
            sample=sample,
            json_file=json_file,
            clean_folder=clean_folder,
        )
    )
