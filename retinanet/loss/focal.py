"""The classification loss (Lin et al., "Focal Loss for Dense Object Detection", eq. 5).

TODO-DOC The reference form of the focal loss: torchvision's, on one-hot targets.

TODO-DOC The paper's form of the focal loss: in-place ATen operations, explicit forward and backward.

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

TODO-DOC The paper's form of the focal loss with the backward pass that autograd derives by itself.

The paper compares it with the explicit one: "implicit autograd can be generated".
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from common.errors import InputError
from common.native import NativeLibraryError
from retinanet.loss.focal_kernel import FOCAL_LOSS, kernel_form
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


def paper_implicit_form(
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    *,
    alpha: float,
    gamma: float,
    reduce: bool,
) -> Tensor:
    """One level's loss by equation (3) of `focal_paper`, differentiated by autograd."""
    ignored = (classes == IGNORED).unsqueeze(-1)
    x = at_least_float32(logits).masked_fill(ignored, 0.0)
    y = one_hot_targets(x, classes)
    m, cross_entropy = paper_terms(x, y)
    loss = focal_product(m, cross_entropy, y, alpha=alpha, gamma=gamma)
    return weigh(loss.masked_fill_(ignored, 0.0), image_weights, reduce=reduce)


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


FORMS = {
    "kernel": kernel_form,
    "paper": paper_form,
    "paper_implicit": paper_implicit_form,
    "reference": reference_form,
}

FASTEST_WITHOUT_COMPILER = "paper"


@overload
def focal_loss(
    logits: Sequence[Tensor],
    classes: Sequence[Tensor],
    *,
    alpha: float = ...,
    gamma: float = ...,
    reduction: Literal["sum", "mean"] = ...,
    image_weights: Tensor | None = ...,
    form: str = ...,
) -> Tensor: ...


@overload
def focal_loss(
    logits: Sequence[Tensor],
    classes: Sequence[Tensor],
    *,
    alpha: float = ...,
    gamma: float = ...,
    reduction: Literal["none"],
    image_weights: Tensor | None = ...,
    form: str = ...,
) -> list[Tensor]: ...


def focal_loss(
    logits: Sequence[Tensor],
    classes: Sequence[Tensor],
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: Literal["none", "sum", "mean"] = "sum",
    image_weights: Tensor | None = None,
    form: str = "auto",
) -> Tensor | list[Tensor]:
    """Focal loss of every class at every anchor of N images, in float32, under autocast too.

    Args:
        logits: For each level [N, A_l, K], bfloat16 or float32 (float64 stays float64). No copy is
            made where the values of an image lie one after the other.
        classes: For each level int64 [N, A_l]: the label, or -1 for background (all K targets are
            0), or -2 for an anchor that does not count: its loss and gradient are 0 whatever its
            logits are.
        alpha: Weight of the class that an anchor is, 1 - alpha that of the others; below 0 leaves
            both unweighted, as in torchvision.
        gamma: How strongly what is easy counts less; 0 or more.
        reduction: "sum" and "mean" give a scalar over all levels, images and classes, and the mean
            is over the anchors that count, all K classes of each (0 if there is none). "none"
            gives the losses themselves, for each level [N, A_l, K].
        image_weights: [N], constants that each image's losses are multiplied by, before any
            reduction.
        form: A name in FORMS, all the same mathematics, or "auto": the kernel, or where that cannot
            be compiled the fastest of the others, which is said once on stderr.

    Raises:
        InputError: `form` is "kernel", and it cannot be compiled here.
        IndexError: A label is K or more.
    """
    compute = FORMS[choose_form(form)]
    if image_weights is None:
        image_weights = torch.ones(len(logits[0]), device=logits[0].device)
    if reduction == "mean":
        image_weights = image_weights / count_values(logits, classes)
    losses = [
        compute(
            level_logits,
            level_classes,
            image_weights,
            alpha=alpha,
            gamma=gamma,
            reduce=reduction != "none",
        )
        for level_logits, level_classes in zip(logits, classes, strict=True)
    ]
    return losses if reduction == "none" else torch.stack(losses).sum()


def count_values(logits: Sequence[Tensor], classes: Sequence[Tensor]) -> Tensor:
    """How many logits belong to anchors that count, at least 1."""
    counted = torch.stack([(level != IGNORED).sum() for level in classes]).sum()
    return (counted * logits[0].shape[2]).clamp(min=1)


def choose_form(form: str) -> str:
    """The form that computes, "auto" resolved.

    Raises:
        InputError: The kernel is asked for by name, and cannot be compiled here.
    """
    if form not in ("auto", "kernel"):
        return form
    problem = kernel_problem()
    if problem is None:
        return "kernel"
    if form == "kernel":
        raise InputError(f"focal loss: no kernel, as {problem}; or take the form auto")
    return FASTEST_WITHOUT_COMPILER


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def kernel_problem() -> str | None:
    """Why the kernel cannot be had, or None; torch.compile need not look inside."""
    return try_kernel()


@functools.cache
def try_kernel() -> str | None:
    """Compile and load the kernel; if that fails, say so on stderr and return why."""
    try:
        FOCAL_LOSS.library()
    except NativeLibraryError as error:
        problem = str(error).splitlines()[0]
        print(
            f"focal loss: the form {FASTEST_WITHOUT_COMPILER} instead of the kernel: {problem}",
            file=sys.stderr,
        )
        return problem
    return None


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
