"""The classification loss (Lin et al., "Focal Loss for Dense Object Detection", eq. 5)."""

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from retinanet.model.matching import IGNORED


def sigmoid_focal_loss_sum(
    logits: Tensor, classes: Tensor, *, alpha: float = 0.25, gamma: float = 2.0
) -> Tensor:
    """Focal loss of every class at every anchor, summed for each image: float32 [N].

    `logits` [N, A, K] of any floating type; `classes` int64 [N, A]: the label, or -1 for
    background (all K targets are 0), or -2 for an anchor that does not count. This is the
    reference form: torchvision's sigmoid_focal_loss on one-hot targets, in float32.
    """
    num_images, num_anchors, _ = logits.shape
    assert classes.shape == (num_images, num_anchors), (logits.shape, classes.shape)
    ignored = (classes == IGNORED).unsqueeze(-1)
    # Masked before as well as after: a logit that is not finite must not reach the gradient.
    counted_logits = logits.float().masked_fill(ignored, 0.0)
    image, anchor = (classes >= 0).nonzero(as_tuple=True)
    targets = torch.zeros_like(counted_logits)
    targets[image, anchor, classes[image, anchor]] = 1.0
    loss: Tensor = sigmoid_focal_loss(counted_logits, targets, alpha=alpha, gamma=gamma)
    return loss.masked_fill(ignored, 0.0).sum(dim=(1, 2))
