"""The command lines of `retinanet`: their texts and options.

Their functions are in modules that are imported once the options are parsed: so `--help` and errors
are fast.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from common.cli import add_command, load_function, positive, probability, whole_number
from common.errors import InputError
from common.options import argument, flag, included, json_option, option, overwrite_option
from common.walk import ALLOW_OUTSIDE
from data.tiling import TileOptions
from launch.environment import set_allocator
from retinanet.config_types import (
    DEFAULT_LIBRARY,
    MetricLibrary,
    Precision,
    image_size_of,
    require_checkpoint,
)

# A string, because argparse's class cannot be subscripted at run time.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def run_target(target: str, options: Any) -> int:
    """Import `module:function`, call it with a command's options, and return the exit code.

    Most functions load torch, which takes seconds: a wrong path of a checkpoint is refused and the
    allocator set before.

    Raises:
        InputError: The path has no checkpoint.
    """
    if checkpoint := getattr(options, "checkpoint", None):
        require_checkpoint(checkpoint)
    set_allocator("tuned")
    code: int = load_function(target)(options)
    return code


def command(
    name: str, *, about: str, options: type[Any], target: str, examples: str | None = None
) -> Callable[[Commands], None]:
    """Return the function that adds a command, which `run_target` runs; texts as `add_command`."""

    def add(commands: Commands) -> None:
        run = partial(run_target, target)
        add_command(commands, name, about=about, examples=examples, options=options, run=run)

    return add


CHECKPOINT = "runs/NAME/checkpoints/best, a file in it, or runs/NAME for its best checkpoint"
PRECISION = (
    "arithmetic of the detector, however it was trained; auto: bf16 if the processor has "
    "instructions for it, else float32"
)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The options of `retinanet evaluate`."""

    checkpoint: Path = option(CHECKPOINT, metavar="PATH")
    annotations: Path | None = option(
        "COCO-format JSON, with --images", default=None, metavar="FILE"
    )
    images: Path | None = option("the folder of its images", default=None, metavar="DIR")
    batch_size: int = option("images or tiles per batch", default=8, parse=positive, metavar="N")
    tiles: TileOptions = included(TileOptions)
    precision: Precision = option(PRECISION, default="auto")
    metric: MetricLibrary = option(
        "library that computes it, with the same numbers", default=DEFAULT_LIBRARY
    )
    out: Path | None = option(
        "folder for detections (COCO's result format), a table of the classes (CSV), a chart of "
        "precision and recall (PNG), and images with true and predicted boxes (PNG)",
        default=None,
        metavar="DIR",
    )
    pictures: int = option(
        "number of images with boxes in --out (default: 6, 0: none)",
        default=6,
        parse=whole_number,
        metavar="N",
    )
    json: Path | None = json_option()
    overwrite: bool = overwrite_option("replace files of an earlier evaluation")


add_evaluate = command(
    "evaluate",
    about="""\
Compute COCO's metric of a checkpoint, on the validation split of its run or on any COCO-format
JSON with the same categories.""",
    examples="""\
examples:
  retinanet evaluate --checkpoint runs/demo/checkpoints/best
  retinanet evaluate --checkpoint runs/demo --out best --json best/map.json
  retinanet evaluate --checkpoint runs/coco --annotations mine.json --images photos
  retinanet evaluate --checkpoint runs/wide --annotations mine.json --images photos --tiles 640""",
    options=EvaluateOptions,
    target="retinanet.evaluation.command:evaluate",
)


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `retinanet report`."""

    checkpoint: Path = argument(
        "runs/NAME, for its best checkpoint, or a checkpoint such as runs/NAME/checkpoints/last",
        metavar="RUN",
    )
    annotations: Path | None = option(
        "COCO-format JSON of other images, with --images", default=None, metavar="FILE"
    )
    images: Path | None = option("the folder of its images", default=None, metavar="DIR")
    unlabelled: Path | None = option(
        "folder with pictures to choose from: list those to label next", default=None, metavar="DIR"
    )
    next: int = option("how many of them", default=20, parse=positive, metavar="N")
    out: Path | None = option(
        "the page (default: report.html in the folder of the run)", default=None, metavar="FILE"
    )
    precision: Precision = option(PRECISION, default="auto")
    json: Path | None = json_option("also write all numbers of the page to this file")
    overwrite: bool = overwrite_option("replace an existing page")


add_report = command(
    "report",
    about="""\
