"""From logits and deltas to the boxes that are reported."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from retinanet.model.boxes import clip_boxes, decode_boxes
from retinanet.model.heads import HeadOutputs


class Detections(NamedTuple):
    """What was found in one image, best first."""

    boxes: Tensor
    """float32 [D, 4] xyxy, in pixels of the network's input unless they were resized since."""
    scores: Tensor
    """float32 [D], probabilities."""
    labels: Tensor
    """int64 [D], indices of the network's classes."""


@torch.no_grad()
def postprocess(
    outputs: HeadOutputs,
    anchors: Sequence[Tensor],
    image_size: tuple[int, int],
    *,
    score_threshold: float = 0.05,
    candidates_per_level: int = 1000,
    nms_iou: float = 0.5,
    detections_per_image: int = 300,
) -> list[Detections]:
    """The detections of each image of a batch.

    `anchors`: for each level [A_l, 4] xyxy pixels; `image_size`: (height, width) of the network's
    input. On each level the `candidates_per_level` best scores above `score_threshold` are kept
    (an anchor may answer for several classes), decoded and clipped; then non-maximum suppression
    within each class over all levels. As torchvision's RetinaNet.postprocess_detections, in
    float32 whatever the precision of the outputs.
    """
    detections = []
    for image in range(len(outputs.cls_logits[0])):
        levels = zip(outputs.cls_logits, outputs.bbox_regression, anchors, strict=True)
        candidates = [
            _level_candidates(
                logits[image].float(),
                deltas[image].float(),
                level_anchors,
                score_threshold=score_threshold,
                limit=candidates_per_level,
            )
            for logits, deltas, level_anchors in levels
        ]
        boxes, scores, labels = (torch.cat(parts) for parts in zip(*candidates, strict=True))
        boxes = clip_boxes(boxes, image_size)
        keep = batched_nms(boxes, scores, labels, nms_iou)[:detections_per_image]
        detections.append(Detections(boxes[keep], scores[keep], labels[keep]))
    return detections


def _level_candidates(
    logits: Tensor, deltas: Tensor, anchors: Tensor, *, score_threshold: float, limit: int
) -> Detections:
    """The best scores of one level of one image: logits [A, K], deltas and anchors [A, 4]."""
    scores = logits.sigmoid().flatten()
    index = (scores > score_threshold).nonzero().squeeze(1)
    scores, order = scores[index].topk(min(limit, len(index)))
    anchor_index = index[order] // logits.shape[1]
    labels = index[order] % logits.shape[1]
    return Detections(decode_boxes(deltas[anchor_index], anchors[anchor_index]), scores, labels)
