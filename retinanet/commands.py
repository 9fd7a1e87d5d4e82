"""The command lines of `python -m retinanet`, each with the options of its function.

torch is loaded by the functions alone, after the options are read: `--help` and a wrong option take
no second, and the memory policy is in force before.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from common.cli import add_json_option, load_function, positive, probability, whole_number
from common.errors import InputError
from launch.environment import set_allocator
from retinanet.config_types import DEFAULT_LIBRARY, METRIC_LIBRARIES
from retinanet.mlperf.rules import NEWEST, RULES

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
COUNT: dict[str, Any] = {"type": positive, "metavar": "N"}


def call(target: str, **options: Any) -> int:
    """Import `module:function`, call it with a command's options, and return the exit code."""
    code: int = load_function(target)(**options)
    return code


def call_with_torch(target: str, **options: Any) -> int:
    """Do the same in a process that will compute: the memory policy comes before torch."""
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
    """Add a command whose description and examples keep their lines."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_checkpoint_option(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`, of the commands on a trained detector."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="PATH",
        help="runs/NAME/checkpoints/best, a file in it, or runs/NAME for its best",
    )


EVALUATE_DESCRIPTION = """\
COCO's metric of a checkpoint: on the validation split that its run used, or on any COCO-format
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
        run=partial(call_with_torch, "retinanet.evaluation.command:evaluate"),
    )
    add = parser.add_argument
    add_checkpoint_option(parser)
    add("--annotations", **FILE, help="COCO-format JSON, with --images")
    add("--images", **DIR, help="the folder of its images")
    add("--batch-size", default=8, **COUNT, help="images at once (default: 8)")
    add(
        "--metric",
        choices=METRIC_LIBRARIES,
        default=DEFAULT_LIBRARY,
        help=f"what computes it; the numbers are the same (default: {DEFAULT_LIBRARY})",
    )
    add(
        "--out",
        **DIR,
        help="folder for the found boxes (COCO's result format), a table of the classes (CSV), a "
        "chart of precision and recall (PNG), and some images with true beside found boxes (PNG)",
    )
    add(
        "--pictures",
        type=whole_number,
        default=6,
        metavar="N",
        help="so many images with their boxes in --out (default: 6, 0: none)",
    )
    add_json_option(parser)
    add("--overwrite", action="store_true", help="replace files of an earlier evaluation")


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
        help="folder for the drawn pictures (default: predictions, where a second run of the same "
        "command writes NAME.boxes-2.png)",
    )
    add(
        "--no-pictures",
        dest="draws",
        action="store_false",
        help="draw nothing: for --json of many pictures",
    )
    add(
        "--score",
        dest="least_score",
        type=probability,
        default=0.4,
        metavar="P",
        help="leave out boxes that are less certain (default: 0.4)",
    )
    add(
        "--class",
        dest="only",
        action="append",
        default=[],
        metavar="NAME",
        help="only boxes of this class; may be given several times (default: all)",
    )
    add("--batch-size", default=8, **COUNT, help="pictures or frames at once (default: 8)")
    add(
        "--every",
        default=1,
        **COUNT,
        help="of a video look at every N-th frame; those between show its boxes (default: 1)",
    )
    add_json_option(
        parser, "write the boxes here too, an object a line, whole after Ctrl-C as well"
    )
    add("--overwrite", action="store_true", help="replace files of an earlier prediction")


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
    add("--out", required=True, **FILE, help="NAME.onnx for ONNX, NAME.pt2 for torch.export")
    add(
        "--score",
        dest="score_threshold",
        type=probability,
        default=0.05,
        metavar="P",
        help="leave out boxes that are not surer than this (default: 0.05, as mAP is computed)",
    )
    add(
        "--image",
        **FILE,
        help="picture to check the file on (default: validation images of the run, else drawn "
        "scenes)",
    )
    add("--overwrite", action="store_true", help="replace --out if it exists")


def add_convert(commands: Commands) -> None:
    """Add `convert`."""
    parser = commands.add_parser(
        "convert",
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
    parser.set_defaults(run=run_convert)
    add = parser.add_argument
    add(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE.pth",
        help="torch's file of a backbone's weights",
    )
    add(
        "--detector",
        type=Path,
        metavar="FILE.pth",
        help="torch's file of a whole RetinaNet-ResNeXt50, such as a checkpoint of torchvision's "
        "or MLPerf's scripts: --out is then the folder of a checkpoint",
    )
    add(
        "--classes",
        **FILE,
        help="of --detector: annotations in COCO's format (ids below the number of the detector's "
        "outputs are their indices), or names from output 0 on, a line each or a JSON list",
    )
    add(
        "--image-size",
        type=image_side,
        metavar="N",
        help="of --detector: side of the square that images are resized to (default: 800)",
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
        help="I trust whoever made this file; needed for all but torchvision's own "
        "resnext50_32x4d-7cdf4587.pth, which is known by its SHA-512",
    )
    add("--overwrite", action="store_true", help="replace --out if it exists")


def image_side(text: str) -> int:
    """Return a side that `data.image_size` may have. [pixels]"""
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
    **options: Any,
) -> int:
    """Convert a backbone, or a whole detector; return the exit code.

    Raises:
        InputError: The options are not those of one of them.
    """
    set_allocator("tuned")
    if (file is None) == (detector is None):
        raise InputError("command line: give FILE.pth of a backbone, or --detector FILE.pth")
    if detector is None:
        if classes is not None or image_size is not None:
            raise InputError("command line: --classes and --image-size are for --detector")
        return call("retinanet.training.convert:convert", file=file, **options)
    if classes is None:
        raise InputError("command line: --detector: give its classes, --classes FILE")
    options |= {} if image_size is None else {"image_size": image_size}
    return call(
        "retinanet.training.convert:convert_detector", detector=detector, classes=classes, **options
    )


