"""ReLU whose gradient is taken where its result is read, so that each pass over memory counts.

What comes back to the result of a ReLU is summed over its readers and then masked: where the
result is zero, so is the gradient of the ReLU's input. Both can be done in one pass, or by the
reader as it writes. So `convolve(relu=True)`, `relu_by_readers` and `add_relu` leave the mask to
their readers, which are either one `convolve(gated=True)` or those behind `branches`. Masking twice
changes nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retinanet.engine.masked_sum import add_relu_, masked_sum_


def relu_by_readers(maps: Tensor) -> Tensor:
    """`relu(maps)`, which overwrites `maps`; its readers mask the gradient."""
    result: Tensor = _Relu.apply(maps)
    return result


def add_relu(maps: Tensor, added: Tensor) -> Tensor:
    """`relu(maps + added)`, which overwrites `maps`; its readers mask the gradient."""
    result: Tensor = _AddRelu.apply(maps, added)
    return result


def branches(maps: Tensor, count: int) -> Sequence[Tensor]:
    """What a ReLU returned, for up to four readers: the sum of their gradients is masked.

    A reader may be left out. The gradient from the first that is not is overwritten: it has to be
    a tensor that this reader made, as convolutions and pooling do.
    """
    if not maps.requires_grad:
        return [maps] * count
    readers: tuple[Tensor, ...] = _Branches.apply(maps, count)
    return readers


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        ctx.mark_dirty(maps)
        return maps.relu_()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _AddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, added: Tensor) -> Tensor:
        ctx.mark_dirty(maps)
        return add_relu_(maps, added)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(maps)
        return tuple(maps.detach() for _ in range(count))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        [gate] = ctx.saved_tensors
        terms = [gradient for gradient in gradients if gradient is not None]
        return (masked_sum_(terms, gate) if terms else None), None
