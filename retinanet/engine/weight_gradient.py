"""The C++ of csrc/weight_gradient.cpp, called with tensors.

Maps are BF16 [N, C, H, W] in channels_last memory, one for each level. `gates` are what ReLU made
of the outputs, whose gradients count where they are positive; empty without ReLU.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from common.native import load_library
from retinanet.engine.kernel_calls import own_kernel
from retinanet.engine.optimizers import channels_last
from retinanet.engine.tile_convolution import Tiles, tiles_for

SOURCE = Path(__file__).parent / "csrc" / "weight_gradient.cpp"


class _Level(ctypes.Structure):
    """`Level` as weight_gradient.cpp has it."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("images", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("input_height", ctypes.c_int64),
        ("input_width", ctypes.c_int64),
    )


class _Shape(ctypes.Structure):
    """`Shape` as weight_gradient.cpp has it."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("kernel", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def weight_gradient(
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    gates: Sequence[Tensor] = (),
    *,
    kernel: int,
    stride: int = 1,
    scale: Tensor | None = None,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution's weight and bias, summed over the levels.

    Args:
        inputs: [N, I, H, W] of each level.
        gradients: Of the outputs, [N, O, H', W'] of each level.
        gates: None, or of each level, as large as its output.
        kernel: 3 (padding 1) or 1 (no padding).
        stride: 1, or 2 of a 1×1.
        scale: The weight's gradient is multiplied by it, for each output [O], unless it is None.
        tiles: What computes the tile instructions, by default the processor's best.

    Returns:
        Of the weight float32 [O, I, kernel, kernel] in channels_last memory, of the bias [O].

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    inputs = [channels_last(level) for level in inputs]
    gradients = [channels_last(gradient) for gradient in gradients]
    gates = [channels_last(gate) for gate in gates]
    in_channels, out_channels = inputs[0].shape[1], gradients[0].shape[1]
    of_weight = torch.empty(
        (out_channels, kernel, kernel, in_channels), dtype=torch.float32
    ).permute(0, 3, 1, 2)
    of_bias = torch.empty(out_channels)
    levels = _level_records(inputs, gradients, gates)
    shape = _Shape(in_channels, out_channels, kernel, stride)
    scale = None if scale is None else scale.detach().float().contiguous()
    threads = torch.get_num_threads()
    size = library().weight_gradient_bytes(levels, len(levels), ctypes.byref(shape), threads)
    scratch = torch.empty(size, dtype=torch.uint8)
    read, written = (*inputs, *gradients, *gates), (of_weight, of_bias)
    with own_kernel("weight_gradient_sum", read, written):
        library().weight_gradient_sum(
            levels,
            len(levels),
            ctypes.byref(shape),
            None if scale is None else scale.data_ptr(),
            of_weight.data_ptr(),
            of_bias.data_ptr(),
            scratch.data_ptr(),
            threads,
            tiles_for(tiles),
        )
    return of_weight, of_bias


def _level_records(
    inputs: Sequence[Tensor], gradients: Sequence[Tensor], gates: Sequence[Tensor]
) -> ctypes.Array[_Level]:
    gate_places = [gate.data_ptr() for gate in gates] or [0] * len(inputs)
    records = [
        _Level(
            level.data_ptr(),
            gradient.data_ptr(),
            gate,
            len(level),
            *gradient.shape[2:],
            *level.shape[2:],
        )
        for level, gradient, gate in zip(inputs, gradients, gate_places, strict=True)
    ]
    return (_Level * len(records))(*records)


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("weight_gradient_bytes", size, [pointer, size, pointer, flag]),
        (
            "weight_gradient_sum",
            None,
            [pointer, size, pointer, pointer, pointer, pointer, pointer, flag, flag],
        ),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
