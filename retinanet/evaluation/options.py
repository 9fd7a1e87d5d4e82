"""The options of `python -m retinanet evaluate`."""

import argparse
from pathlib import Path

from retinanet.command_line import add_json_option, positive, whole_number
from retinanet.metric_library import DEFAULT_LIBRARY, METRIC_LIBRARIES

DESCRIPTION = """\
COCO's metric of a checkpoint: on the validation split that its run used, or on any COCO-format
JSON with the same categories."""

EXAMPLES = """\
examples:
  python -m retinanet evaluate --checkpoint runs/demo/checkpoints/best
  python -m retinanet evaluate --checkpoint runs/demo --out best --json best/map.json
  python -m retinanet evaluate --checkpoint runs/coco --annotations mine.json --images photos"""


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Which data, how, and where numbers go."""
    parser.add_argument(
        "--annotations", type=Path, metavar="FILE", help="COCO-format JSON, with --images"
    )
    parser.add_argument("--images", type=Path, metavar="DIR", help="the folder of its images")
    parser.add_argument(
        "--batch-size", type=positive, default=8, metavar="N", help="images at once (default: 8)"
    )
    parser.add_argument(
        "--metric",
        choices=METRIC_LIBRARIES,
        default=DEFAULT_LIBRARY,
        help=f"what computes it; the numbers are the same (default: {DEFAULT_LIBRARY})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the found boxes (COCO's result format), a table of the classes (CSV), a "
        "chart of precision and recall (PNG), and some images with true beside found boxes (PNG)",
    )
    parser.add_argument(
        "--pictures",
        type=whole_number,
        default=6,
        metavar="N",
        help="so many images with their boxes in --out (default: 6, 0: none)",
    )
    add_json_option(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier evaluation"
    )
