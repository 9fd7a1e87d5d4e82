"""The classification loss, in four forms (Lin et al., "Focal Loss for Dense Object Detection").

`kernel` is C++ of our own (focal_kernel.py), `reference` torchvision's on one-hot targets. `paper`
is that of Fu et al., "Deep Learning Models on CPUs: A Methodology for Efficient Training", section
2.8 and its appendices: in-place ATen operations, explicit forward and backward; `paper_implicit` is
the same with the backward pass that autograd derives, which the paper compares it with. With
p = sigmoid(x), y the one-hot target and alpha_t = 1 - alpha + (2 alpha - 1) y, the loss of a class
at an anchor is (Lin et al., eq. 5)

    (1)  L = alpha_t (1 - p_t)^gamma CE,   p_t = p y + (1 - p)(1 - y),
         CE = -y log p - (1 - y) log(1 - p)

For real x and y, log p = x - log(1 + e^x) and log(1 - p) = -log(1 + e^x), so that

    (2)  CE = log(1 + e^x) - x y
         (1 - p_t)^2 = (p + y (1 - 2 p))^2 = p^2 + y (1 - 2 p) + (1 - 2 p)^2 y (y - 1)

and because y is 0 or 1, the term with y (y - 1) goes. What remains, for any gamma, is

    (3)  L = alpha_t m^gamma (log(1 + e^x) - x y),   m = 1 - p_t = p + y (1 - 2 p)

For the backward pass, dp/dx = p (1 - p), which for binary y is m (1 - m), and
d CE / dx = p - y = (1 - 2 y) m, so that

    dL/dx = alpha_t (1 - 2 y) m^gamma (gamma (1 - m) CE + m)
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from common.errors import InputError
from common.native import NativeLibraryError
from retinanet.loss.focal_kernel import FOCAL_LOSS, focal_loss_operator
from retinanet.model.matching import IGNORED

FORMS = ("kernel", "paper", "paper_implicit", "reference")  # All the same mathematics
FASTEST_WITHOUT_COMPILER = "paper"


def focal_loss(
    logits: Sequence[Tensor],
    classes: Sequence[Tensor],
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
    image_weights: Tensor | None = None,
    class_weights: Tensor | None = None,
    form: str = "auto",
) -> Tensor:
    """Return the focal loss of N images, summed over levels, anchors and classes.

    Computed in float32, under autocast too.

    Args:
        logits: For each level [N, A_l, K], bfloat16 or float32 (float64 stays float64). No copy is
            made where the values of an image lie one after the other.
        classes: For each level int64 [N, A_l]: the label, or -1 for background (all K targets are
            0), or -2 for an anchor that does not count: its loss and gradient are 0 whatever its
            logits are.
        alpha: Weight of the class that an anchor is, 1 - alpha that of the others; below 0 leaves
            both unweighted, as in torchvision.
        gamma: Exponent of the factor for easy classes; 0 or more.
        image_weights: [N], constants that each image's losses are multiplied by.
        class_weights: [K], constants that multiply the loss of the class that an anchor is, beside
            `alpha`; the losses of its K - 1 other classes have no weight. None: all 1.
        form: One of FORMS, or "auto": the kernel, or where that cannot be compiled the fastest of
            the others, with one line on stderr.

    Raises:
        InputError: `form` is "kernel", and it cannot be compiled here.
        IndexError: A label is K or more.
    """
    if form in ("auto", "kernel"):
        problem = kernel_problem()
        if problem is not None and form == "kernel":
            raise InputError(
                f"focal loss: the kernel is not available: {problem}; use the form auto"
            )
        form = "kernel" if problem is None else FASTEST_WITHOUT_COMPILER
    if image_weights is None:
        image_weights = torch.ones(len(logits[0]), device=logits[0].device)
    losses = [
        level_loss(form, *level, image_weights, class_weights, alpha=alpha, gamma=gamma)
        for level in zip(logits, classes, strict=True)
    ]
    return torch.stack(losses).sum()


def level_loss(
    form: str,
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    class_weights: Tensor | None = None,
    *,
    alpha: float,
    gamma: float,
    reduce: bool = True,
) -> Tensor:
    """Return one level's loss, each image's times its weight: the sum, or [N, A, K].

    `form` is one of `FORMS`; the other arguments are those of `focal_loss` for one level.
    """
    if form == "kernel":
        with_gradient = torch.is_grad_enabled() and logits.requires_grad
        values, _ = focal_loss_operator(
            logits, classes, image_weights, class_weights,
            alpha=alpha, gamma=gamma, reduce=reduce, with_gradient=with_gradient,
        )  # fmt: skip
        return values
    if form == "paper":
        loss = PaperFocalLoss.apply(logits, classes, alpha, gamma)
    else:
        ignored = (classes == IGNORED).unsqueeze(-1)
        # Masked before as well as after: a logit that is not finite must not reach the gradient.
        x = at_least_float32(logits).masked_fill(ignored, 0.0)
        y = one_hot_targets(x, classes)
        if form == "reference":
            loss = sigmoid_focal_loss(x, y, alpha=alpha, gamma=gamma)
        else:
            assert form == "paper_implicit", form
            m, cross_entropy = paper_terms(x, y)
            loss = m.pow(gamma).mul_(cross_entropy).mul_(alpha_factor(y, alpha))
        loss = loss.masked_fill(ignored, 0.0)
    if class_weights is not None:
        image, anchor = (classes >= 0).nonzero(as_tuple=True)
        places = image, anchor, classes[image, anchor]
        factors = class_weights.to(loss.dtype)[places[2]]
        loss = loss.index_put(places, loss[places] * factors)
    weights = image_weights.to(loss.dtype)
    if reduce:
        return (loss.sum(dim=(1, 2)) * weights).sum()
    return loss * weights[:, None, None]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def kernel_problem() -> str | None:
    """Return why the kernel is not available, or None; torch.compile takes it as a constant."""
    return try_kernel()


@functools.cache
def try_kernel() -> str | None:
    """Compile and load the kernel; if that fails, print why on stderr and return it."""
    try:
        FOCAL_LOSS.library()
    except NativeLibraryError as error:
        problem = str(error).splitlines()[0]
        print(
            f"focal loss: using the form {FASTEST_WITHOUT_COMPILER} instead of the kernel: "
            f"{problem}",
            file=sys.stderr,
        )
        return problem
    return None


def at_least_float32(logits: Tensor) -> Tensor:
    """Return the logits in the dtype that losses are computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def one_hot_targets(logits: Tensor, classes: Tensor) -> Tensor:
    """Return 1 at the class of each foreground anchor, else 0: [N, A, K] as the logits."""
    image, anchor = (classes >= 0).nonzero(as_tuple=True)
    targets = torch.zeros_like(logits, requires_grad=False)
    targets[image, anchor, classes[image, anchor]] = 1.0
    return targets


