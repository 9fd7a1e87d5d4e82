"""Our own form of the focal loss: one C++ pass over the logits gives loss and gradient.

It reads each logit once, in its own dtype, computes in float32, and writes the gradient once. It is
registered as torch's operator `retinanet::focal_loss`, for autograd and torch.compile; autocast
does not change it.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retinanet.engine.kernel_calls import Kernels

FUNCTIONS = {
    torch.bfloat16: "focal_loss_bfloat16",
    torch.float32: "focal_loss_float32",
    torch.float64: "focal_loss_float64",
}
FOCAL_LOSS = Kernels(
    Path(__file__).parent / "csrc" / "focal_loss.cpp",
    **dict.fromkeys(FUNCTIONS.values(), "PPPPPPPPddi->i"),
)


def allocate(logits: Tensor, *, reduce: bool, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """Allocate the loss, [] or [N, A, K], and the gradient, [N, A, K] or None."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    loss = logits.new_empty(() if reduce else logits.shape, dtype=dtype)
    return loss, logits.new_empty(logits.shape if with_gradient else (0,))


@torch.library.custom_op("retinanet::focal_loss", mutates_args=(), device_types="cpu")
def focal_loss_operator(
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    class_weights: Tensor | None = None,
    *,
    alpha: float,
    gamma: float,
    reduce: bool,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Return one level's loss and its gradient by the logits; see `level_loss` for the arguments.

    The gradient, in the dtype of the logits, is empty unless `with_gradient`. The weights are
    constants, and there is no second derivative.

    Raises:
        IndexError: A label is K or more.
        NativeLibraryError: The kernel cannot be compiled here.
    """
    assert class_weights is None or class_weights.shape == logits.shape[2:], class_weights
    # No copy where each image's values lie one after the other.
    logits, classes = (
        tensor if tensor[:1].is_contiguous() else tensor.contiguous()
        for tensor in (logits, classes)
    )
    weights, of_classes = (
        None if tensor is None else tensor.to(torch.float64).contiguous()
        for tensor in (image_weights, class_weights)
    )
    loss, gradient = allocate(logits, reduce=reduce, with_gradient=with_gradient)
    total = ctypes.c_double()
    labels_are_valid = getattr(FOCAL_LOSS.library(), FUNCTIONS[logits.dtype])(
        logits,
        classes,
        weights,
        of_classes,
        gradient if with_gradient else None,
        None if reduce else loss,
        ctypes.byref(total),
        (ctypes.c_long * 5)(*logits.shape, logits.stride(0), classes.stride(0)),
        alpha,
        gamma,
        torch.get_num_threads(),
    )
    if not labels_are_valid:
        raise IndexError(f"label {int(classes.max())} with {logits.shape[2]} classes")
    return (loss.fill_(total.value) if reduce else loss), gradient


@focal_loss_operator.register_fake
def _shapes(
    logits: Tensor, *_: Any, reduce: bool, with_gradient: bool, **__: Any
) -> tuple[Tensor, Tensor]:
    return allocate(logits, reduce=reduce, with_gradient=with_gradient)


def _keep_gradient(ctx: Any, output: tuple[Tensor, Tensor], **_unused: Any) -> None:
    _, gradient = output
    # Otherwise torch makes zeros of the gradient's size for nothing.
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(gradient)
    ctx.save_for_backward(gradient)


def _scale_gradient(
    ctx: Any, upstream: Tensor | None, _: None
) -> tuple[Tensor | None, None, None, None]:
    (gradient,) = ctx.saved_tensors
    if upstream is None:
        return None, None, None, None
    # The usual factor costs no pass over memory. (Tracing's tensors are of other types: no value.)
    if type(upstream) is Tensor and upstream.dim() == 0 and upstream.item() == 1:
        return gradient, None, None, None
    return (gradient * upstream).to(gradient.dtype), None, None, None


focal_loss_operator.register_autograd(
    torch.autograd.function.once_differentiable(_scale_gradient), setup_context=_keep_gradient
)
