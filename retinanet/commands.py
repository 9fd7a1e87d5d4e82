"""The command lines of `python -m retinanet`, each with the options of its function.

The functions load torch, after the options are parsed: so `--help` and errors are fast, and the
allocator is set before.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from common import cli
from common.cli import add_json_option, load_function, positive, probability, whole_number
from common.errors import InputError
from common.walk import ALLOW_OUTSIDE
from launch.environment import set_allocator
from retinanet.config_types import DEFAULT_LIBRARY, METRIC_LIBRARIES

# A string, because argparse's class cannot be subscripted at run time.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
COUNT: dict[str, Any] = {"type": positive, "metavar": "N"}


def call(target: str, **options: Any) -> int:
    """Import `module:function`, call it with a command's options, and return the exit code."""
    code: int = load_function(target)(**options)
    return code


def call_with_checkpoint(target: str, *, option: str, **options: Any) -> int:
    """Call as `call_with_torch`, after a check of the path: torch takes seconds to load.

    Raises:
        InputError: The path of `option` has no checkpoint.
    """
    find = load_function("retinanet.config_types:require_checkpoint")
    find(options[option])
    return call_with_torch(target, **options)


def call_with_torch(target: str, **options: Any) -> int:
    """Call a function as `call`, with the allocator set before torch is loaded."""
    set_allocator("tuned")
    return call(target, **options)


