"""The C++ of csrc/tile_convolution.cpp, called with tensors.

Convolutions are dense, 3×3, of stride 1 and padding 1. Maps are BF16 [N, C, H, W], one for each
level; what is not in channels_last memory is copied.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import aligned_bytes, channels_last
from retinanet.engine.levels import level_records
from retinanet.native_library import NativeLibraryError, load_library
from retinanet.processor import cpu_flags

SOURCE = Path(__file__).parent / "csrc" / "tile_convolution.cpp"


def outputs_of(
    inputs: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    *,
    relu: bool,
    emulated: bool = False,
) -> list[Tensor]:
    """Return the outputs of each level; `weight` BF16 [O, I, 3, 3], `bias` float32 [O] or none.

    `emulated` computes the same without the processor's tiles, slowly.
    """
    assert emulated or has_tile_kernel()  # which also asks the system for tiles
    packed = _packed(weight, turned=False)
    return _convolved(inputs, packed, len(weight), bias=bias, relu=relu, emulated=emulated)


def input_gradients(
    gradients: Sequence[Tensor],
    weight: Tensor,
    gates: Sequence[Tensor] = (),
    *,
    emulated: bool = False,
) -> list[Tensor]:
    """Return the inputs' gradients from the outputs'; `weight` BF16 [O, I, 3, 3].

    Args:
        gradients: Of the outputs, [N, O, H, W] of each level.
        gates: None, or inputs that a ReLU returned: where they are not positive the gradient is
            zero, which makes it that of the ReLU's input.
    """
    assert emulated or has_tile_kernel()
    packed = _packed(weight, turned=True)
    return _convolved(gradients, packed, weight.shape[1], gates=gates, emulated=emulated)


def _packed(weight: Tensor, *, turned: bool) -> Tensor:
    """Return the weight in the order in which the kernel reads it."""
    assert weight.dtype == torch.bfloat16
    weight = channels_last(weight)
    inputs, outputs = weight.shape[:2] if turned else (weight.shape[1], weight.shape[0])
    packed = aligned_bytes(2 * library().tile_convolution_weight_values(inputs, outputs))
    with own_kernel("tile_convolution_pack", (weight,), (packed,)):
        library().tile_convolution_pack(
            weight.data_ptr(), *weight.shape[:2], turned, packed.data_ptr(), torch.get_num_threads()
        )
    return packed


def _convolved(
    inputs: Sequence[Tensor],
    packed: Tensor,
    out_channels: int,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
    emulated: bool,
) -> list[Tensor]:
    inputs = [channels_last(level) for level in inputs]
    gates = [channels_last(gate) for gate in gates]
    threads = torch.get_num_threads()
    shapes = [(len(level), out_channels, *level.shape[2:]) for level in inputs]
    outputs = [
        torch.empty(shape, dtype=torch.bfloat16, memory_format=torch.channels_last)
        for shape in shapes
    ]
    work = (level_records(inputs, outputs, gates), len(inputs), inputs[0].shape[1], out_channels)
    scratch = aligned_bytes(library().tile_convolution_scratch_bytes(*work, threads))
    read = (*inputs, *gates, packed) if bias is None else (*inputs, *gates, packed, bias)
    with own_kernel("tile_convolution", read, outputs):
        library().tile_convolution(
            *work,
            packed.data_ptr(),
            bias.data_ptr() if bias is not None else None,
            relu,
            scratch.data_ptr(),
            threads,
            emulated,
        )
    return outputs


@functools.cache
def has_tile_kernel() -> bool:
    """Whether the processor has AMX's BF16 tiles, this process may use them, and it compiles."""
    if "amx_bf16" not in cpu_flags():
        return False
    try:
        return bool(library().tile_convolution_permitted())
    except NativeLibraryError:
        return False


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    work = [pointer, size, size, size]
    for name, result, arguments in (
        ("tile_convolution_permitted", flag, []),
        ("tile_convolution_weight_values", size, [size, size]),
        ("tile_convolution_pack", None, [pointer, size, size, flag, pointer, flag]),
        ("tile_convolution_scratch_bytes", size, [*work, flag]),
        ("tile_convolution", None, [*work, pointer, pointer, flag, pointer, flag, flag]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
