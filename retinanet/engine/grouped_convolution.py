"""The C++ of csrc/grouped_convolution.cpp and grouped_weight_gradient.cpp, called with tensors.

Maps are BF16 [N, C, H, W] in channels_last memory. The convolutions are 3×3 with padding 1 and as
many output as input channels, in groups of 4, 8, 16 or 32 channels.
"""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from common.native import load_library
from retinanet.engine.kernel_calls import own_kernel
from retinanet.engine.optimizers import channels_last
from retinanet.engine.tile_convolution import Tiles, tiles_for

CONVOLUTION_SOURCE = Path(__file__).parent / "csrc" / "grouped_convolution.cpp"
WEIGHT_GRADIENT_SOURCE = Path(__file__).parent / "csrc" / "grouped_weight_gradient.cpp"
UNIT = 32
"""The number of channels must be a multiple of this."""


class _Shape(ctypes.Structure):
    """`GroupedShape` as the C++ has it."""

    _fields_ = (
        ("images", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("group_width", ctypes.c_int64),
        ("in_height", ctypes.c_int64),
        ("in_width", ctypes.c_int64),
        ("out_height", ctypes.c_int64),
        ("out_width", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


class _Maps(ctypes.Structure):
    """`Maps` as grouped_weight_gradient.cpp has it."""

    _fields_ = (
        ("features", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
    )


class _Work(ctypes.Structure):
    """`Maps` as grouped_convolution.cpp has it."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("relu", ctypes.c_int32),
    )


def is_grouped(
    weight: Tensor, stride: tuple[int, ...], padding: tuple[int, ...], groups: int
) -> bool:
    """Whether a convolution is one of those that these kernels are for."""
    out_channels, group_width, *size = weight.shape
    return (
        group_width in (4, 8, 16, 32)
        and groups > 1
        and out_channels == group_width * groups
        and out_channels % UNIT == 0
        and size == [3, 3]
        and padding == (1, 1)
        and stride in ((1, 1), (2, 2))
    )


def beats_onednn(weight: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether outputs and input gradients are faster by these kernels than by oneDNN 3.7.

    With 16 and more channels a group oneDNN's tiles are as full as these.
    """
    return weight.shape[1] <= 8 or stride == (2, 2)


def grouped_convolution(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int,
    relu: bool = False,
    tiles: Tiles | None = None,
) -> Tensor:
    """The output, [N, C, H', W'] in channels_last memory.

    Args:
        features: [N, C, H, W].
        weight: BF16 [C, group_width, 3, 3].
        bias: [C], or None for zeros.
        stride: 1 or 2.
        relu: Whether negative results become zero; NaN stays.
        tiles: What computes the tile instructions, by default the processor's best.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    features = channels_last(features)
    images, channels, height, width = features.shape
    size = (images, channels, (height - 1) // stride + 1, (width - 1) // stride + 1)
    # No view: what an autograd function returns may be changed in place.
    output = torch.empty(size, dtype=torch.bfloat16, memory_format=torch.channels_last)
    shape = _shape(features, output, weight.shape[1], stride)
    bias = torch.zeros(channels) if bias is None else bias.detach().float().contiguous()
    work = _Work(features.data_ptr(), output.data_ptr(), None, bias.data_ptr(), relu)
    with own_kernel("grouped_convolution", (features, weight, bias), (output,)):
        _convolve(shape, work, weight, backward=False, tiles=tiles)
    return output


def grouped_input_gradient(
    gradient: Tensor,
    weight: Tensor,
    size: torch.Size,
    gate: Tensor | None = None,
    *,
    stride: int,
    tiles: Tiles | None = None,
) -> Tensor:
    """The input's gradient in channels_last memory.

    Args:
        gradient: Of the output, [N, C, H', W'].
        weight: BF16 [C, group_width, 3, 3].
        size: The input's, (N, C, H, W).
        gate: As large as the input, whose gradient is zero where this is not positive.
        stride: 1 or 2.
        tiles: What computes the tile instructions, by default the processor's best.

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    gradient = channels_last(gradient)
    gate = None if gate is None else channels_last(gate)
    result = torch.empty(size, dtype=torch.bfloat16, memory_format=torch.channels_last)
    shape = _shape(result, gradient, weight.shape[1], stride)
    gate_place = None if gate is None else gate.data_ptr()
    no_bias = torch.zeros(size[1])
    work = _Work(gradient.data_ptr(), result.data_ptr(), gate_place, no_bias.data_ptr(), False)
    read = (gradient, weight) if gate is None else (gradient, weight, gate)
    with own_kernel("grouped_input_gradient", read, (result,)):
        _convolve(shape, work, weight, backward=True, tiles=tiles)
    return result


def _convolve(
    shape: _Shape, work: _Work, weight: Tensor, *, backward: bool, tiles: Tiles | None
) -> None:
    weight, threads = channels_last(weight.detach()), torch.get_num_threads()
    record = ctypes.byref(shape)
    size = convolution_library().grouped_convolution_bytes(record, backward, threads)
    scratch = torch.empty(size, dtype=torch.uint8)
    convolution_library().grouped_convolve(
        record,
        ctypes.byref(work),
        weight.data_ptr(),
        scratch.data_ptr(),
        backward,
        tiles_for(tiles),
        threads,
    )


def grouped_weight_gradient(
    features: Tensor,
    gradient: Tensor,
    gate: Tensor | None = None,
    *,
    group_width: int,
    stride: int,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of a grouped convolution's weight and bias.

    Args:
        features: The input, [N, C, H, W].
        gradient: Of the output, [N, C, H', W'].
        gate: As large as the output, whose gradient counts where this is positive.
        group_width: Channels of a group: 4, 8, 16 or 32.
        stride: 1 or 2.
        tiles: What computes the tile instructions, by default the processor's best.

    Returns:
        Of the weight float32 [C, group_width, 3, 3] in channels_last memory, of the bias [C].

    Raises:
        NativeLibraryError: The kernel cannot be compiled or loaded here.
    """
    features, gradient = channels_last(features), channels_last(gradient)
    gate = None if gate is None else channels_last(gate)
    channels = features.shape[1]
    shape = _shape(features, gradient, group_width, stride)
    gate_place = None if gate is None else gate.data_ptr()
    maps = _Maps(features.data_ptr(), gradient.data_ptr(), gate_place)
    of_weight = torch.empty(channels, 3, 3, group_width).permute(0, 3, 1, 2)
    of_bias = torch.empty(channels)
    threads = torch.get_num_threads()
    size = weight_gradient_library().grouped_gradient_bytes(ctypes.byref(shape), threads)
    scratch = torch.empty(size, dtype=torch.uint8)
    read = (features, gradient) if gate is None else (features, gradient, gate)
    with own_kernel("grouped_weight_gradient", read, (of_weight, of_bias)):
        weight_gradient_library().grouped_weight_gradient(
            ctypes.byref(shape),
            ctypes.byref(maps),
            of_weight.data_ptr(),
            of_bias.data_ptr(),
            scratch.data_ptr(),
            tiles_for(tiles),
            threads,
        )
    return of_weight, of_bias


def _shape(features: Tensor, output: Tensor, group_width: int, stride: int) -> _Shape:
    images, channels, *in_size = features.shape
    return _Shape(images, channels, group_width, *in_size, *output.shape[2:], stride)


@functools.cache
def convolution_library() -> ctypes.CDLL:
    """Compile and load the kernel of outputs and input gradients, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(CONVOLUTION_SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    loaded.grouped_convolution_bytes.restype = size
    loaded.grouped_convolution_bytes.argtypes = [pointer, flag, flag]
    loaded.grouped_convolve.restype = None
    loaded.grouped_convolve.argtypes = [pointer] * 4 + [flag] * 3
    return loaded


@functools.cache
def weight_gradient_library() -> ctypes.CDLL:
    """Compile and load the kernel of the weight gradient, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(WEIGHT_GRADIENT_SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    loaded.grouped_gradient_bytes.restype = size
    loaded.grouped_gradient_bytes.argtypes = [pointer, flag]
    loaded.grouped_weight_gradient.restype = None
    loaded.grouped_weight_gradient.argtypes = [pointer] * 5 + [flag, flag]
    return loaded
