"""The options of `python -m retinanet predict`."""

import argparse
from pathlib import Path

from retinanet.command_line import add_json_option, positive, probability

DESCRIPTION = """\
Find objects in pictures and videos, and draw their boxes, classes and scores. NAME.jpg becomes
NAME.boxes.png, a folder's tree is repeated below --out, a video becomes NAME.boxes.mp4 without
sound. The files themselves are not touched. A picture that cannot be read is told of, and the
others go on: the exit status is 2 then. Ctrl-C keeps all that was done."""

EXAMPLES = """\
examples:
  python -m retinanet predict --checkpoint runs/demo/checkpoints/best photo.jpg
  python -m retinanet predict --checkpoint runs/demo photos/ --out found --json found.json
  python -m retinanet predict --checkpoint runs/demo photos/ --no-pictures --json found.json
  python -m retinanet predict --checkpoint runs/demo street.mp4 --every 5 --class Bus
  python -m retinanet predict --checkpoint runs/demo /dev/video0

Videos and cameras need PyAV, one of the packages of `make serving`."""


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Which pictures, what is drawn, and where it goes."""
    parser.add_argument(
        "pictures",
        type=Path,
        nargs="+",
        metavar="PICTURE",
        help="picture files, folders of them, videos, or a camera such as /dev/video0",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the drawn pictures (default: predictions, where a second run of the same "
        "command writes NAME.boxes-2.png)",
    )
    parser.add_argument(
        "--no-pictures",
        dest="draws",
        action="store_false",
        help="draw nothing: for --json of many pictures",
    )
    parser.add_argument(
        "--score",
        dest="least_score",
        type=probability,
        default=0.4,
        metavar="P",
        help="leave out boxes that are less certain (default: 0.4)",
    )
    parser.add_argument(
        "--class",
        dest="only",
        action="append",
        default=[],
        metavar="NAME",
        help="only boxes of this class; may be given several times (default: all)",
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=8,
        metavar="N",
        help="pictures or frames at once (default: 8)",
    )
    parser.add_argument(
        "--every",
        type=positive,
        default=1,
        metavar="N",
        help="of a video look at every N-th frame; those between show its boxes (default: 1)",
    )
    add_json_option(
        parser, "write the boxes here too, an object a line, whole after Ctrl-C as well"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier prediction"
    )
