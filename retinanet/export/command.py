"""`retinanet export`: a checkpoint's detector as one file for other programs.

The file is kept only if its detections equal the checkpoint's: on images of the run's validation
split, on a picture of the user, or on synthetic images; one in INT8 only if its mAP is near.
"""

import json
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from common.console import make_console, print_line, progress
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import (
    new_folder_beside,
    or_refused,
    put_in_place,
    require_free_outputs,
    write_atomically,
)
from common.machine import require_packages
from common.outputs import require_no_input, require_space
from common.wording import counted
from data.annotations import Size, as_size, shown_size
from data.dataset import DetectionDataset
from data.decoding import decode_annotated, decode_image
from data.synthetic import draw_scene
from data.transforms import fit_image
from retinanet.commands import ExportOptions
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.command import read_trained, validation_split
from retinanet.evaluation.detect import detect_batch, to_original_size
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.output import Pixels, spread_indices
from retinanet.evaluation.tiles import detect_split_in_tiles
from retinanet.export import program
from retinanet.export.state_dict import STATE_DICTS
from retinanet.model.postprocess import DETECTIONS_PER_IMAGE, NMS_IOU, Detections
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Checkpoint

BOX_TOLERANCE = 0.05  # [pixels of the network's input]
SCORE_TOLERANCE = 0.001
IOU_TOLERANCE = 0.001  # Rounding of a runtime may change suppression within this
CHECK_IMAGES = 4
CALIBRATION_IMAGES = 300  # NNCF's default


KINDS = {
    "program": (
        program.FORMATS,
        "; use .onnx (ONNX) or .pt2 (torch.export); weights as .pth or .safetensors need --format "
        "torchvision, .xml needs --format openvino",
    ),
    "openvino": (
        program.INTERMEDIATE,
        " of OpenVINO's IR; use .xml, beside which the weights are a .bin",
    ),
    "torchvision": (
        STATE_DICTS,
        " of torchvision's weights; use .pth (torch.load) or .safetensors "
        "(safetensors.torch.load_file)",
    ),
}
"""Formats by `--format`, and how the message about another extension ends."""


def select_format(kind: str, out: Path) -> program.Format:
    """Return the format for `--format` and `--out`.

    Raises:
        InputError: The extension is none of it, or packages are missing.
    """
    formats, advice = KINDS[kind]
    chosen = formats.get(out.suffix)
    if chosen is None:
        extension = out.suffix or "(no extension)"
        raise InputError(f"--out: {out}: unknown format {extension}{advice}")
    require_packages(*chosen.packages, purpose=f"--out: {out}", install=chosen.install)
    return chosen


def export(options: ExportOptions) -> int:
    """Write the file, and keep it only if its detections equal the checkpoint's.

    The description goes to the same name with `.json` appended. Return 4 if INT8's mAP is too low.

    Raises:
        InputError: An input or the disk does not suffice, or the program has other detections.
    """
    out, score_threshold = options.out, options.score
    target = select_format(options.format, out)
    runtime = f"{target.runtime} {version(target.runtime)}"
    beside = out.with_name(f"{out.name}.json")
    weights = [out.with_suffix(".bin")] if options.format == "openvino" else []
    require_free_outputs([out, beside, *weights], overwrite=options.overwrite)
    trained = read_trained(options.checkpoint)
    require_no_input([out, beside, *weights], trained.folder.iterdir())
    split = calibration_split(options, trained)
    size = as_size(trained.model.image_size)
    size = size[::-1] if options.turned else size
    images, source = check_images(trained, options.image, size=size)
    model = trained.build_model().eval()
    description = target.describe(trained, size=size, score_threshold=score_threshold)
    console = make_console()
    with or_refused(out), new_folder_beside(out) as folder:
        require_space(out.parent, sum(each.nbytes for each in model.state_dict().values()))
        # Under its own name, since the suffix selects the format.
        made = folder / ("float32" if options.int8 else "") / out.name
        made.parent.mkdir(exist_ok=True)
        target.write(model, made, description)
        run = target.load(made, description)
        comparison = compare_program(model, run, images, score_threshold=score_threshold)
        if comparison.differing:
            raise InputError(
                f"{out}: not written: in {runtime}, {comparison.differing} boxes on {source} "
                f"differ from the checkpoint's by more than {BOX_TOLERANCE} pixels or "
                f"{SCORE_TOLERANCE} in score, {comparison.equal} are equal; try the other format"
            )
        if split is not None:
            description["int8"] = quantize_within(made, folder / out.name, split, size, options)
            if description["int8"] is None:
                return CONDITION_MET
        if weights:
            out.unlink(missing_ok=True)  # never beside the weights of another
        files = [out.with_name(file.name) for file in sorted(folder.glob("*.*"))]  # .bin first
        for file in files:
            put_in_place(folder / file.name, file)
    write_atomically(beside, json.dumps(description, ensure_ascii=False, indent=1))
    quality = "no mAP" if description["map"] is None else f"mAP {description['map']:.3f}"
    console.print(
        f"{trained.folder}, step {description['step']}, {quality} → {out} "
        f"({sum(file.stat().st_size for file in files) / 1e6:.0f} MB), {beside.name}",
        soft_wrap=True,
    )
    if size[0] != size[1]:
        other = "" if options.turned else "; --turned exports for the other orientation"
        text = f"note: takes {shown_size(size)} pixels for every picture, while predict turns them"
        print_line(console, f"{text}{other}")
    print_line(console, f"checked with {runtime} on {source}: {describe_comparison(comparison)}")
    return FINISHED


