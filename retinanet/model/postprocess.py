"""Postprocessing: from logits and deltas to the boxes that are reported."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import nms

from retinanet.model.anchors import clip_boxes, decode_boxes
from retinanet.model.retinanet import HeadOutputs

CANDIDATES_PER_LEVEL = 1000
DETECTIONS_PER_IMAGE = 300
NMS_IOU = 0.5  # As torchvision and MLPerf's reference have them
ROWS_PER_CANDIDATE = 4
"""Above this many anchors for each candidate, searching a higher threshold first is faster."""


class Detections(NamedTuple):
    """The detections in one image, best first."""

    boxes: Tensor
    """float32 [D, 4] xyxy, in pixels of the network's input unless they were resized since."""
    scores: Tensor  # float32 [D], probabilities
    labels: Tensor  # int64 [D], indices of the network's classes


@torch.no_grad()
def postprocess(
    outputs: HeadOutputs,
    anchors: Sequence[Tensor],
    image_size: tuple[int, int],
    *,
    score_threshold: float = 0.05,
    candidates_per_level: int = CANDIDATES_PER_LEVEL,
    nms_iou: float = NMS_IOU,
    detections_per_image: int = DETECTIONS_PER_IMAGE,
) -> list[Detections]:
    """Return the detections of each image of a batch.

    `anchors`: for each level [A_l, 4] xyxy pixels; `image_size`: (height, width) of the network's
    input. On each level the `candidates_per_level` best scores above `score_threshold` are kept
    (an anchor may answer for several classes), decoded and clipped; then non-maximum suppression
    within each class over all levels. As torchvision's RetinaNet.postprocess_detections, in
    float32 whatever the precision of the outputs. The order of equal scores is not defined.
    """
    # All logits are read once, here; the steps after this one read those of few anchors.
    best_logits = [_largest_logits(logits) for logits in outputs.cls_logits]
    detections = []
    for image in range(len(outputs.cls_logits[0])):
        levels = zip(outputs.cls_logits, outputs.bbox_regression, anchors, best_logits, strict=True)
        candidates = [
            _level_candidates(
                logits[image],
                deltas[image],
                level_anchors,
                best_logits=best[image],
                score_threshold=score_threshold,
                limit=candidates_per_level,
            )
            for logits, deltas, level_anchors, best in levels
        ]
        boxes, scores, labels = (torch.cat(parts) for parts in zip(*candidates, strict=True))
        clipped = Detections(clip_boxes(boxes, image_size), scores, labels)
        detections.append(
            _best_unsuppressed(clipped, image_size, iou=nms_iou, limit=detections_per_image)
        )
    return detections


def _largest_logits(logits: Tensor) -> Tensor:
    """Return each anchor's largest logit over its classes: [N, A] of [N, A, K].

    If one is NaN, the result is NaN or the largest of the others.
    """
    if logits.dtype != torch.bfloat16:
        return logits.amax(dim=-1)
    # torch reduces BF16 at a fifth of the speed of integers. Bits of positive numbers grow with
    # the number, those of negative ones, which are negative as integers, with its magnitude.
    bits = logits.view(torch.int16)
    largest = bits.amax(dim=-1)
    return torch.where(largest >= 0, largest, bits.amin(dim=-1)).view(torch.bfloat16)


def _level_candidates(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    *,
    best_logits: Tensor,
    score_threshold: float,
    limit: int,
) -> Detections:
    """Return the best scores of one level of one image.

    `logits` [A, K], `deltas` and `anchors` [A, 4], `best_logits` [A] the largest of each row.
    """
    if score_threshold <= 0:
        below = -math.inf
    else:
        # A logit whose score is just below the threshold, in float32 too. It may be rounded to
        # BF16: no BF16 number above a number is below that number rounded.
        score = min(score_threshold, 1.0) * (1 - 1e-6)
        below = math.log(score) - math.log1p(-score)
    # Not `>`: a row with a NaN may hold good scores too.
    rows = (~(best_logits < below)).nonzero().squeeze(1)
    # Early in training nearly all anchors have some score above the threshold. But where `limit`
    # anchors reach a logit, no lower one can be among the `limit` best.
    if len(rows) > ROWS_PER_CANDIDATE * limit:
        reached = best_logits.nan_to_num(nan=-math.inf).topk(limit).values[-1]
        rows = (~(best_logits < reached)).nonzero().squeeze(1)
    scores = logits[rows].float().sigmoid().flatten()
    index = (scores > score_threshold).nonzero().squeeze(1)
    scores, order = scores[index].topk(min(limit, len(index)))
    anchor_index = rows[index[order] // logits.shape[1]]
    labels = index[order] % logits.shape[1]
    boxes = decode_boxes(deltas[anchor_index].float(), anchors[anchor_index])
    return Detections(boxes, scores, labels)


def _best_unsuppressed(
    candidates: Detections, image_size: tuple[int, int], *, iou: float, limit: int
) -> Detections:
    """Return the `limit` best that no better one of their class overlaps by more than `iou`.

    The boxes are inside the image. Suppression depends on better detections only, so that they are
    processed a few at a time until there are enough.
    """
    boxes, scores, labels = candidates
    # Each class is shifted by the size of an image, so that boxes of different classes cannot
    # overlap: one call for all classes. In float32 large offsets would cost the last digits.
    apart = boxes.double() + (labels * max(image_size))[:, None]
    selected = labels[:0]
    for few in scores.argsort(descending=True, stable=True).split(2 * limit):
        selected = torch.cat((selected, few))
        selected = selected[nms(apart[selected], scores[selected].double(), iou)]
        if len(selected) >= limit:
            break
    selected = selected[:limit]
    return Detections(boxes[selected], scores[selected], labels[selected])
