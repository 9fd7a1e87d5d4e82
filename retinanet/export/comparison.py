"""Whether an exported program finds what the checkpoint finds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_iou

from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import detect_batch
from retinanet.export.formats import Detector
from retinanet.export.program import DETECTIONS_PER_IMAGE, NMS_IOU
from retinanet.model import Detections, RetinaNet

BOX_TOLERANCE = 0.05
"""[pixels of the network's input]"""
SCORE_TOLERANCE = 0.001
IOU_TOLERANCE = 0.001
"""Where a runtime's rounding may decide otherwise about what is kept."""


@dataclass(frozen=True)
class Comparison:
    """Two sets of detections side by side."""

    same: int
    """That both have, within the tolerances."""
    differing: int
    """That only one has, and rounding does not explain."""
    at_the_edge: int
    """That only one has, at an edge of what is kept: score, IoU, or number."""
    box_difference: float
    """The largest among those that both have. [pixels of the network's input]"""
    score_difference: float


def compare_program(
    model: RetinaNet, run: Detector, images: Tensor, *, score_threshold: float
) -> Comparison:
    """Detect in images by both, all at once, and the first also alone.

    Args:
        model: The checkpoint's, in evaluation mode; computes in float32.
        run: The exported program.
        images: uint8 [N, 3, S, S].
        score_threshold: That of the program.
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
    """A program's outputs image by image, without the rows that hold no detection."""
    columns = zip(*outputs, strict=True)
    return [
        Detections(boxes[scores > 0], scores[scores > 0], labels[scores > 0])
        for boxes, scores, labels in columns
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
    """Pairs of places: equal labels, boxes and scores within the tolerances, none twice."""
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
    """Whether a detection that `other` has not is one that rounding may add or drop."""
    score, label = float(one.scores[row]), one.labels[row]
    edges: Sequence[float] = [score_threshold]
    for detections in (one, other):
        if len(detections.scores) == DETECTIONS_PER_IMAGE:
            edges = [*edges, float(detections.scores[-1])]
    if any(abs(score - edge) <= SCORE_TOLERANCE for edge in edges):
        return True
    rivals = other.boxes[(other.labels == label) & (other.scores >= score - SCORE_TOLERANCE)]
    overlaps = box_iou(one.boxes[row][None], rivals)
    return bool(((overlaps - NMS_IOU).abs() <= IOU_TOLERANCE).any())