def calibration_split(options: ExportOptions, trained: Checkpoint) -> DetectionDataset | None:
    """Return the split for --int8, None without; raise InputError for options that do not fit."""
    if options.int8 and options.format != "openvino":
        raise InputError("command line: --int8: needs --format openvino")
    if options.int8:
        return validation_split(trained, annotations=options.annotations, images=options.images)
    if options.annotations or options.images:
        raise InputError("command line: --annotations and --images: need --int8")
    return None


def quantize_within(
    source: Path, file: Path, split: DetectionDataset, size: Size, options: ExportOptions
) -> dict[str, float] | None:
    """Write a float32 file in INT8; print and return the mAP before and after.

    Return None if it falls by more than --max-drop. Raises InputError if it is 0 before.
    """
    resize, console = split.rules.resize, make_console()
    fit = partial(fit_image, size=size, resize=resize)

    def measure_map(run: program.Detector) -> float:
        def detect(pixels: Pixels, **_: object) -> ImageDetections:
            [found] = split_detections(run(fit(pixels)[None]))
            shape = (pixels.shape[0], pixels.shape[1])
            return to_original_size(
                found, split.class_map, image_id=0, size=size, resize=resize, original_size=shape
            )

        found = detect_split_in_tiles(split, detect, console=console)
        return coco_metric(split.annotations, found).map

    before = measure_map(program.load_openvino(source, {}))
    if not before:
        raise InputError(
            f"{options.out}: not written: mAP 0 in float32 cannot fall; export without --int8"
        )
    rows = spread_indices(len(split), CALIBRATION_IMAGES)
    console.file = console.file  # so that it still prints where NNCF's own bars do not
    with progress(console, "calibration, images", total=len(rows)) as advance:

        def read(row: int) -> Tensor:
            advance(rows.index(row) + 1, "")
            return fit(decode_annotated(split.annotations, split.image_folder, row))

        program.quantize(source, file, read, rows)
    after = measure_map(program.load_openvino(file, {}, precision="int8"))
    numbers = f"mAP {before:.4f} in float32, {after:.4f} in INT8, on {len(split)} images"
    if before - after > options.max_drop:
        text = f"{numbers}: falls by more than --max-drop {options.max_drop:g}"
        print_line(console, f"FAILED: {options.out}: not written: {text}")
        return None
    print_line(console, f"INT8: {numbers}; calibrated on {len(rows)}")
    return {"images": len(rows), "map_float32": before, "map_int8": after}


class Comparison(NamedTuple):
    """The numbers of equal and different detections of two sets, and the largest differences."""

    equal: int  # In both, within the tolerances
    differing: int  # In one only, and rounding does not explain it
    at_the_edge: int  # In one only, at the limit of score, IoU or number of boxes
    box_difference: float  # [pixels of the network's input]
    score_difference: float


def describe_comparison(comparison: Comparison) -> str:
    """Return the comparison on one line."""
    if not comparison.equal:
        return (
            "no boxes in either, which proves little; give --image a picture with objects, or a "
            "lower --score"
        )
    text = (
        f"{counted(comparison.equal, 'equal box', 'equal boxes')}, largest differences "
        f"{comparison.box_difference:.1g} pixels (limit {BOX_TOLERANCE}) and "
        f"{comparison.score_difference:.1g} in score (limit {SCORE_TOLERANCE})"
    )
    if comparison.at_the_edge:
        text += (
            f"; {comparison.at_the_edge} more differ by rounding at a limit (score, IoU, number)"
        )
    return text


def compare_program(
    model: RetinaNet, run: program.Detector, images: Tensor, *, score_threshold: float
) -> Comparison:
    """Compare the detections of both in images, uint8 [N, 3, H, W]; also of the first image alone.

    The model is in evaluation mode and computes in float32.
    """
    images = images.contiguous()
    forward = torch_forward(model, precision="float32")
    expected = detect_batch(model, images, forward=forward, score_threshold=score_threshold)
    # A batch of one as well: torch.export specializes programs for sizes of 0 and 1.
    alone = split_detections(run(images[:1]))
    pairs = [*zip(expected, split_detections(run(images)), strict=True), (expected[0], alone[0])]
    parts = [compare(*pair, score_threshold=score_threshold) for pair in pairs]
    return Comparison(
        # The last pair has the first image again, alone: its boxes are not counted twice.
        equal=sum(part.equal for part in parts[: len(images)]),
        differing=sum(part.differing for part in parts),
        at_the_edge=sum(part.at_the_edge for part in parts),
        box_difference=max(part.box_difference for part in parts),
        score_difference=max(part.score_difference for part in parts),
    )


