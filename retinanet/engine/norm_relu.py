"""ReLUs, residual sums and batch norms that train, each in one pass over memory.

The C++ of csrc/masked_sum.cpp and csrc/batch_norm.cpp takes BF16 maps that lie alike in memory, in
channels_last for the norms; everything else is left to torch's operators.

The gradient of a ReLU is taken where its result is read: what comes back to the result is summed
over its readers and then masked: where the result is zero, so is the gradient of the ReLU's input.
Both can be done in one pass, or by the reader as it writes. So `convolve(relu=True)`,
`add_relu` and `batch_norm` leave the mask to their readers, which are either one
`convolve(gated=True)` or those behind `branches`. Masking twice changes nothing.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    c_struct,
    channels_last,
    channels_last_or_none,
    have_same_layout,
    is_one_block,
    suits_kernels,
)

MASKED_SUM = Kernels(CSRC / "masked_sum.cpp", masked_sum="PPqPqi", add_relu="PPqi")
BATCH_NORM = Kernels(
    CSRC / "batch_norm.cpp",
    batch_norm_sums="qq->q",
    batch_norm_forward="PPPPPdii",
    batch_norm_backward="PPPPPPi",
)


def masked_sum_(terms: Sequence[Tensor], gate: Tensor) -> Tensor:
    """Sum up to four maps, zero the sum where `gate` is zero or negative, and return it.

    The result overwrites the first term, if it can. All have one shape and precision. `gate` is
    what a ReLU returned, and the sum becomes the gradient of the ReLU's input.
    """
    first, *others = terms
    if not _suits_masked_sum([*terms, gate]):
        total = first
        for term in others:
            total = total.add_(term)
        return torch.ops.aten.threshold_backward(total, gate, 0)
    addresses = (ctypes.c_void_p * len(others))(*(other.data_ptr() for other in others))
    MASKED_SUM.call(
        "masked_sum",
        first, addresses, len(terms), gate, first.numel(), torch.get_num_threads(),
        read=(*terms, gate), written=(first,),
    )  # fmt: skip
    return first


def add_relu_(maps: Tensor, added: Tensor) -> Tensor:
    """Put `relu(maps + added)` into `maps`, and return it."""
    if not _suits_masked_sum([maps, added]):
        return maps.add_(added).relu_()
    MASKED_SUM.call(
        "add_relu", maps, added, maps.numel(), torch.get_num_threads(),
        read=(maps, added), written=(maps,),
    )  # fmt: skip
    return maps


def _suits_masked_sum(maps: Sequence[Tensor]) -> bool:
    first = maps[0]
    suitable = is_one_block(first) and all(
        term.dtype == torch.bfloat16 and term.shape == first.shape and have_same_layout(term, first)
        for term in maps
    )
    return suitable and MASKED_SUM.are_available()


def add_relu(maps: Tensor, added: Tensor | None = None) -> Tensor:
    """Return `relu(maps + added)`, which overwrites `maps`; its readers mask the gradient."""
    result: Tensor = _AddRelu.apply(maps, added)
    return result


def branches(maps: Tensor, count: int) -> Sequence[Tensor]:
    """Return a ReLU's result for up to four readers: the sum of their gradients is masked.

    Not all need to send a gradient. The first one is overwritten: it has to be a tensor that its
    reader made, as convolutions and pooling do.
    """
    if not maps.requires_grad:
        return [maps] * count
    readers: tuple[Tensor, ...] = _Branches.apply(maps, count)
    return readers


class _AddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, added: Tensor | None) -> Tensor:
        ctx.mark_dirty(maps)
        return maps.relu_() if added is None else add_relu_(maps, added)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        return gradient, gradient if ctx.needs_input_grad[1] else None


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, count: int) -> tuple[Tensor, ...]:
        # A reader without gradient gives None, not a map of zeros that would be summed for nothing.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(maps)
        return tuple(maps.detach() for _ in range(count))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        [gate] = ctx.saved_tensors
        terms = [gradient for gradient in gradients if gradient is not None]
        return (masked_sum_(terms, gate) if terms else None), None


_norm_record = c_struct("q pixels channels", "P weight bias mean inverse sums")
"""`Norm` as batch_norm.cpp has it."""


def batch_norm(
    maps: Tensor, norm: nn.BatchNorm2d, added: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """Return `norm(maps)` of maps [N, C, H, W], plus `added`, then optionally ReLU; NaN stays.

    The norm is in training mode, and its running statistics follow, as when it is called. The
    ReLU's gradient is left to the readers of the result. `added` is for `relu` only.
    """
    assert relu or added is None
    if not (suits_kernels(maps) and _suits_batch_norm(norm)):
        normed: Tensor = norm(maps)
        return add_relu(normed, added) if relu else normed
    normed, mean, variance = _BatchNorm.apply(maps, norm.weight, norm.bias, added, norm.eps, relu)
    # The running statistics move towards those of the batch, the variance as an unbiased one.
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None and norm.momentum is not None
    values = maps.numel() // maps.shape[1]
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (values / (values - 1)), norm.momentum)
    return normed


def _suits_batch_norm(norm: nn.BatchNorm2d) -> bool:
    return (
        norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        and norm.weight.dtype == torch.float32
        and BATCH_NORM.are_available()
    )


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        added, eps, relu = options
        maps, weight, bias = channels_last(maps), weight.contiguous(), bias.contiguous()
        mean, inverse, variance = torch.empty(3, len(weight)).unbind()
        result = torch.empty_like(maps, memory_format=torch.channels_last)
        ctx.has_added, added = added is not None, channels_last_or_none(added)
        record, _sums = _norm_of(maps, weight, bias, mean, inverse)
        BATCH_NORM.call(
            "batch_norm_forward",
            record, maps, added, result, variance, eps, relu, torch.get_num_threads(),
            read=(maps, added), written=(result,),
        )  # fmt: skip
        ctx.save_for_backward(maps, weight, bias, mean, inverse)
        # Returned for the running statistics, which the caller updates outside of the graph.
        ctx.mark_non_differentiable(mean, variance)
        return result, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, bias, mean, inverse = ctx.saved_tensors
        slopes = channels_last(gradient)
        grad_maps = torch.empty_like(maps, memory_format=torch.channels_last)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        record, _sums = _norm_of(maps, weight, bias, mean, inverse)
        BATCH_NORM.call(
            "batch_norm_backward",
            record, slopes, maps, grad_maps, grad_weight, grad_bias, torch.get_num_threads(),
            read=(maps, slopes), written=(grad_maps,),
        )  # fmt: skip
        return grad_maps, grad_weight, grad_bias, gradient if ctx.has_added else None, None, None


def _norm_of(maps: Tensor, *vectors: Tensor) -> tuple[bytes, Tensor]:
    """Return the record of a norm of maps, and the scratch memory that it points to."""
    channels = maps.shape[1]
    pixels = maps.numel() // channels
    sums = torch.empty(BATCH_NORM.library().batch_norm_sums(pixels, channels))
    return _norm_record(pixels, channels, *vectors, sums), sums
