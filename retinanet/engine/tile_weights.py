"""The C++ of csrc/tile_weights.cpp, called with tensors: weights as AMX's kernels read them."""

import ctypes
import functools
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import aligned_bytes, channels_last
from retinanet.native_library import CPU_FLAGS_NEEDED, NativeLibraryError, load_library
from retinanet.processor import cpu_flags

SOURCE = Path(__file__).parent / "csrc" / "tile_weights.cpp"

BLOCK = 32
"""Numbers of channels are rounded up to multiples of this, with zeros."""


class Tiles(IntEnum):
    """What computes the tile instructions, as csrc/tiles.h has it."""

    AMX = 0
    VECTORS = 1
    """AVX-512 BF16."""
    EMULATED = 2
    """Plain C++, slow, for tests on any processor."""


@functools.cache
def best_tiles() -> Tiles | None:
    """Return the fastest that this processor has, or None where it has neither or C++ fails.

    It asks Linux for the permission to use AMX's tiles, which all kernels need.
    """
    flags = cpu_flags()
    if not {"avx512_bf16", *CPU_FLAGS_NEEDED["x86-64-v4"]} <= flags:
        return None
    try:
        permitted = bool(library().tile_weights_permitted())
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


class PackedWeight(NamedTuple):
    """A convolution's weight, rounded to BF16, in tiles."""

    for_outputs: Tensor
    for_gradients: Tensor | None
    """For the input's gradient, if that is wanted."""
    outputs: int
    inputs: int


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
        library().tile_weights_pack(
            ctypes.byref(record),
            packed[0].data_ptr(),
            None if backward is None else backward.data_ptr(),
            torch.get_num_threads(),
        )
    return PackedWeight(packed[0], backward, outputs, inputs)


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer = ctypes.c_void_p
    loaded.tile_weights_permitted.restype = ctypes.c_int32
    loaded.tile_weights_pack.restype = None
    loaded.tile_weights_pack.argtypes = [pointer, pointer, pointer, ctypes.c_int32]
    return loaded
