"""Commands on a trained detector: `evaluate` prints its mAP, `predict` draws boxes on pictures.

`convert` makes a .pth of somebody whom you trust into a file that training reads; `compile`
compiles the C++ ahead of time; `mlperf` runs MLCommons' official checkers, and tells what its
reference runs took.
"""

import argparse
import sys
from pathlib import Path

from launch.pinning.allocator import set_allocator
from retinanet.command_line import add_json_option, positive, run_command
from retinanet.metric_library import DEFAULT_LIBRARY, METRIC_LIBRARIES
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
    if command == "convert":
        from retinanet.training.convert_command import convert

        return convert(**arguments)
    if command == "compile":
        from retinanet.compile_command import compile_kernels

        return compile_kernels()
    from retinanet.evaluation.predict_command import predict

    return predict(**arguments)


def parse_arguments() -> argparse.Namespace:
    """`command`, and its options under the names of its function's arguments."""
    parser = argparse.ArgumentParser(prog="python -m retinanet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    evaluate = commands.add_parser(
        "evaluate",
        help="mAP of a checkpoint",
        description="COCO's metric of a checkpoint: on the validation split that its run used, "
        "or on any COCO-format JSON with the same categories.",
    )
    predict = commands.add_parser(
        "predict",
        help="draw boxes on pictures",
        description="Find objects in pictures and draw their boxes, classes and scores. Writes "
        "NAME.boxes.png for each; the pictures themselves are not touched.",
    )
    for command in (evaluate, predict):
        command.add_argument(
            "--checkpoint",
            type=Path,
            required=True,
            metavar="PATH",
            help="runs/NAME/checkpoints/best, a file in it, or runs/NAME for its best",
        )
    add_evaluate_options(evaluate)
    add_predict_options(predict)
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
        "`state_dict`; what is no tensor is dropped, and named.",
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
        help="folder for the found boxes (COCO's result format), a table of the classes (CSV) and "
        "a chart of precision and recall (PNG)",
    )
    add_json_option(parser)


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Which pictures, what is drawn, and where it goes."""
    parser.add_argument("pictures", type=Path, nargs="+", metavar="IMAGE", help="picture files")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("predictions"),
        metavar="DIR",
        help="folder for the drawn pictures (default: predictions)",
    )
    parser.add_argument(
        "--score",
        dest="least_score",
        type=probability,
        default=0.4,
        metavar="P",
        help="leave out boxes that are less certain (default: 0.4)",
    )
    add_json_option(parser, "write the boxes here too")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier prediction"
    )


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Which file, where it goes, and the word without which nothing is unpickled."""
    parser.add_argument("file", type=Path, metavar="FILE.pth", help="torch's file of weights")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.safetensors", help="the file to write"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="I trust whoever made this file; needed for all but torchvision's own "
        "resnext50_32x4d-7cdf4587.pth, which is known by its SHA-512",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace --out if it exists")


def probability(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(run_command(main))
