"""The reference form of the focal loss: torchvision's, on one-hot targets."""

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from retinanet.model.matching import IGNORED


def reference_form(
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    *,
    alpha: float,
    gamma: float,
    reduce: bool,
) -> Tensor:
    """One level's loss by torchvision.ops.sigmoid_focal_loss; see `focal_loss`."""
    ignored = (classes == IGNORED).unsqueeze(-1)
    # Masked before as well as after: a logit that is not finite must not reach the gradient.
    counted_logits = at_least_float32(logits).masked_fill(ignored, 0.0)
    targets = one_hot_targets(counted_logits, classes)
    loss = sigmoid_focal_loss(counted_logits, targets, alpha=alpha, gamma=gamma)
    return weigh(loss.masked_fill(ignored, 0.0), image_weights, reduce=reduce)


def at_least_float32(logits: Tensor) -> Tensor:
    """The logits in the dtype that losses are computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def one_hot_targets(logits: Tensor, classes: Tensor) -> Tensor:
    """1 at the class of each foreground anchor, else 0: [N, A, K] as the logits."""
    image, anchor = (classes >= 0).nonzero(as_tuple=True)
    targets = torch.zeros_like(logits, requires_grad=False)
    targets[image, anchor, classes[image, anchor]] = 1.0
    return targets


def weigh(loss: Tensor, image_weights: Tensor, *, reduce: bool) -> Tensor:
    """Each image's loss times its weight, added up if wanted."""
    weights = image_weights.to(loss.dtype)
    if reduce:
        return (loss.sum(dim=(1, 2)) * weights).sum()
    return loss * weights[:, None, None]
