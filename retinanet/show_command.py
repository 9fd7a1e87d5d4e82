"""Draw what the network sees in training: images as decoded, resized and augmented, with boxes.

A row of the sheet is an image of the training split: as it is annotated, then as the evaluation
resizes it, then as training sees it in its first epochs. These are the very samples of a run with
the same settings and run.seed. Look at it before a run: are the boxes where they should be, are
the objects large enough to be recognized, and would you still know them after augmentation?

  retinanet data show --config my-photos.yaml
  retinanet data show --config demo.yaml data.augmentation=strong
  retinanet data show --config coco.yaml data.root=/data/coco data.resize=letterbox --epochs 8
  retinanet data show --images photos --annotations labels.json data.augmentation=ssd --seed 7

Another --seed draws other images. Settings that the sheet depends on: data.image_size, data.resize,
data.augmentation, data.images_without_boxes, data.repeat_rare, run.seed.
"""

from dataclasses import dataclass
from pathlib import Path

from common.cli import positive, whole_number
from common.options import option, overrides_argument, overwrite_option
from retinanet.commands import command


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The options of `retinanet data show`."""

    config: str | None = option(
        "a YAML file, or a name in configs/, as for train", default=None, metavar="NAME"
    )
    overrides: list[str] = overrides_argument()
    images: Path | None = option(
        "a folder of images, without a configuration", default=None, metavar="DIR"
    )
    annotations: Path | None = option(
        "the boxes of --images, in COCO's format", default=None, metavar="FILE"
    )
    count: int = option(
        "number of images, which are the rows", default=4, parse=positive, metavar="N"
    )
    epochs: int = option(
        "number of epochs, which are the columns", default=4, parse=positive, metavar="N"
    )
    seed: int | None = option(
        "seed of the run, and of the choice of images (default: run.seed)",
        default=None,
        parse=whole_number,
        metavar="N",
    )
    out: Path = option(
        "the picture to write, a PNG", default=Path("show.png"), metavar="FILE", writes=True
    )
    overwrite: bool = overwrite_option("replace the picture of an earlier call")


# The docstring of this module is the text of --help.
add_show = command(
    "show", about=__doc__ or "", options=ShowOptions, target="retinanet.input_sheet:show"
)
