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

from launch.pinning.allocator import set_allocator
from retinanet.command_line import run_command
from retinanet.errors import InputError
from retinanet.evaluation import options as evaluation
from retinanet.export import options as exporting
from retinanet.mlperf.command import add_mlperf, run_mlperf
from retinanet.prediction import options as prediction


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
        from retinanet.compile_command import compile_kernels

        return compile_kernels()
    from retinanet.prediction.command import predict

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
        from retinanet.training.convert_command import convert

        return convert(file=file, **arguments)
    if classes is None:
        raise InputError("command line: --detector: give its classes, --classes FILE")
    from retinanet.training.convert_detector import IMAGE_SIZE, convert_detector

    image_size = image_size or IMAGE_SIZE
    return convert_detector(detector=detector, classes=classes, image_size=image_size, **arguments)


def parse_arguments() -> argparse.Namespace:
    """`command`, and its options under the names of its function's arguments."""
    parser = argparse.ArgumentParser(prog="python -m retinanet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary, page, add_options in (
        ("evaluate", "mAP of a checkpoint", evaluation, evaluation.add_evaluate_options),
        ("predict", "boxes in pictures and videos", prediction, prediction.add_predict_options),
        ("export", "ONNX or torch.export of a checkpoint", exporting, exporting.add_export_options),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=page.DESCRIPTION,
            epilog=page.EXAMPLES,
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


if __name__ == "__main__":
    sys.exit(run_command(main))
