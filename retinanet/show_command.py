"""Draw what the network sees in training: images as decoded, resized and augmented, with boxes.

A row of the sheet is an image of the training split: as it is annotated, then as the evaluation
resizes it, then as training sees it in its first epochs. These are the very samples of a run with
the same settings and run.seed. Look at it before a run: are the boxes where they should be, are
the objects large enough to be recognized, and would you still know them after augmentation?

  python -m data show --config my-photos.yaml
  python -m data show --config demo.yaml data.augmentation=strong
  python -m data show --config coco.yaml data.root=/data/coco data.resize=letterbox --epochs 8
  python -m data show --images photos --annotations labels.json data.augmentation=ssd --seed 7

Another --seed draws other images. Settings that the sheet depends on: data.image_size, data.resize,
data.augmentation, data.images_without_boxes, run.seed.
"""

import argparse
from functools import partial
from pathlib import Path

from common.cli import add_command, positive, whole_number
from common.options import add_overrides
from retinanet.commands import call_with_torch


def add_show(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `show`."""
    # The docstring of this module is the text of --help.
    parser = add_command(commands, "show", about=__doc__ or "")
    parser.set_defaults(run=partial(call_with_torch, "retinanet.input_sheet:show"))
    add = parser.add_argument
    add(
        "--config",
        metavar="NAME",
        help="a YAML file, or a name in configs/, as for train.py",
    )
    add_overrides(parser)
    add("--images", type=Path, metavar="DIR", help="a folder of images, without a configuration")
    add("--annotations", type=Path, metavar="FILE", help="the boxes of --images, in COCO's format")
    add(
        "--count",
        type=positive,
        default=4,
        metavar="N",
        help="number of images, which are the rows (default: 4)",
    )
    add(
        "--epochs",
        type=positive,
        default=4,
        metavar="N",
        help="number of epochs, which are the columns (default: 4)",
    )
    add(
        "--seed",
        type=whole_number,
        metavar="N",
        help="seed of the run, and of the choice of images (default: run.seed)",
    )
    add(
        "--out",
        type=Path,
        default=Path("show.png"),
        metavar="FILE",
        help="the picture to write, a PNG (default: show.png)",
    )
    add("--overwrite", action="store_true", help="replace the picture of an earlier call")
