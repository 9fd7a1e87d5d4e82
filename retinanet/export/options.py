"""The options of `python -m retinanet export`."""

import argparse
from pathlib import Path

from retinanet.command_line import probability

DESCRIPTION = """\
Write a checkpoint's detector as one file that other programs run, in float32. Normalization,
anchors, score threshold and non-maximum suppression are inside:

  images  uint8   [N, 3, S, S]  RGB pictures, resized to the checkpoint's square; any N
  boxes   float32 [N, D, 4]     x1, y1, x2, y2 in pixels of the square
  scores  float32 [N, D]        best first, 0 in rows without a detection
  labels  int64   [N, D]        places in the list of classes, -1 in such rows

Then the file is run, and kept only if it finds what the checkpoint finds. Class names and how to
resize are in the file, and in FILE.json beside it."""

EXAMPLES = """\
examples:
  python -m retinanet export --checkpoint runs/demo/checkpoints/best --out demo.onnx
  python -m retinanet export --checkpoint runs/demo --out demo.pt2 --score 0.3

ONNX needs the packages of `make serving`. docs/serving.md shows how to run the file."""


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Which file, and on what it is checked."""
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="NAME.onnx for ONNX, NAME.pt2 for torch.export",
    )
    parser.add_argument(
        "--score",
        dest="score_threshold",
        type=probability,
        default=0.05,
        metavar="P",
        help="leave out boxes that are not surer than this (default: 0.05, as mAP is computed)",
    )
    parser.add_argument(
        "--image",
        type=Path,
        metavar="FILE",
        help="picture to check the file on (default: validation images of the run, else drawn "
        "scenes)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace --out if it exists")