Write one HTML page about a trained detector: what it finds and misses in the validation images of
its run, and what to do next. It shows the worst pictures with their boxes, which classes are taken
for one another, precision and recall of each class with its best threshold, and the next commands
with paths and threshold filled in. The page is one file of at most 3 MB or so and loads no other;
it is written into the folder of the run, and opens in any browser.

The detections of the checkpoint's evaluation, which the run keeps in eval/, are used if they are
there and --precision names no other than the training's; otherwise the detector runs on all images
again.

With --unlabelled, the page shows which pictures of a folder to label next: where the detector is
unsure, perhaps sees a rare class, or pictures unlike those of the training. The file .next.txt
beside the page has a path on each line.""",
    examples="""\
examples:
  retinanet report runs/demo
  retinanet report runs/demo --overwrite --json report.json
  retinanet report runs/demo/checkpoints/last --out last.html
  retinanet report runs/coco --annotations mine.json --images photos --out mine.html
  retinanet report runs/coco --unlabelled new-photos --overwrite

docs/evaluation.md explains the page.""",
    options=ReportOptions,
    target="retinanet.report.command:report",
)


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The options of `retinanet predict`."""

    checkpoint: Path = option(CHECKPOINT, metavar="PATH")
    pictures: list[Path] = argument(
        "picture files, folders of them, or videos", metavar="PICTURE", nargs="+"
    )
    out: Path | None = option(
        "folder for the drawn pictures (default: predictions, where repeating the command writes "
        "NAME.boxes-2.png)",
        default=None,
        metavar="DIR",
    )
    no_pictures: bool = flag("write no pictures, only --json")
    labels: Literal["yolo", "voc", "coco"] | None = option(
        "write the boxes to --out as labels to correct, instead of drawn pictures: yolo for "
        "LabelImg, Label Studio and CVAT, voc (Pascal VOC) for LabelImg and CVAT, coco for CVAT "
        "and Label Studio",
        default=None,
        choices=("yolo", "voc", "coco"),
    )
    score: float = option(
        "omit boxes with a lower score", default=0.4, parse=probability, metavar="P"
    )
    only: list[str] | None = option(
        "only boxes of this class; may be repeated (default: all)",
        default=None,
        name="--class",
        action="append",
        metavar="NAME",
    )
    batch_size: int = option(
        "pictures, frames or tiles per batch", default=8, parse=positive, metavar="N"
    )
    tiles: TileOptions = included(TileOptions)
    precision: Precision = option(PRECISION, default="auto")
    every: int = option(
        "in videos, detect on every N-th frame; frames between show its boxes",
        default=1,
        parse=positive,
        metavar="N",
    )
    json: Path | None = json_option(
        "also write the boxes to this file, an object per line; complete after Ctrl-C too"
    )
    overwrite: bool = overwrite_option("replace files of an earlier prediction")
    allow_outside: bool = flag(
        "also take pictures to which links in the folders lead, outside of them", name=ALLOW_OUTSIDE
    )