def add_command(
    commands: Commands,
    name: str,
    *,
    description: str,
    run: Callable[..., int],
    summary: str | None = None,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command; line breaks of its description and examples are kept."""
    parser = cli.add_command(commands, name, about=description, examples=epilog, summary=summary)
    parser.set_defaults(run=run)
    return parser


def add_checkpoint_option(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`, for commands that need a trained detector."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="PATH",
        help="runs/NAME/checkpoints/best, a file in it, or runs/NAME for its best checkpoint",
    )


EVALUATE_DESCRIPTION = """\
Compute COCO's metric of a checkpoint, on the validation split of its run or on any COCO-format
JSON with the same categories."""

EVALUATE_EXAMPLES = """\
examples:
  python -m retinanet evaluate --checkpoint runs/demo/checkpoints/best
  python -m retinanet evaluate --checkpoint runs/demo --out best --json best/map.json
  python -m retinanet evaluate --checkpoint runs/coco --annotations mine.json --images photos"""


def add_evaluate(commands: Commands) -> None:
    """Add `evaluate`."""
    parser = add_command(
        commands,
        "evaluate",
        description=EVALUATE_DESCRIPTION,
        epilog=EVALUATE_EXAMPLES,
        run=partial(
            call_with_checkpoint, "retinanet.evaluation.command:evaluate", option="checkpoint"
        ),
    )
    add = parser.add_argument
    add_checkpoint_option(parser)
    add("--annotations", **FILE, help="COCO-format JSON, with --images")
    add("--images", **DIR, help="the folder of its images")
    add("--batch-size", default=8, **COUNT, help="images per batch (default: 8)")
    add(
        "--metric",
        choices=METRIC_LIBRARIES,
        default=DEFAULT_LIBRARY,
        help=f"library that computes it, with the same numbers (default: {DEFAULT_LIBRARY})",
    )
    add(
        "--out",
        **DIR,
        help="folder for detections (COCO's result format), a table of the classes (CSV), a chart "
        "of precision and recall (PNG), and images with true and predicted boxes (PNG)",
    )
    add(
        "--pictures",
        type=whole_number,
        default=6,
        metavar="N",
        help="number of images with boxes in --out (default: 6, 0: none)",
    )
    add_json_option(parser)
    add("--overwrite", action="store_true", help="replace files of an earlier evaluation")


REPORT_DESCRIPTION = """\
Write one HTML page about a trained detector: what it finds and misses in the validation images of
its run, and what to do next. It shows the worst pictures with their boxes, which classes are taken
for one another, precision and recall of each class with its best threshold, and the next commands
with paths and threshold filled in. The page is one file of at most 3 MB or so and loads no other;
it is written into the folder of the run, and opens in any browser.

The detections of the checkpoint's evaluation, which the run keeps in eval/, are used if they are
there; otherwise the detector runs on all images again."""

REPORT_EXAMPLES = """\
examples:
  python -m retinanet report runs/demo
  python -m retinanet report runs/demo --overwrite --json report.json
  python -m retinanet report runs/demo/checkpoints/last --out last.html
  python -m retinanet report runs/coco --annotations mine.json --images photos --out mine.html

docs/evaluation.md explains the page."""


def add_report(commands: Commands) -> None:
    """Add `report`."""
    parser = add_command(
        commands,
        "report",
        description=REPORT_DESCRIPTION,
        epilog=REPORT_EXAMPLES,
        run=partial(call_with_checkpoint, "retinanet.report.command:report", option="path"),
    )
    add = parser.add_argument
    add(
        "path",
        type=Path,
        metavar="RUN",
        help="runs/NAME, for its best checkpoint, or a checkpoint such as "
        "runs/NAME/checkpoints/last",
    )
    add("--annotations", **FILE, help="COCO-format JSON of other images, with --images")
    add("--images", **DIR, help="the folder of its images")
    add("--out", **FILE, help="the page (default: report.html in the folder of the run)")
    add_json_option(parser, "also write all numbers of the page to this file")
    add("--overwrite", action="store_true", help="replace an existing page")


PREDICT_DESCRIPTION = """\
Detect objects in pictures and videos, and draw their boxes, classes and scores. NAME.jpg becomes
NAME.boxes.png, the tree of a folder is repeated below --out, a video becomes NAME.boxes.mp4 without
sound. The input files are not changed. A picture that cannot be read is reported and skipped; the
exit status is then 2. After Ctrl-C, all finished results are kept."""

PREDICT_EXAMPLES = """\
examples:
  python -m retinanet predict --checkpoint runs/demo/checkpoints/best photo.jpg
  python -m retinanet predict --checkpoint runs/demo photos/ --out found --json found.json
  python -m retinanet predict --checkpoint runs/demo photos/ --no-pictures --json found.json
  python -m retinanet predict --checkpoint runs/demo street.mp4 --every 5 --class Bus
  python -m retinanet predict --checkpoint runs/demo /dev/video0

Videos and cameras need PyAV, one of the packages of `make serving`."""


def add_predict(commands: Commands) -> None:
    """Add `predict`."""
    parser = add_command(
        commands,
        "predict",
        description=PREDICT_DESCRIPTION,
        epilog=PREDICT_EXAMPLES,
        run=partial(call_with_torch, "retinanet.predict.command:predict"),
    )
    add = parser.add_argument
    add_checkpoint_option(parser)
    add(
        "pictures",
        type=Path,
        nargs="+",
        metavar="PICTURE",
        help="picture files, folders of them, videos, or a camera such as /dev/video0",
    )
    add(
        "--out",
        **DIR,
        help="folder for the drawn pictures (default: predictions, where repeating the command "
        "writes NAME.boxes-2.png)",
    )
    add(
        "--no-pictures",
        dest="draws",
        action="store_false",
        help="write no pictures, only --json",
    )
    add(
        "--score",
        dest="least_score",
        type=probability,
        default=0.4,
        metavar="P",
        help="omit boxes with a lower score (default: 0.4)",
    )
    add(
        "--class",
        dest="only",
        action="append",
        default=[],
        metavar="NAME",
        help="only boxes of this class; may be repeated (default: all)",
    )
    add("--batch-size", default=8, **COUNT, help="pictures or frames per batch (default: 8)")
    add(
        "--every",
        default=1,
        **COUNT,
        help="in videos, detect on every N-th frame; frames between show its boxes (default: 1)",
    )
    add_json_option(
        parser, "also write the boxes to this file, an object per line; complete after Ctrl-C too"
    )
    add("--overwrite", action="store_true", help="replace files of an earlier prediction")
    add(
        ALLOW_OUTSIDE,
        action="store_true",
        help="also take pictures to which links in the folders lead, outside of them",
    )


EXPORT_DESCRIPTION = """\
Write the detector of a checkpoint as one float32 file that other programs can run. It includes
normalization, anchors, score threshold and non-maximum suppression:

  images  uint8   [N, 3, S, S]  RGB pictures, resized to the checkpoint's square; any N
  boxes   float32 [N, D, 4]     x1, y1, x2, y2 in pixels of the square
  scores  float32 [N, D]        best first, 0 in rows without a detection
  labels  int64   [N, D]        indices in the list of classes, -1 in such rows

Then the file is run, and kept only if its detections equal those of the checkpoint. The file and
FILE.json contain the class names and the rule for resizing."""

EXPORT_EXAMPLES = """\
examples:
  python -m retinanet export --checkpoint runs/demo/checkpoints/best --out demo.onnx
  python -m retinanet export --checkpoint runs/demo --out demo.pt2 --score 0.3
  python -m retinanet export --checkpoint runs/demo --format torchvision --out demo.pth

ONNX needs the packages of `make serving`. docs/serving.md shows how to run the file."""


def add_export(commands: Commands) -> None:
    """Add `export`."""
    parser = add_command(
        commands,
        "export",
        description=EXPORT_DESCRIPTION,
        epilog=EXPORT_EXAMPLES,
        run=partial(call_with_torch, "retinanet.export.command:export"),
    )
    add = parser.add_argument
    add_checkpoint_option(parser)
    add(
        "--out",
        required=True,
        **FILE,
        help="NAME.onnx for ONNX, NAME.pt2 for torch.export; with --format torchvision NAME.pth "
        "for torch.load, or NAME.safetensors, which runs no code and has the class names",
    )
    add(
        "--format",
        dest="kind",
        choices=("program", "torchvision"),
        default="program",
        help="program: the whole detector (default); torchvision: only the weights, as a "
        "state_dict that torchvision.models.detection.RetinaNet loads strictly",
    )
    add(
        "--score",
        dest="score_threshold",
        type=probability,
        default=0.05,
        metavar="P",
        help="omit boxes with a score up to this (default: 0.05, as for mAP)",
    )
    add(
        "--image",
        **FILE,
        help="picture for the check of the file (default: validation images of the run, else "
        "synthetic images)",
    )
    add("--overwrite", action="store_true", help="replace --out if it exists")


def add_convert(commands: Commands) -> None:
    """Add `convert`."""
    parser = commands.add_parser(
        "convert",
        description="Write the tensors of a .pth to a .safetensors file for "
        "model.pretrained_backbone. A .pth is a pickle: a program that builds objects when it is "
        "loaded. It is read with torch's weights_only=True, which permits only tensors and plain "
        "containers; but before torch 2.10 this has a known vulnerability (CVE-2026-24747): a "
        "crafted file corrupts memory, and may run any code with your rights. So convert files "
        "only from authors whom you trust; no other command reads a .pth. The file has a "
        "state_dict, alone or under `model` (torchvision's and MLPerf's scripts) or `state_dict`; "
        "entries that are not tensors are dropped and listed. With --detector, a whole "
        "RetinaNet-ResNeXt50 is converted to a checkpoint for evaluate, predict, export and "
        "model.weights.",
    )
    parser.set_defaults(run=run_convert)
    add = parser.add_argument
    add(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE.pth",
        help="PyTorch file with the weights of a backbone",
    )
    add(
        "--detector",
        type=Path,
        metavar="FILE.pth",
        help="PyTorch or .safetensors file of a full RetinaNet-ResNeXt50, such as a checkpoint of "
        "torchvision's or MLPerf's scripts; --out is then the folder of the new checkpoint",
    )
    add(
        "--classes",
        **FILE,
        help="for --detector: annotations in COCO's format (ids below the number of outputs are "
        "output indices), or names of the outputs from 0 on, one per line or as a JSON list",
    )
    add(
        # No default: only a given option can be refused without --detector.
        "--image-size",
        type=image_side,
        metavar="N",
        help="for --detector: side of the square that images are resized to (default: 800)",
    )
    add(
        "--resize",
        choices=("square", "letterbox"),
        help="for --detector: square stretches images, as MLPerf's reference does (default); "
        "letterbox keeps the aspect ratio and fills the square up, as for detectors of "
        "torchvision's scripts, which keep it too",
    )
    add(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="the .safetensors file, or the folder, to write",
    )
    add(
        "--trust",
        action="store_true",
        help="I trust the author of this file; needed for all files but torchvision's "
        "resnext50_32x4d-7cdf4587.pth, which is recognized by its SHA-512",
    )
    add("--overwrite", action="store_true", help="replace --out if it exists")


def image_side(text: str) -> int:
    """Parse a side that `data.image_size` permits. [pixels]"""
    # The length is checked before int(), which has an error of its own above 4,300 digits.
    if not (text.isdecimal() and len(text) <= 5 and int(text) in range(64, 16385, 32)):
        expected = "expected pixels from 64 to 16384, a multiple of 32"
        raise argparse.ArgumentTypeError(f"{expected}, found {text[:20]!r}")
    return int(text)


def run_convert(
    *,
    file: Path | None,
    detector: Path | None,
    classes: Path | None,
    image_size: int | None,
    resize: str | None,
    **options: Any,
) -> int:
    """Convert a backbone or a complete detector; return the exit code.

    Raises:
        InputError: The options contradict each other.
    """
    set_allocator("tuned")
    if (file is None) == (detector is None):
        raise InputError("command line: give either FILE.pth or --detector FILE.pth")
    if detector is None:
        if (classes, image_size, resize) != (None, None, None):
            raise InputError("command line: --classes, --image-size and --resize need --detector")
        return call("retinanet.training.convert:convert", file=file, **options)
    if classes is None:
        raise InputError("command line: --detector: needs --classes FILE")
    options |= {} if image_size is None else {"image_size": image_size}
    options |= {} if resize is None else {"resize": resize}
    return call(
        "retinanet.training.convert:convert_detector", detector=detector, classes=classes, **options
    )


def add_compile(commands: Commands) -> None:
    """Add `compile`."""
    parser = commands.add_parser(
        "compile",
        description="Compile the C++ kernels into the program's folder, for all supported "
        "instruction sets, even those that this processor lacks. Container images and read-only "
        "installations then need no compiler, and the first start does not wait for one. "
        "Otherwise the first start of each user compiles them into ~/.cache/retinanet-cpu.",
    )
    parser.set_defaults(
        run=partial(call_with_torch, "retinanet.engine.kernel_calls:compile_kernels")
    )
