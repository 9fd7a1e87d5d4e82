"""Train a detector on a folder of photos and their labels, with settings for them and this machine.

Reads labels in the format of YOLO, Pascal VOC or COCO, divides and checks the photos, measures some
steps, writes the configuration DIR/my-photos.yaml, trains with it, and writes a page about the
detector: what `data convert`, `data split`, `data verify`, `train` and `report` do. All is written
to DIR, the run to DIR/detector; the photos stay where they are. After Ctrl-C the same command goes
on. The number of epochs follows from the measured steps, so the end is an estimate, not a limit.

  retinanet learn my-photos                                   # 2 hours, into runs/my-photos
  retinanet learn my-photos --hours 0.5 --weights runs/demo --out runs/quick
  retinanet learn yolo-export/data.yaml --hours 8 --weights torchvision
  retinanet train --config runs/my-photos/my-photos.yaml run.name=longer training.epochs=90

SOURCE is that of `data convert --from`; docs/tutorial.md explains the settings.
"""

from dataclasses import dataclass
from pathlib import Path

from common.cli import positive_number
from common.options import included, option
from data.convert import READERS
from data.formats.labels import LabelOptions
from retinanet.commands import command


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """The options of `retinanet learn`."""

    labels: LabelOptions = included(LabelOptions)
    from_format: str | None = option(
        "format of the labels, if there are several",
        default=None,
        name="--from",
        choices=tuple(READERS),
    )
    hours: float = option("time to train", default=2.0, parse=positive_number, metavar="H")
    weights: str | None = option(
        "detector to start from: a run, a checkpoint, or torchvision to download that of COCO "
        "(default: torchvision's weights if they are in its cache, else random numbers)",
        default=None,
        metavar="NAME",
    )
    out: Path | None = option(
        "folder to write (default: runs/ and the name of SOURCE)", default=None, metavar="DIR"
    )


# The docstring of this module is the text of --help.
add_learn = command(
    "learn", about=__doc__ or "", options=LearnOptions, target="retinanet.learn:learn"
)
