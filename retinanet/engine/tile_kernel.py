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
from retinanet.engine.tile_weights import PackedWeight, Tiles, tiles_for
from retinanet.native_library import load_library

SOURCE = Path(__file__).parent / "csrc" / "tile_convolution.cpp"


def outputs_of(
    inputs: Sequence[Tensor],
    weight: PackedWeight,
    bias: Tensor | None,
    *,
    relu: bool,
    tiles: Tiles | None = None,
) -> list[Tensor]:
    """Return the outputs of each level; `bias` float32 [O] or none.

    `tiles`: what computes the tile instructions, by default the processor's best.
    """
    packed, outputs = weight.for_outputs, weight.outputs
    return _convolved(inputs, packed, outputs, bias=bias, relu=relu, tiles=tiles)


def input_gradients(
    gradients: Sequence[Tensor],
    weight: PackedWeight,
    gates: Sequence[Tensor] = (),
    *,
    tiles: Tiles | None = None,
) -> list[Tensor]:
    """Return the inputs' gradients from the outputs'.

    Args:
        gradients: Of the outputs, [N, O, H, W] of each level.
        weight: Packed for gradients too.
        gates: None, or inputs that a ReLU returned: where they are not positive the gradient is
            zero, which makes it that of the ReLU's input.
        tiles: What computes the tile instructions, by default the processor's best.
    """
    assert weight.for_gradients is not None
    packed, inputs = weight.for_gradients, weight.inputs
    return _convolved(gradients, packed, inputs, gates=gates, tiles=tiles)


def _convolved(
    inputs: Sequence[Tensor],
    packed: Tensor,
    out_channels: int,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
    tiles: Tiles | None,
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
            tiles_for(tiles),
        )
    return outputs


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
        ("tile_convolution_scratch_bytes", size, [*work, flag]),
        ("tile_convolution", None, [*work, pointer, pointer, flag, pointer, flag, flag]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
