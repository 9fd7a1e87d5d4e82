"""The norm of all gradients of a step, and their clipping to a longest one."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The L2 norm of all gradients together: one number over all parameters that have one.

    It is infinite or NaN where a gradient is, and where the squares leave float32's range: Adam's
    second average would be infinite then.
    """
    # Gradients of IPEX's weights are BF16, in which torch would round the norm of each tensor.
    gradients = [gradient.float() for gradient in gradients_of(parameters)]
    return get_total_norm(gradients, foreach=True).item()


def clip_gradients(
    parameters: Iterable[nn.Parameter], *, norm: float, longest: float | None
) -> None:
    """Shorten all gradients by one factor, so that their norm is `longest`; shorter ones stay.

    Args:
        parameters: Those that the norm was taken of.
        norm: See `gradient_norm`; finite.
        longest: The norm that they may have; None: any.
    """
    if longest is not None and norm > longest:
        # In float32, as torch's own clip_grad_norm_ has it.
        total = torch.tensor(norm, dtype=torch.float32)
        clip_grads_with_norm_(parameters, longest, total, foreach=True)


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that there are."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
