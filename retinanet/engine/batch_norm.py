"""Batch norms that train, with the sum and the ReLU behind them, by csrc/batch_norm.cpp.

The C++ takes BF16 maps in channels_last memory; everything else is left to torch's operators.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from common.native import NativeLibraryError, load_library
from retinanet.engine.kernel_calls import own_kernel
from retinanet.engine.masked_sum import add_relu, relu_by_readers
from retinanet.engine.optimizers import channels_last

SOURCE = Path(__file__).parent / "csrc" / "batch_norm.cpp"


class _Norm(ctypes.Structure):
    """`Norm` as the C++ has it."""

    _fields_ = (
        ("pixels", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("mean", ctypes.c_void_p),
        ("inverse", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
    )


def batch_norm(
    maps: Tensor, norm: nn.BatchNorm2d, added: Tensor | None = None, *, relu: bool = False
) -> Tensor:
    """Return `norm(maps)`, plus `added` if given, with a ReLU if asked for.

    The norm's running statistics follow, as when it is called. The ReLU's gradient is left to the
    readers of the result, see relu.py.

    Args:
        maps: [N, C, H, W], more than one value of each channel.
        norm: In training mode, with weights and running statistics.
        added: Of the maps' shape; with `relu` only.
        relu: Whether negative results become zero; NaN stays.
    """
    assert relu or added is None
    if maps.dtype != torch.bfloat16 or not _suits(norm) or library() is None:
        normed: Tensor = norm(maps)
        if added is not None:
            return add_relu(normed, added)
        return relu_by_readers(normed) if relu else normed
    result, mean, variance = _BatchNorm.apply(maps, norm.weight, norm.bias, added, norm.eps, relu)
    _follow(norm, mean, variance, values=maps.numel() // maps.shape[1])
    made: Tensor = result
    return made


def _suits(norm: nn.BatchNorm2d) -> bool:
    return (
        norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        and norm.weight.dtype == torch.float32
    )


def _follow(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, *, values: int) -> None:
    """Move the running statistics towards those of a batch; the variance as an unbiased one."""
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None and norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (values / (values - 1)), norm.momentum)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        added, eps, relu = rest
        maps, weight, bias = channels_last(maps), weight.contiguous(), bias.contiguous()
        mean, inverse, variance = torch.empty(3, len(weight)).unbind()
        result = torch.empty_like(maps, memory_format=torch.channels_last)
        others = None if added is None else channels_last(added)
        found = library()
        assert found is not None
        record = _record(maps, weight, bias, mean, inverse)
        read = (maps,) if others is None else (maps, others)
        with own_kernel("batch_norm_forward", read, (result,)):
            found.batch_norm_forward(
                ctypes.byref(record[0]),
                maps.data_ptr(),
                None if others is None else others.data_ptr(),
                result.data_ptr(),
                variance.data_ptr(),
                eps,
                relu,
                torch.get_num_threads(),
            )
        ctx.save_for_backward(maps, weight, bias, mean, inverse)
        ctx.has_added = added is not None
        ctx.mark_non_differentiable(mean, variance)
        return result, mean, variance

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, bias, mean, inverse = ctx.saved_tensors
        slopes = channels_last(gradient)
        of_maps = torch.empty_like(maps, memory_format=torch.channels_last)
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(bias)
        found = library()
        assert found is not None
        record = _record(maps, weight, bias, mean, inverse)
        with own_kernel("batch_norm_backward", (maps, slopes), (of_maps,)):
            found.batch_norm_backward(
                ctypes.byref(record[0]),
                slopes.data_ptr(),
                maps.data_ptr(),
                of_maps.data_ptr(),
                of_weight.data_ptr(),
                of_bias.data_ptr(),
                torch.get_num_threads(),
            )
        of_added = gradient if ctx.has_added else None
        return of_maps, of_weight, of_bias, of_added, None, None


def _record(
    maps: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[_Norm, Tensor]:
    """The C++'s record, and the scratch memory in it, which has to outlive the call."""
    channels = maps.shape[1]
    pixels = maps.numel() // channels
    found = library()
    assert found is not None
    sums = torch.empty(found.batch_norm_sums(pixels, channels))
    places = [one.data_ptr() for one in (weight, bias, mean, inverse, sums)]
    return _Norm(pixels, channels, *places), sums


@functools.cache
def library(*, instruction_set: str | None = None) -> ctypes.CDLL | None:
    """Compile and load the kernel, once; None where that fails."""
    try:
        loaded = load_library(SOURCE, instruction_set=instruction_set)
    except NativeLibraryError:
        return None
    pointer, size, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    loaded.batch_norm_sums.restype, loaded.batch_norm_sums.argtypes = size, [size, size]
    loaded.batch_norm_forward.restype = loaded.batch_norm_backward.restype = None
    loaded.batch_norm_forward.argtypes = [*[pointer] * 5, ctypes.c_double, count, count]
    loaded.batch_norm_backward.argtypes = [*[pointer] * 6, count]
    return loaded
