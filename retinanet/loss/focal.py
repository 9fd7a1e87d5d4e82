"""The classification loss (Lin et al., "Focal Loss for Dense Object Detection", eq. 5)."""

import functools
import sys
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from retinanet.errors import InputError
from retinanet.loss.focal_kernel import SOURCE, kernel_form
from retinanet.loss.focal_paper import paper_form
from retinanet.loss.focal_paper_implicit import paper_implicit_form
from retinanet.loss.focal_reference import reference_form
from retinanet.model.matching import IGNORED
from retinanet.native_library import NativeLibraryError, load_library

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
        load_library(SOURCE)
    except NativeLibraryError as error:
        problem = str(error).splitlines()[0]
        print(
            f"focal loss: the form {FASTEST_WITHOUT_COMPILER} instead of the kernel: {problem}",
            file=sys.stderr,
        )
        return problem
    return None
