"""The C++ of csrc/tile_convolution.cpp, called with tensors.

Convolutions are dense, 3×3, of stride 1 and padding 1. Maps are BF16 [N, C, H, W], one for each
level; what is not in channels_last memory is copied.

TODO-DOC The C++ of csrc/tile_weights.cpp, called with tensors: weights as AMX's kernels read them.
"""

import ctypes
import functools
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from common.machine import cpu_flags
from common.native import CPU_FLAGS_NEEDED, NativeLibraryError, load_library
from retinanet.engine.kernel_calls import level_records, own_kernel
from retinanet.engine.optimizers import aligned_bytes, channels_last

SOURCE = Path(__file__).parent / "csrc" / "tile_convolution.cpp"


class PackedWeight(NamedTuple):
    """A convolution's weight, rounded to BF16, in tiles."""

    for_outputs: Tensor
    for_gradients: Tensor | None
    """For the input's gradient, if that is wanted."""
    outputs: int
    inputs: int


class Tiles(IntEnum):
    """What computes the tile instructions, as csrc/tiles.h has it."""

    AMX = 0
    VECTORS = 1
    """AVX-512 BF16."""
    EMULATED = 2
    """Plain C++, slow, for tests on any processor."""


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


WEIGHTS_SOURCE = Path(__file__).parent / "csrc" / "tile_weights.cpp"

BLOCK = 32
"""Numbers of channels are rounded up to multiples of this, with zeros."""


@functools.cache
def best_tiles() -> Tiles | None:
    """Return the fastest that this processor has, or None where it has neither or C++ fails.

    It asks Linux for the permission to use AMX's tiles, which all kernels need.
    """
    flags = cpu_flags()
    if not {"avx512_bf16", *CPU_FLAGS_NEEDED["x86-64-v4"]} <= flags:
        return None
    try:
        permitted = bool(weights_library().tile_weights_permitted())
    except NativeLibraryError:
        return None
    return Tiles.AMX if permitted and "amx_bf16" in flags else Tiles.VECTORS


def tiles_for(asked: Tiles | None) -> Tiles:
    """Return what is asked for, or else the processor's best."""
    tiles = best_tiles() if asked is None else asked
    assert tiles is not None
    return tiles


def has_tiles() -> bool:
    """Whether the processor has AMX's BF16 tiles and this process may use them."""
    return best_tiles() is Tiles.AMX


class _Weights(ctypes.Structure):
    """`Weights` as the C++ has it."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("taps", ctypes.c_int64),
    )


def pack_weight(
    weight: Tensor, scale: Tensor | None = None, *, for_gradients: bool = False
) -> PackedWeight:
    """Return `weight * scale`, rounded once to BF16, in the order in which the kernels read it.

    Args:
        weight: [O, I, h, w] of one group, float32; others are converted.
        scale: Of each output, [O], or None.
        for_gradients: Whether input gradients will be wanted too.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    weight = channels_last(weight.detach().float())
    outputs, inputs, *size = weight.shape
    taps = size[0] * size[1]
    scale = None if scale is None else scale.detach().float().contiguous()
    record = _Weights(
        weight.data_ptr(), None if scale is None else scale.data_ptr(), outputs, inputs, taps
    )
    tiles = -(-outputs // BLOCK) * -(-inputs // BLOCK) * taps
    packed = [aligned_bytes(2 * BLOCK * BLOCK * tiles) for _ in range(1 + for_gradients)]
    backward = packed[1] if for_gradients else None
    with own_kernel("tile_weights_pack", (weight,), packed):
        weights_library().tile_weights_pack(
            ctypes.byref(record),
            packed[0].data_ptr(),
            None if backward is None else backward.data_ptr(),
            torch.get_num_threads(),
        )
    return PackedWeight(packed[0], backward, outputs, inputs)


@functools.cache
def weights_library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(WEIGHTS_SOURCE)
    pointer = ctypes.c_void_p
    loaded.tile_weights_permitted.restype = ctypes.c_int32
    loaded.tile_weights_pack.restype = None
    loaded.tile_weights_pack.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
    return loaded
