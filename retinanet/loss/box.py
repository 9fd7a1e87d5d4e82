"""The box loss: L1 on encoded deltas, at foreground anchors only."""

import torch
from torch import Tensor

from retinanet.model.boxes import encode_boxes


def l1_box_loss_sum(deltas: Tensor, classes: Tensor, boxes: Tensor, *, anchors: Tensor) -> Tensor:
    """Absolute differences between predicted and wanted deltas, summed for each image: float32 [N].

    `deltas` [N, A, 4] of any floating type (dx, dy, dw, dh); `classes` int64 [N, A], negative
    where an anchor is not foreground; `boxes` [F, 4] xyxy pixels, the boxes of the F foreground
    anchors in the order of `(classes >= 0).nonzero()`; `anchors` [A, 4] xyxy pixels. As
    torchvision's RetinaNetRegressionHead with its default "l1".
    """
    image, anchor = (classes >= 0).nonzero(as_tuple=True)
    assert len(boxes) == len(image), f"{len(boxes)} boxes for {len(image)} foreground anchors"
    wanted = encode_boxes(boxes.float(), anchors[anchor])
    difference = (deltas[image, anchor].float() - wanted).abs().sum(dim=1)
    zeros = torch.zeros(len(deltas), dtype=torch.float32, device=deltas.device)
    return zeros.index_add(0, image, difference)
