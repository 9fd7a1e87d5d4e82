"""Sums and ReLU masks of maps in one pass over memory, by csrc/masked_sum.cpp where it can.

The C++ takes BF16 maps that lie alike in memory; everything else is left to torch's operators.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import have_same_layout, is_one_block
from retinanet.native_library import NativeLibraryError, load_library

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
