"""`python -m retinanet export`: a checkpoint's detector as one file for other programs.

The file is kept only if it finds what the checkpoint finds: on images of the run's validation
split, on a picture of the user's, or on synthetic images.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from common.console import make_console
from common.errors import FINISHED, InputError
from common.files import require_free_outputs, write_whole
from data.decoding import decode_image
from data.synthetic import draw_scene
from data.transforms import resize_image
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.command import read_trained, validation_split
from retinanet.evaluation.detect import detect_batch
from retinanet.evaluation.output import spread_images
from retinanet.export.program import Detector, description_of, format_of, write_program
from retinanet.model.postprocess import DETECTIONS_PER_IMAGE, NMS_IOU, Detections
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import Checkpoint

BOX_TOLERANCE = 0.05  # [pixels of the network's input]
SCORE_TOLERANCE = 0.001
IOU_TOLERANCE = 0.001  # Where a runtime's rounding may decide otherwise about what is kept
CHECK_IMAGES = 4


def export(
    *, checkpoint: Path, out: Path, score_threshold: float, image: Path | None, overwrite: bool
) -> int:
    """Write the file, and keep it only if it finds what the checkpoint finds.

    `out` ends in `.onnx` or `.pt2`; its description goes beside it, with `.json` behind. `image` is
    a picture to check it on; None: validation images of the run.

    Raises:
        InputError: A file is missing or not what it should be, packages are missing, an output
            exists, or the program finds something else.
    """
    file_format = format_of(out)
    runtime = f"{file_format.runtime} {version(file_format.runtime)}"
    beside = out.with_name(f"{out.name}.json")
    require_free_outputs([out, beside], overwrite=overwrite)
    trained = read_trained(checkpoint)
    images, what = check_images(trained, image)
    model = trained.build_model().eval()
    description = description_of(trained, score_threshold=score_threshold)
    console = make_console()
    partial = out.with_name(f".{out.stem}.partial{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_program(model, partial, classes=trained.model.num_classes, description=description)
        run = file_format.load(partial)
        comparison = compare_program(model, run, images, score_threshold=score_threshold)
        if comparison.differing:
            raise InputError(
                f"{out}: not kept: run by {runtime} on {what} it does not find what "
                f"the checkpoint finds: {comparison.differing} boxes differ by more than "
                f"{BOX_TOLERANCE} pixels or {SCORE_TOLERANCE} of a score, {comparison.same} are "
                "the same; try the other format"
            )
        partial.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; set --out") from error
    finally:
        partial.unlink(missing_ok=True)
    write_whole(beside, json.dumps(description, ensure_ascii=False, indent=1))
    quality = "no mAP" if description["map"] is None else f"mAP {description['map']:.3f}"
    console.print(
        f"{trained.folder}, step {description['step']}, {quality} → {out} "
        f"({out.stat().st_size / 1e6:.0f} MB), {beside.name}",
        soft_wrap=True,
    )
    checked = f"checked by {runtime} on {what}: {describe_comparison(comparison)}"
    console.print(checked, soft_wrap=True)
    return FINISHED


class Comparison(NamedTuple):
    """Two sets of detections side by side: numbers of detections, and the largest differences."""

    same: int  # Both have them, within the tolerances
    differing: int  # Only one has them, and rounding does not explain it
    at_the_edge: int  # Only one has them, at an edge of what is kept: score, IoU, or number
    box_difference: float  # [pixels of the network's input]
    score_difference: float


def describe_comparison(comparison: Comparison) -> str:
    """Return how near the two are, in a line."""
    if not comparison.same:
        return (
            "neither it nor the checkpoint finds a box there, which says little; give --image a "
            "picture with objects, or a lower --score"
        )
    boxes = "box" if comparison.same == 1 else "boxes"
    text = (
        f"the same {comparison.same} {boxes}, at most {comparison.box_difference:.1g} pixels "
        f"({BOX_TOLERANCE} allowed) and {comparison.score_difference:.1g} of a score "
        f"({SCORE_TOLERANCE} allowed) apart"
    )
    if comparison.at_the_edge:
        text += f"; {comparison.at_the_edge} more at the edge of what is kept differ by rounding"
    return text


def compare_program(
    model: RetinaNet, run: Detector, images: Tensor, *, score_threshold: float
) -> Comparison:
    """Detect in images, uint8 [N, 3, S, S], by both, all at once, and the first also alone.

    The model is in evaluation mode, and computes in float32.
    """
    images = images.contiguous()
    forward = torch_forward(model, precision="float32")
    wanted = detect_batch(model, images, forward=forward, score_threshold=score_threshold)
    alone = detections_of(run(images[:1]))
    pairs = [*zip(wanted, detections_of(run(images)), strict=True), (wanted[0], alone[0])]
    parts = [compare(one, other, score_threshold=score_threshold) for one, other in pairs]
    return Comparison(
        same=sum(part.same for part in parts[: len(images)]),
        differing=sum(part.differing for part in parts),
        at_the_edge=sum(part.at_the_edge for part in parts),
        box_difference=max(part.box_difference for part in parts),
        score_difference=max(part.score_difference for part in parts),
    )


def detections_of(outputs: tuple[Tensor, Tensor, Tensor]) -> list[Detections]:
    """Return a program's outputs image by image, without the rows that hold no detection."""
    return [
        Detections(boxes[scores > 0], scores[scores > 0], labels[scores > 0])
        for boxes, scores, labels in zip(*outputs, strict=True)
    ]


