"""Commands on a trained detector.

`evaluate` prints its mAP, `predict` finds its classes in pictures and videos, `export` makes a file
of it that other programs run. `convert` makes a .pth of somebody whom you trust into a file that
training reads; `compile` compiles the C++ ahead of time; `mlperf` runs MLCommons' official
checkers, and tells what its reference runs took.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from common.cli import add_json_option, positive, probability, run_command, whole_number
from common.errors import InputError
from launch.environment import set_allocator
from retinanet.config_types import DEFAULT_LIBRARY, METRIC_LIBRARIES
from retinanet.mlperf.command import add_mlperf, run_mlperf


def main() -> int:
    """Read the command line and run the command that it names; returns the exit code."""
    arguments = vars(parse_arguments())
    command = arguments.pop("command")
    if command == "mlperf":
        return run_mlperf(arguments)
    set_allocator("tuned")
    # torch is loaded with the commands, after the memory policy is in force.
    if command == "evaluate":
        from retinanet.evaluation.command import evaluate

        return evaluate(**arguments)
    if command == "export":
        from retinanet.export.command import export

        return export(**arguments)
    if command == "convert":
        return run_convert(arguments)
    if command == "compile":
        from retinanet.engine.kernel_calls import compile_kernels

        return compile_kernels()
    from retinanet.predict.command import predict

    return predict(**arguments)


def run_convert(arguments: dict[str, Any]) -> int:
    """Convert a backbone, or a whole detector; return the exit code.

    Raises:
        InputError: The options are not those of one of them.
    """
    file, detector = arguments.pop("file"), arguments.pop("detector")
    classes, image_size = arguments.pop("classes"), arguments.pop("image_size")
    if (file is None) == (detector is None):
        raise InputError("command line: give FILE.pth of a backbone, or --detector FILE.pth")
    if detector is None:
        if classes is not None or image_size is not None:
            raise InputError("command line: --classes and --image-size are for --detector")
        from retinanet.training.convert import convert

        return convert(file=file, **arguments)
    if classes is None:
        raise InputError("command line: --detector: give its classes, --classes FILE")
    from retinanet.training.convert import IMAGE_SIZE, convert_detector

    image_size = image_size or IMAGE_SIZE
    return convert_detector(detector=detector, classes=classes, image_size=image_size, **arguments)


def parse_arguments() -> argparse.Namespace:
    """`command`, and its options under the names of its function's arguments."""
    parser = argparse.ArgumentParser(prog="python -m retinanet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, description, examples, add_options in (
        (
            "evaluate",
            "mAP of a checkpoint",
            EVALUATE_DESCRIPTION,
            EVALUATE_EXAMPLES,
            add_evaluate_options,
        ),
        (
            "predict",
            "boxes in pictures and videos",
            PREDICT_DESCRIPTION,
            PREDICT_EXAMPLES,
            add_predict_options,
        ),
        (
            "export",
            "ONNX or torch.export of a checkpoint",
            EXPORT_DESCRIPTION,
            EXPORT_EXAMPLES,
            add_export_options,
        ),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "--checkpoint",
            type=Path,
            required=True,
            metavar="PATH",
            help="runs/NAME/checkpoints/best, a file in it, or runs/NAME for its best",
        )
        add_options(command)
    convert = commands.add_parser(
        "convert",
        help="weights of a .pth as safetensors, once",
        description="Write the tensors of a .pth to a .safetensors file, which "
        "model.pretrained_backbone takes. A .pth is a pickle: a program that builds objects as it "
        "is loaded. It is read with torch's weights_only=True, which lets it build tensors and "
        "plain containers only; but that has a known hole in torch before 2.10 (CVE-2026-24747): a "
        "file made for it corrupts memory, and may run any code as you. So it is done once, by "
        "this command, of a file from somebody whom you trust, and nothing else ever reads a .pth. "
        "A state_dict is taken, alone or under `model` (torchvision's and MLPerf's scripts) or "
        "`state_dict`; what is no tensor is dropped, and named. With --detector a whole "
        "RetinaNet-ResNeXt50 becomes a checkpoint that evaluate, predict and export take.",
    )
    add_convert_options(convert)
    commands.add_parser(
        "compile",
        help="the C++ kernels ahead of time",
        description="Compile the C++ kernels into this program's own folder, for every "
        "instruction set that there is code for, whatever this processor has: an image or an "
        "installation that users cannot write then needs no compiler, and no first start waits "
        "for one. Without it each user's first start compiles them, into ~/.cache/retinanet-cpu.",
    )
    add_mlperf(commands)
    return parser.parse_args()


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Which file, where it goes, and the word without which nothing is unpickled."""
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE.pth",
        help="torch's file of a backbone's weights",
    )
    parser.add_argument(
        "--detector",
        type=Path,
        metavar="FILE.pth",
        help="torch's file of a whole RetinaNet-ResNeXt50, such as a checkpoint of torchvision's "
        "or MLPerf's scripts: --out is then the folder of a checkpoint",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="of --detector: annotations in COCO's format (ids below the number of the detector's "
        "outputs are their indices), or names from output 0 on, a line each or a JSON list",
    )
    parser.add_argument(
        "--image-size",
        type=image_side,
        metavar="N",
        help="of --detector: side of the square that images are resized to (default: 800)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="the .safetensors file, or the folder, to write",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="I trust whoever made this file; needed for all but torchvision's own "
        "resnext50_32x4d-7cdf4587.pth, which is known by its SHA-512",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace --out if it exists")


def image_side(text: str) -> int:
    """Return a side that `data.image_size` may have. [pixels]"""
    if not (text.isdecimal() and len(text) <= 5 and int(text) in range(64, 16385, 32)):
        expected = "expected pixels from 64 to 16384, a multiple of 32"
        raise argparse.ArgumentTypeError(f"{expected}, found {text[:20]!r}")
    return int(text)


EVALUATE_DESCRIPTION = """\
COCO's metric of a checkpoint: on the validation split that its run used, or on any COCO-format
JSON with the same categories."""

EVALUATE_EXAMPLES = """\
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


PREDICT_DESCRIPTION = """\
Find objects in pictures and videos, and draw their boxes, classes and scores. NAME.jpg becomes
NAME.boxes.png, a folder's tree is repeated below --out, a video becomes NAME.boxes.mp4 without
sound. The files themselves are not touched. A picture that cannot be read is told of, and the
others go on: the exit status is 2 then. Ctrl-C keeps all that was done."""

PREDICT_EXAMPLES = """\
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


EXPORT_DESCRIPTION = """\
Write a checkpoint's detector as one file that other programs run, in float32. Normalization,
anchors, score threshold and non-maximum suppression are inside:

  images  uint8   [N, 3, S, S]  RGB pictures, resized to the checkpoint's square; any N
  boxes   float32 [N, D, 4]     x1, y1, x2, y2 in pixels of the square
  scores  float32 [N, D]        best first, 0 in rows without a detection
  labels  int64   [N, D]        places in the list of classes, -1 in such rows

Then the file is run, and kept only if it finds what the checkpoint finds. Class names and how to
resize are in the file, and in FILE.json beside it."""

EXPORT_EXAMPLES = """\
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


if __name__ == "__main__":
    sys.exit(run_command(main))