def split_detections(outputs: tuple[Tensor, Tensor, Tensor]) -> list[Detections]:
    """Return a program's outputs per image, without unused rows."""
    return [
        Detections(boxes[scores > 0], scores[scores > 0], labels[scores > 0])
        for boxes, scores, labels in zip(*outputs, strict=True)
    ]


def compare(expected: Detections, actual: Detections, *, score_threshold: float) -> Comparison:
    """Pair equal detections of one image, each with the nearest; boxes in pixels of the input."""
    pairs = list(matches(expected, actual))
    rows, columns = ([pair[side] for pair in pairs] for side in (0, 1))
    boxes = (expected.boxes[rows] - actual.boxes[columns]).abs()
    scores = (expected.scores[rows] - actual.scores[columns]).abs()
    unpaired = [
        *((expected, row, actual) for row in range(len(expected.scores)) if row not in rows),
        *((actual, row, expected) for row in range(len(actual.scores)) if row not in columns),
    ]
    edge = sum(
        is_at_the_edge(*detection, score_threshold=score_threshold) for detection in unpaired
    )
    return Comparison(
        equal=len(pairs),
        differing=len(unpaired) - edge,
        at_the_edge=edge,
        box_difference=float(boxes.max()) if pairs else 0.0,
        score_difference=float(scores.max()) if pairs else 0.0,
    )


def matches(expected: Detections, actual: Detections) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices with equal labels, and boxes and scores within the tolerances."""
    if not len(expected.scores) or not len(actual.scores):
        return
    boxes = (expected.boxes[:, None] - actual.boxes[None]).abs().amax(dim=2)
    scores = (expected.scores[:, None] - actual.scores[None]).abs()
    fits = (boxes <= BOX_TOLERANCE) & (scores <= SCORE_TOLERANCE)
    fits &= expected.labels[:, None] == actual.labels[None]
    distance = torch.where(fits, boxes, torch.inf)
    for row in range(len(boxes)):
        column = int(distance[row].argmin())
        if distance[row, column] < torch.inf:
            yield row, column
            distance[:, column] = torch.inf  # no detection is paired twice


def is_at_the_edge(
    detections: Detections, row: int, other: Detections, *, score_threshold: float
) -> bool:
    """Return whether rounding may explain that a detection is missing in `other`."""
    score, label = float(detections.scores[row]), detections.labels[row]
    # The last score of a full list is a limit as well.
    full = [side for side in (detections, other) if len(side.scores) == DETECTIONS_PER_IMAGE]
    edges = [score_threshold, *(float(side.scores[-1]) for side in full)]
    if any(abs(score - edge) <= SCORE_TOLERANCE for edge in edges):
        return True
    # A rival whose IoU is near the limit may have suppressed the box on one side only.
    rivals = other.boxes[(other.labels == label) & (other.scores >= score - SCORE_TOLERANCE)]
    overlaps = box_iou(detections.boxes[row][None], rivals)
    return bool(((overlaps - NMS_IOU).abs() <= IOU_TOLERANCE).any())


def check_images(checkpoint: Checkpoint, image: Path | None, *, size: Size) -> tuple[Tensor, str]:
    """Return images uint8 [N, 3, *size] for the checkpoint's network, and a text that names them.

    These are the user's picture, or images of the run's validation split, or, if that is missing,
    synthetic images. Raises InputError if the user's picture cannot be read.
    """
    resize = checkpoint.model.resize
    if image is not None:
        pixels = decode_image(image, apply_exif_orientation=True)
        return fit_image(pixels, size=size, resize=resize)[None], str(image)
    try:
        split = validation_split(checkpoint, annotations=None, images=None)
        pictures = [
            decode_annotated(split.annotations, split.image_folder, index)
            for index in spread_indices(len(split.annotations), CHECK_IMAGES)
        ]
        source = f"{len(pictures)} validation images"
    except InputError:
        random = Random(0)
        pictures = [np.asarray(draw_scene(random)[0]) for _ in range(CHECK_IMAGES)]
        source = f"{CHECK_IMAGES} synthetic images (the run's validation images are missing)"
    # Copies: torch warns about arrays that share the read-only buffer of Pillow.
    inputs = [fit_image(pixels.copy(), size=size, resize=resize) for pixels in pictures]
    return torch.stack(inputs), source