def add_compile(commands: Commands) -> None:
    """Add `compile`."""
    parser = commands.add_parser(
        "compile",
        description="Compile the C++ kernels into this program's own folder, for every "
        "instruction set that there is code for, whatever this processor has: an image or an "
        "installation that users cannot write then needs no compiler, and no first start waits "
        "for one. Without it each user's first start compiles them, into ~/.cache/retinanet-cpu.",
    )
    parser.set_defaults(
        run=partial(call_with_torch, "retinanet.engine.kernel_calls:compile_kernels")
    )


POINTS_DESCRIPTION = """\
MLPerf's reference convergence points: how many epochs the reference implementation took to mAP
0.34 at several global batch sizes (images a step, of all ranks). They come inside MLCommons'
package, and submissions are compared with them. Larger batches take more epochs: what a cluster
gains in speed it must give back in part. For other batch sizes epochs, learning rate and warm-up
are interpolated between the points."""

POINTS_EXAMPLES = """\
examples:
  python -m retinanet mlperf points
  python -m retinanet mlperf points --batch-size 128 448 1536 --chart points.png"""

CHECK_DESCRIPTION = """\
Run MLCommons' compliance checker on a run's log, and say what falls short: 0 where it passes, 4
where it does not. Which division the run was for, its log says (mlperf.division). Logs of others
are taken too: names of ranks before the lines are left out, lines that were cut are named."""

RCP_DESCRIPTION = """\
Run MLCommons' RCP checker on runs of one global batch size: whether they take as many epochs to
the target as the reference implementation does, which shows that nothing but speed was changed. The
fastest and the slowest run do not count. 0 where it passes, 4 where it does not."""

SUBMISSION_DESCRIPTION = """\
Put runs into the folder of a submission: their logs as results, a description of the system filled
from this machine, and a reference to the code. Run it on the machine that trained. Then MLCommons'
package checker looks at the folder. What is in the folder stays as it is: fill in what the
description cannot know, add runs one by one. 0 where the checker passes, 4 where it does not."""

RUN_FOLDER = "folder of a run, such as runs/demo"
RUN_LOG = f"{RUN_FOLDER}, its mlperf.log, or a folder of result_0.txt, result_1.txt, …"


def add_mlperf(commands: Commands) -> None:
    """Add `mlperf` and its commands. They compute nothing, but load scipy and pandas."""
    mlperf = commands.add_parser(
        "mlperf",
        description="MLPerf training: RetinaNet. Each run writes mlperf.log beside its metrics.",
    )
    kinds = mlperf.add_subparsers(required=True, metavar="COMMAND")
    points = add_command(
        kinds,
        "points",
        summary="epochs and settings by global batch size",
        description=POINTS_DESCRIPTION,
        epilog=POINTS_EXAMPLES,
        run=partial(call, "retinanet.mlperf.rules:points"),
    )
    points.add_argument(
        "--batch-size",
        dest="batch_sizes",
        type=positive,
        nargs="+",
        default=[],
        metavar="N",
        help="global batch sizes to look up: ranks × training.batch_size × "
        "training.gradient_accumulation",
    )
    points.add_argument(
        "--rules", choices=RULES, default=NEWEST, help=f"rule set (default: {NEWEST})"
    )
    points.add_argument("--chart", type=Path, metavar="FILE.png", help="draw them: a PNG")
    add_json_option(points)
    check = add_command(
        kinds,
        "check",
        summary="the official compliance checker on a run",
        description=CHECK_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.official:check"),
    )
    check.add_argument("path", type=Path, metavar="RUN", help=RUN_LOG)
    rcp = add_command(
        kinds,
        "rcp",
        summary="the official RCP checker on a set of runs",
        description=RCP_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.official:rcp"),
    )
    rcp.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN_LOG)
    submission = add_command(
        kinds,
        "submission",
        summary="the folder of a submission",
        description=SUBMISSION_DESCRIPTION,
        run=partial(call, "retinanet.mlperf.submission:submission"),
    )
    submission.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN_FOLDER)
    submission.add_argument("--out", required=True, **DIR, help="the submission's folder")
    for parser in (check, rcp, submission):
        parser.add_argument(
            "--rules",
            choices=RULES,
            help="rule set (default: the newest that has the log's benchmark)",
        )
    for parser in (check, rcp):
        add_json_option(parser, "write the verdict here too")
