"""The loss of a batch over all levels: focal for classes; L1 of encoded deltas, or GIoU, for boxes.

The box loss counts foreground anchors only.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchvision.ops import generalized_box_iou_loss

from retinanet.loss.focal import focal_loss
from retinanet.model.anchors import decode_boxes, encode_boxes
from retinanet.model.matching import assign_targets
from retinanet.model.retinanet import HeadOutputs


def detection_loss(
    outputs: HeadOutputs,
    anchors: Sequence[Tensor],
    targets: Sequence[Mapping[str, Tensor]],
    *,
    focal_form: str = "auto",
    box_loss: str = "l1",
    class_weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the losses of N images: float32 scalars `classification` and `bbox_regression`.

    `anchors`: for each level [A_l, 4] xyxy pixels. `targets`: for each image `boxes` float32
    [M, 4] xyxy pixels of the network's input and `labels` int64 [M] in 0 … K-1; M may be 0. Each
    loss is summed over an image, divided by its foreground anchors (at least 1), and averaged
    over the batch, as torchvision's and MLPerf's RetinaNet do. `box_loss`: l1 or giou;
    `focal_form` and `class_weights`: see `focal_loss`. Computed in float32, under autocast too.
    """
    assert len(targets) == len(outputs.cls_logits[0]), f"{len(targets)} targets"
    device_type = outputs.cls_logits[0].device.type
    with torch.autocast(device_type, enabled=False):
        assignment = assign_targets(anchors, targets)
        scale = assignment.num_foreground.clamp(min=1)
        classification = focal_loss(
            outputs.cls_logits,
            assignment.classes,
            image_weights=1 / (scale * len(targets)),
            class_weights=class_weights,
            form=focal_form,
        )
        bbox_regression = [
            box_loss_sum(deltas, classes, boxes, anchors=level_anchors, kind=box_loss)
            for deltas, classes, boxes, level_anchors in zip(
                outputs.bbox_regression, assignment.classes, assignment.boxes, anchors, strict=True
            )
        ]
        return {
            "classification": classification,
            "bbox_regression": (torch.stack(bbox_regression).sum(dim=0) / scale).mean(),
        }


def box_loss_sum(
    deltas: Tensor, classes: Tensor, boxes: Tensor, *, anchors: Tensor, kind: str = "l1"
) -> Tensor:
    """Return the loss of the foreground anchors' boxes, summed for each image: float32 [N].

    l1: |predicted - target| deltas; giou: 1 - GIoU of predicted and true boxes (Rezatofighi et
    al., 2019).

    `deltas` [N, A, 4] of any floating type (dx, dy, dw, dh); `classes` int64 [N, A], negative
    where an anchor is not foreground; `boxes` [F, 4] xyxy pixels, the boxes of the F foreground
    anchors in the order of `(classes >= 0).nonzero()`; `anchors` [A, 4] xyxy pixels. As
    torchvision's RetinaNetRegressionHead.
    """
    image, anchor = (classes >= 0).nonzero(as_tuple=True)
    assert len(boxes) == len(image), f"{len(boxes)} boxes for {len(image)} foreground anchors"
    predicted, true = deltas[image, anchor].float(), boxes.float()
    if kind == "giou":
        difference = generalized_box_iou_loss(decode_boxes(predicted, anchors[anchor]), true)
    else:
        difference = (predicted - encode_boxes(true, anchors[anchor])).abs().sum(dim=1)
    zeros = torch.zeros(len(deltas), dtype=torch.float32, device=deltas.device)
    # An image without foreground anchors has no rows here, and a loss of 0.
    return zeros.index_add(0, image, difference)