class PaperFocalLoss(torch.autograd.Function):
    """Equation (3) and its derivative, which saves only what the derivative needs."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor, alpha: float, gamma: float) -> Tensor:
        """Return the loss of each class at each anchor, [N, A, K], zero where one is ignored."""
        x = at_least_float32(logits)
        y = one_hot_targets(x, classes)
        m, cross_entropy = paper_terms(x, y)
        loss = m.pow(gamma).mul_(cross_entropy).mul_(alpha_factor(y, alpha))
        # m and the cross entropy are kept, not the logits: the backward pass then needs neither
        # exponentials nor logarithms.
        ctx.save_for_backward(classes, m, cross_entropy, y)
        ctx.alpha, ctx.gamma, ctx.dtype = alpha, gamma, logits.dtype
        return loss.index_put_(((classes == IGNORED),), loss.new_zeros(()))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the logits, in their dtype."""
        classes, m, cross_entropy, y = ctx.saved_tensors
        gradient = m.neg().add_(1).mul_(cross_entropy).mul_(ctx.gamma).add_(m)
        gradient = gradient.mul_(m.pow(ctx.gamma)).mul_(upstream)
        gradient = gradient.mul_(alpha_factor(y, ctx.alpha)).mul_(y.mul(-2).add_(1))
        gradient.index_put_(((classes == IGNORED),), gradient.new_zeros(()))
        return gradient.to(ctx.dtype), None, None, None


def paper_terms(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return m and the cross entropy of equation (3)."""
    p = torch.sigmoid(x)
    m = p.mul(-2).add_(1).mul_(y).add_(p)
    # softplus is log(1 + e^x) without overflow for large x.
    return m, F.softplus(x).addcmul_(x, y, value=-1)


def alpha_factor(y: Tensor, alpha: float) -> Tensor:
    """Return alpha_t; 1 where alpha is negative, as in torchvision."""
    if alpha < 0:
        return y.new_ones(())
    return y.mul(2 * alpha - 1).add_(1 - alpha)
