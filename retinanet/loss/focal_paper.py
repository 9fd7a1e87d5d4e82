"""The paper's form of the focal loss: in-place ATen operations, explicit forward and backward.

Fu et al., "Deep Learning Models on CPUs: A Methodology for Efficient Training", section 2.8 and its
appendices. With p = sigmoid(x), y the one-hot target and alpha_t = 1 - alpha + (2 alpha - 1) y,
the loss of one class at one anchor is

    (1)  L = alpha_t (1 - p_t)^gamma CE,   p_t = p y + (1 - p)(1 - y),
         CE = -y log p - (1 - y) log(1 - p)

For real x and y, log p = x - log(1 + e^x) and log(1 - p) = -log(1 + e^x), so that

    (2)  CE = log(1 + e^x) - x y
         (1 - p_t)^2 = (p + y (1 - 2 p))^2 = p^2 + y (1 - 2 p) + (1 - 2 p)^2 y (y - 1)

and because y is 0 or 1, the term with y (y - 1) goes. What is left, for any gamma, is

    (3)  L = alpha_t m^gamma (log(1 + e^x) - x y),   m = 1 - p_t = p + y (1 - 2 p)

For the backward pass, dp/dx = p (1 - p), which for binary y is m (1 - m), and
d CE / dx = p - y = (1 - 2 y) m, so that

    dL/dx = alpha_t (1 - 2 y) m^gamma (gamma (1 - m) CE + m)
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.loss.focal_reference import at_least_float32, one_hot_targets, weigh
from retinanet.model.matching import IGNORED


def paper_form(
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    *,
    alpha: float,
    gamma: float,
    reduce: bool,
) -> Tensor:
    """One level's loss by the paper's forward and backward; see `focal_loss`."""
    loss = PaperFocalLoss.apply(logits, classes, alpha, gamma)
    return weigh(loss, image_weights, reduce=reduce)


class PaperFocalLoss(torch.autograd.Function):
    """Equation (3) and its derivative; nothing is saved that the derivative does not need."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor, alpha: float, gamma: float) -> Tensor:
        """Loss of each class at each anchor, [N, A, K], zero where an anchor is ignored."""
        x = at_least_float32(logits)
        y = one_hot_targets(x, classes)
        m, cross_entropy = paper_terms(x, y)
        loss = focal_product(m, cross_entropy, y, alpha=alpha, gamma=gamma)
        ctx.save_for_backward(classes, m, cross_entropy, y)
        ctx.alpha, ctx.gamma, ctx.dtype = alpha, gamma, logits.dtype
        return loss.index_put_(((classes == IGNORED),), loss.new_zeros(()))

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of the logits, in their dtype."""
        classes, m, cross_entropy, y = ctx.saved_tensors
        gradient = m.neg().add_(1).mul_(cross_entropy).mul_(ctx.gamma).add_(m)
        gradient = gradient.mul_(m.pow(ctx.gamma)).mul_(upstream)
        gradient = gradient.mul_(alpha_factor(y, ctx.alpha)).mul_(y.mul(-2).add_(1))
        gradient.index_put_(((classes == IGNORED),), gradient.new_zeros(()))
        return gradient.to(ctx.dtype), None, None, None


def paper_terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """m and the cross entropy of equation (3)."""
    p = torch.sigmoid(x)
    m = p.mul(-2).add_(1).mul_(y).add_(p)
    return m, F.softplus(x).addcmul_(x, y, value=-1)


def focal_product(
    m: Tensor, cross_entropy: Tensor, y: Tensor, *, alpha: float, gamma: float
) -> Tensor:
    """Equation (3) from its terms."""
    return m.pow(gamma).mul_(cross_entropy).mul_(alpha_factor(y, alpha))


def alpha_factor(y: Tensor, alpha: float) -> Tensor:
    """alpha_t; 1 where alpha is negative, as in torchvision."""
    if alpha < 0:
        return y.new_ones(())
    return y.mul(2 * alpha - 1).add_(1 - alpha)
