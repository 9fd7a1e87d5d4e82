"""The C++ of csrc/pointwise_convolution.cpp, called with tensors.

Convolutions are 1×1, of one group and multiples of 32 channels; of stride 1, or 2 for input
gradients. Maps are BF16
[N, C, H, W]; what is not in channels_last memory is copied.
"""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from common.native import load_library
from retinanet.engine.kernel_calls import own_kernel
from retinanet.engine.optimizers import aligned_bytes, channels_last
from retinanet.engine.tile_convolution import PackedWeight, Tiles, tiles_for

SOURCE = Path(__file__).parent / "csrc" / "pointwise_convolution.cpp"
UNIT = 32
"""Numbers of channels must be multiples of this."""


class _Target(ctypes.Structure):
    """`Target` as csrc/tile_writer.h has it."""

    _fields_ = (
        ("output", ctypes.c_void_p),
        ("added", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("relu", ctypes.c_bool),
        ("outputs", ctypes.c_int64),
    )


class _Spread(ctypes.Structure):
    """`Spread` as the C++ has it."""

    _fields_ = (
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("map_height", ctypes.c_int64),
        ("map_width", ctypes.c_int64),
        ("step", ctypes.c_int64),
    )


def pointwise_output(
    features: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    *,
    relu: bool = False,
    tiles: Tiles | None = None,
) -> Tensor:
    """Return the convolution's output plus `added`, with a ReLU if asked for.

    Args:
        features: [N, I, H, W].
        weight: Packed, of [O, I, 1, 1].
        bias: [O], or None for zeros.
        added: [N, O, H, W], or None.
        relu: Whether negative results become zero; NaN stays.
        tiles: What computes the tile instructions, by default the processor's best.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    packed, outputs = weight.for_outputs, weight.outputs
    return _convolved(features, packed, outputs, bias=bias, added=added, relu=relu, tiles=tiles)


def pointwise_input_gradient(
    gradient: Tensor,
    weight: PackedWeight,
    added: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    tiles: Tiles | None = None,
) -> Tensor:
    """Return the input's gradient plus `added`, both zero where `gate` is not positive.

    Args:
        gradient: Of the output, [N, O, H, W].
        weight: Packed for gradients too.
        added: [N, I, H, W], or None: what other readers of the input send back.
        gate: None, or the input, which a ReLU returned: the result is the gradient of the ReLU's.
        tiles: What computes the tile instructions, by default the processor's best.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    assert weight.for_gradients is not None
    packed, inputs = weight.for_gradients, weight.inputs
    return _convolved(gradient, packed, inputs, added=added, gate=gate, tiles=tiles)


def strided_input_gradient(
    gradient: Tensor, weight: PackedWeight, size: tuple[int, int], *, tiles: Tiles | None = None
) -> Tensor:
    """Return the input's gradient of a convolution of stride 2.

    Args:
        gradient: Of the output, [N, O, H', W'].
        weight: Packed for gradients too.
        size: The input's height and width.
        tiles: What computes the tile instructions, by default the processor's best.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    assert weight.for_gradients is not None
    packed, inputs = weight.for_gradients, weight.inputs
    return _convolved(gradient, packed, inputs, spread_over=size, tiles=tiles)


def _convolved(
    features: Tensor,
    packed: Tensor,
    outputs: int,
    *,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    gate: Tensor | None = None,
    relu: bool = False,
    spread_over: tuple[int, int] | None = None,
    tiles: Tiles | None,
) -> Tensor:
    features = channels_last(features)
    images, inputs, height, width = features.shape
    map_size = spread_over or (height, width)
    output = torch.empty(
        (images, outputs, *map_size), dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    if spread_over is not None:
        output.zero_()
    spread = _Spread(height, width, *map_size, 1 if spread_over is None else 2)
    kept = [channels_last(one) for one in (added, gate) if one is not None]
    if bias is not None:
        bias = bias.detach().float().contiguous()
    places = iter(kept)
    target = _Target(
        output.data_ptr(),
        next(places).data_ptr() if added is not None else None,
        next(places).data_ptr() if gate is not None else None,
        bias.data_ptr() if bias is not None else None,
        relu,
        outputs,
    )
    pixels, maps, threads = images * height * width, 1 + len(kept), torch.get_num_threads()
    size = library().pointwise_scratch_bytes(pixels, inputs, outputs, maps, threads)
    scratch = aligned_bytes(size)
    read = (features, packed, *kept) if bias is None else (features, packed, *kept, bias)
    with own_kernel("pointwise_convolution", read, (output,)):
        library().pointwise_convolution(
            features.data_ptr(),
            pixels,
            inputs,
            packed.data_ptr(),
            ctypes.byref(target),
            ctypes.byref(spread),
            maps,
            scratch.data_ptr(),
            threads,
            tiles_for(tiles),
        )
    return output


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("pointwise_scratch_bytes", size, [size, size, size, flag, flag]),
        (
            "pointwise_convolution",
            None,
            [pointer, size, size, pointer, pointer, pointer, flag, pointer, flag, flag],
        ),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