add_predict = command(
    "predict",
    about="""\
Detect objects in pictures and videos, and draw their boxes, classes and scores. NAME.jpg becomes
NAME.boxes.png, the tree of a folder is repeated below --out, a video becomes NAME.boxes.mp4 without
sound. The input files are not changed. A picture that cannot be read is reported and skipped; the
exit status is then 2. After Ctrl-C, all finished results are kept.

With --tiles, each picture or frame is cut into squares that overlap, and the detector runs on each
of them, and on the whole picture for objects that are larger than a tile. An object at a seam gets
one box. Choose tiles in which objects are as large as in the images of the training. A picture that
is no larger than a tile is detected as without --tiles.""",
    examples="""\
examples:
  retinanet predict --checkpoint runs/demo/checkpoints/best photo.jpg
  retinanet predict --checkpoint runs/demo photos/ --out found --json found.json
  retinanet predict --checkpoint runs/demo photos/ --no-pictures --json found.json
  retinanet predict --checkpoint runs/demo street.mp4 --every 5 --class Bus
  retinanet predict --checkpoint runs/wide aerial.jpg --tiles 640 --overlap 0.2
  retinanet predict --checkpoint runs/demo photos/ --labels yolo --out predicted

With --labels, a person corrects boxes instead of drawing them: docs/formats.md says in which menus,
and how they come back. A low --score leaves wrong boxes to delete, a high one missing boxes to
draw.

Videos need PyAV, one of the packages of `make serving`.""",
    options=PredictOptions,
    target="retinanet.predict.command:predict",
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `retinanet export`."""

    checkpoint: Path = option(CHECKPOINT, metavar="PATH")
    out: Path = option(
        "NAME.onnx for ONNX, NAME.pt2 for torch.export; with --format torchvision NAME.pth for "
        "torch.load, or NAME.safetensors, which runs no code and has the class names; with "
        "--format openvino NAME.xml, beside which NAME.bin is written",
        metavar="FILE",
    )
    format: Literal["program", "openvino", "torchvision"] = option(
        "program: the whole detector (default); openvino: the same for OpenVINO; torchvision: only "
        "the weights, as a state_dict that torchvision.models.detection.RetinaNet loads strictly",
        default="program",
    )
    int8: bool = flag(
        "with --format openvino: quantize the network to 8 bits, calibrated on the run's "
        "validation images, and measure the mAP before and after"
    )
    max_drop: float = option(
        "with --int8: write nothing, with status 4, if the mAP falls by more (default: 0.005)",
        default=0.005,
        parse=probability,
        metavar="D",
    )
    annotations: Path | None = option(
        "with --int8: COCO-format JSON of other images", default=None, metavar="FILE"
    )
    images: Path | None = option("the folder of its images", default=None, metavar="DIR")
    score: float = option(
        "omit boxes with a score up to this (default: 0.05, as for mAP)",
        default=0.05,
        parse=probability,
        metavar="P",
    )
    image: Path | None = option(
        "picture for the check of the file (default: validation images of the run, else synthetic "
        "images)",
        default=None,
        metavar="FILE",
    )
    turned: bool = flag(
        "exchange the sides of a rectangle (`data.image_size`): for pictures of the other "
        "orientation, since the file has one size"
    )
    overwrite: bool = overwrite_option("replace --out if it exists")


add_export = command(
    "export",
    about="""\
Write the detector of a checkpoint as a float32 program that others can run. It includes
normalization, anchors, score threshold and non-maximum suppression:

  images  uint8   [N, 3, S, S]  RGB pictures, resized to the checkpoint's square; any N
  boxes   float32 [N, D, 4]     x1, y1, x2, y2 in pixels of the square
  scores  float32 [N, D]        best first, 0 in rows without a detection
  labels  int64   [N, D]        indices in the list of classes, -1 in such rows

Then the file is run, and kept only if its detections equal those of the checkpoint. The file and
FILE.json contain the class names and the rule for resizing.""",
    examples="""\
examples:
  retinanet export --checkpoint runs/demo/checkpoints/best --out demo.onnx
  retinanet export --checkpoint runs/demo --out demo.pt2 --score 0.3
  retinanet export --checkpoint runs/demo --format torchvision --out demo.pth
  retinanet export --checkpoint runs/demo --format openvino --int8 --out demo.xml

ONNX needs the packages of `make serving`, OpenVINO those of `make openvino`. docs/serving.md shows
how to run the file.""",
    options=ExportOptions,
    target="retinanet.export.command:export",
)


CONVERT_DESCRIPTION = """\
Write the tensors of a .pth to a .safetensors file for model.pretrained_backbone. A .pth is a
pickle: a program that builds objects when it is loaded. It is read with torch's weights_only=True,
which permits only tensors and plain containers; but before torch 2.10 this has a known
vulnerability (CVE-2026-24747): a crafted file corrupts memory, and may run any code with your
rights. So convert files only from authors whom you trust; no other command reads a .pth. The file
has a state_dict, alone or under `model` (torchvision's and MLPerf's scripts) or `state_dict`;
entries that are not tensors are dropped and listed. With --detector, a whole RetinaNet is
converted to a checkpoint for evaluate, predict, export and model.weights."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The options of `retinanet convert`; those of --detector are None if not given."""

    file: Path | None = argument(
        "PyTorch file with the weights of a backbone",
        metavar="FILE.pth",
        nargs="?",
        default=None,
    )
    detector: Path | None = option(
        "PyTorch or .safetensors file of a full RetinaNet, such as a checkpoint of torchvision's "
        "or MLPerf's scripts; or retinanet_resnet50_fpn or retinanet_resnet50_fpn_v2, to download "
        "torchvision's detector of COCO's classes; --out is then the folder of the new checkpoint",
        default=None,
        metavar="FILE",
    )
    classes: Path | None = option(
        "for --detector: annotations in COCO's format (ids below the number of outputs are output "
        "indices), or names of the outputs from 0 on, one per line or as a JSON list; not needed "
        "for the files that torchvision publishes",
        default=None,
        metavar="FILE",
    )
    image_size: int | tuple[int, int] | None = option(
        "for --detector: side of the square, or height and width, that images are resized to "
        "(default: 800)",
        default=None,
        parse=image_size_of,
        metavar="N|HxW",
    )
    resize: Literal["square", "letterbox"] | None = option(
        "for --detector: square stretches images, as MLPerf's reference does (default); letterbox "
        "keeps the aspect ratio and fills the square up, as for detectors of torchvision's "
        "scripts, which keep it too (default for the files that torchvision publishes)",
        default=None,
        choices=("square", "letterbox"),
    )
    norm_epsilon: float | None = option(
        "for --detector: what its norms add to the variances (default: 1e-5, or that of the file "
        "that torchvision publishes); 0 for detectors that torchvision's scripts trained further "
        "from its retinanet_resnet50_fpn",
        default=None,
        parse=probability,
        metavar="E",
    )
    out: Path = option("the .safetensors file, or the folder, to write", metavar="PATH")
    trust: bool = flag(
        "I trust the author of this file; needed for all files but those that torchvision "
        "publishes for model.backbone and model.weights, which are recognized by their hashes"
    )
    overwrite: bool = overwrite_option("replace --out if it exists")


def add_convert(commands: Commands) -> None:
    """Add `convert`."""
    add_command(
        commands,
        "convert",
        about=CONVERT_DESCRIPTION,
        options=ConvertOptions,
        run=run_convert,
    )


def run_convert(options: ConvertOptions) -> int:
    """Convert a backbone or a complete detector; return the exit code.

    Raises:
        InputError: The options contradict each other.
    """
    if (options.file is None) == (options.detector is None):
        raise InputError("command line: give either FILE.pth or --detector FILE")
    given: dict[str, Any] = {name: getattr(options, name) for name in ("out", "trust", "overwrite")}
    of_detector = {
        name: value
        for name in ("classes", "image_size", "resize", "norm_epsilon")
        if (value := getattr(options, name)) is not None
    }
    if options.detector is None:
        if of_detector:
            raise InputError(
                "command line: --classes, --image-size, --resize and --norm-epsilon need --detector"
            )
        name = "convert"
        given["file"] = options.file
    else:
        name = "convert_detector"
        given |= {"detector": options.detector, **of_detector}
    set_allocator("tuned")
    code: int = load_function(f"retinanet.training.convert:{name}")(**given)
    return code


COMPILE_DESCRIPTION = """\
Compile the C++ kernels into the program's folder, for all supported instruction sets, even those
that this processor lacks. Container images and read-only installations then need no compiler, and
the first start does not wait for one. Otherwise the first start of each user compiles them into
~/.cache/retinanet-cpu."""


def add_compile(commands: Commands) -> None:
    """Add `compile`."""
    add_command(commands, "compile", about=COMPILE_DESCRIPTION).set_defaults(run=run_compile)


def run_compile() -> int:
    """Compile all kernels; return the exit code."""
    code: int = load_function("retinanet.engine.kernel_calls:compile_kernels")()
    return code