def compare(wanted: Detections, found: Detections, *, score_threshold: float) -> Comparison:
    """Pair equal detections of one image, each with the nearest; boxes in the same pixels."""
    pairs = list(matches(wanted, found))
    rows, columns = ([pair[side] for pair in pairs] for side in (0, 1))
    boxes = (wanted.boxes[rows] - found.boxes[columns]).abs()
    scores = (wanted.scores[rows] - found.scores[columns]).abs()
    single = [
        *((wanted, row, found) for row in range(len(wanted.scores)) if row not in rows),
        *((found, row, wanted) for row in range(len(found.scores)) if row not in columns),
    ]
    edge = sum(
        is_at_the_edge(one, row, other, score_threshold=score_threshold)
        for one, row, other in single
    )
    return Comparison(
        same=len(pairs),
        differing=len(single) - edge,
        at_the_edge=edge,
        box_difference=float(boxes.max()) if pairs else 0.0,
        score_difference=float(scores.max()) if pairs else 0.0,
    )


def matches(wanted: Detections, found: Detections) -> Iterator[tuple[int, int]]:
    """Yield pairs of places: equal labels, boxes and scores within the tolerances, none twice."""
    if not len(wanted.scores) or not len(found.scores):
        return
    boxes = (wanted.boxes[:, None] - found.boxes[None]).abs().amax(dim=2)
    scores = (wanted.scores[:, None] - found.scores[None]).abs()
    fits = (boxes <= BOX_TOLERANCE) & (scores <= SCORE_TOLERANCE)
    fits &= wanted.labels[:, None] == found.labels[None]
    distance = torch.where(fits, boxes, torch.inf)
    for row in range(len(boxes)):
        column = int(distance[row].argmin())
        if distance[row, column] < torch.inf:
            yield row, column
            distance[:, column] = torch.inf


def is_at_the_edge(one: Detections, row: int, other: Detections, *, score_threshold: float) -> bool:
    """Return whether a detection that `other` has not is one that rounding may add or drop."""
    score, label = float(one.scores[row]), one.labels[row]
    full = [side for side in (one, other) if len(side.scores) == DETECTIONS_PER_IMAGE]
    edges = [score_threshold, *(float(side.scores[-1]) for side in full)]
    if any(abs(score - edge) <= SCORE_TOLERANCE for edge in edges):
        return True
    rivals = other.boxes[(other.labels == label) & (other.scores >= score - SCORE_TOLERANCE)]
    overlaps = box_iou(one.boxes[row][None], rivals)
    return bool(((overlaps - NMS_IOU).abs() <= IOU_TOLERANCE).any())


def check_images(checkpoint: Checkpoint, image: Path | None) -> tuple[Tensor, str]:
    """Return images uint8 [N, 3, S, S] for the checkpoint's network, and a name for them.

    They are the user's picture, or of the run's validation split, or, where that is missing,
    synthetic. Raises InputError where the user's picture cannot be read.
    """
    size = checkpoint.model.image_size
    if image is not None:
        pixels = decode_image(image, apply_exif_orientation=True)
        return resize_image(pixels, size)[None], str(image)
    try:
        split = validation_split(checkpoint, annotations=None, images=None)
        images = spread_images(split.annotations, split.image_folder, count=CHECK_IMAGES)
        pictures = [pixels for _, pixels in images]
        what = f"{len(pictures)} validation images"
    except InputError:
        random = Random(0)
        pictures = [np.asarray(draw_scene(random)[0]) for _ in range(CHECK_IMAGES)]
        what = f"{CHECK_IMAGES} drawn scenes, as the run's validation images are not here"
    return torch.stack([resize_image(pixels.copy(), size) for pixels in pictures]), what
