"""Sums and ReLU masks of maps in one pass over memory, by csrc/masked_sum.cpp where it can.

The C++ takes BF16 maps that lie alike in memory; everything else is left to torch's operators.

TODO-DOC ReLU whose gradient is taken where its result is read, so that each pass over memory counts.

What comes back to the result of a ReLU is summed over its readers and then masked: where the
result is zero, so is the gradient of the ReLU's input. Both can be done in one pass, or by the
reader as it writes. So `convolve(relu=True)`, `relu_by_readers` and `add_relu` leave the mask to
their readers, which are either one `convolve(gated=True)` or those behind `branches`. Masking twice
changes nothing.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from common.native import NativeLibraryError, load_library
from retinanet.engine.kernel_calls import own_kernel
from retinanet.engine.optimizers import have_same_layout, is_one_block

SOURCE = Path(__file__).parent / "csrc" / "masked_sum.cpp"
MOST_TERMS = 4


def masked_sum_(terms: Sequence[Tensor], gate: Tensor) -> Tensor:
    """Sum up to four maps, zero the sum where `gate` is not positive, and return it.

    The result overwrites the first term, if it can. All have one shape and precision. `gate` is
    what a ReLU returned, and the sum becomes the gradient of the ReLU's input.
    """
    first, *others = terms
    library = _library_for([*terms, gate])
    if library is None:
        total = first
        for term in others:
            total = total.add_(term)
        return torch.ops.aten.threshold_backward(total, gate, 0)
    places = (ctypes.c_void_p * len(others))(*(other.data_ptr() for other in others))
    values, threads = first.numel(), torch.get_num_threads()
    with own_kernel("masked_sum", (*terms, gate), (first,)):
        library.masked_sum(first.data_ptr(), places, len(terms), gate.data_ptr(), values, threads)
    return first


def add_relu_(maps: Tensor, added: Tensor) -> Tensor:
    """`maps` becomes `relu(maps + added)`."""
    library = _library_for([maps, added])
    if library is None:
        return maps.add_(added).relu_()
    values, threads = maps.numel(), torch.get_num_threads()
    with own_kernel("add_relu", (maps, added), (maps,)):
        library.add_relu(maps.data_ptr(), added.data_ptr(), values, threads)
    return maps


def _library_for(maps: Sequence[Tensor]) -> ctypes.CDLL | None:
    first = maps[0]
    suitable = is_one_block(first) and all(
        one.dtype == torch.bfloat16 and one.shape == first.shape and have_same_layout(one, first)
        for one in maps
    )
    return library() if suitable else None


@functools.cache
def library(*, instruction_set: str | None = None) -> ctypes.CDLL | None:
    """Compile and load the kernel, once; None where that fails."""
    try:
        loaded = load_library(SOURCE, instruction_set=instruction_set)
    except NativeLibraryError:
        return None
    pointer, size, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    loaded.masked_sum.argtypes = [pointer, pointer, size, pointer, size, count]
    loaded.add_relu.argtypes = [pointer, pointer, size, count]
    loaded.masked_sum.restype = loaded.add_relu.restype = None
    return loaded


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
