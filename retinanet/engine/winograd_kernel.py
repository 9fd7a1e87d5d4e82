"""The C++ of csrc/winograd.cpp, called with tensors.

Maps are BF16 [N, C, H, W] in channels_last memory, one for each level. `gates` are what ReLU made
of the outputs, whose gradients count where they are positive; empty without ReLU.
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from retinanet.bytes_moved import own_kernel
from retinanet.engine.layout import channels_last
from retinanet.engine.levels import level_records
from retinanet.native_library import load_library

SOURCE = Path(__file__).parent / "csrc" / "winograd.cpp"


def outputs_of(
    inputs: Sequence[Tensor], weight: Tensor, bias: Tensor, *, relu: bool
) -> list[Tensor]:
    """Outputs from inputs; `weight` float32 [O, I, 3, 3], `bias` float32 [O]."""
    out_channels, in_channels = weight.shape[:2]
    panels = _packed(weight, summed=in_channels, columns=out_channels, backward=False)
    return _convolved(inputs, panels, columns=out_channels, bias=bias, relu=relu)


def input_gradients(
    gradients: Sequence[Tensor], weight: Tensor, gates: Sequence[Tensor]
) -> list[Tensor]:
    """The inputs' gradients from the outputs'."""
    out_channels, in_channels = weight.shape[:2]
    panels = _packed(weight, summed=out_channels, columns=in_channels, backward=True)
    return _convolved(gradients, panels, columns=in_channels, gates=gates)


def _packed(weight: Tensor, *, summed: int, columns: int, backward: bool) -> Tensor:
    """The transformed weight in the order in which the kernel reads it."""
    weight = channels_last(weight)
    size = library().winograd_panel_values(summed, columns)
    panels = torch.empty(size, dtype=torch.bfloat16)
    with own_kernel("winograd_pack", (weight,), (panels,)):
        library().winograd_pack(
            weight.data_ptr(),
            *weight.shape[:2],
            backward,
            panels.data_ptr(),
            torch.get_num_threads(),
        )
    return panels


def _convolved(
    inputs: Sequence[Tensor],
    panels: Tensor,
    *,
    columns: int,
    bias: Tensor | None = None,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
) -> list[Tensor]:
    threads = torch.get_num_threads()
    shapes = [(len(level), columns, *level.shape[2:]) for level in inputs]
    outputs = [
        torch.empty(shape, dtype=torch.bfloat16, memory_format=torch.channels_last)
        for shape in shapes
    ]
    scratch = torch.empty(library().winograd_thread_bytes() * threads, dtype=torch.uint8)
    read = (*inputs, *gates, panels) if bias is None else (*inputs, *gates, panels, bias)
    with own_kernel("winograd_convolve", read, outputs):
        library().winograd_convolve(
            level_records(inputs, outputs, gates),
            len(inputs),
            inputs[0].shape[1],
            columns,
            panels.data_ptr(),
            bias.data_ptr() if bias is not None else None,
            relu,
            scratch.data_ptr(),
            threads,
        )
    return outputs


def weight_gradient(
    inputs: Sequence[Tensor], gradients: Sequence[Tensor], gates: Sequence[Tensor]
) -> Tensor:
    """The weight's gradient, float32 [O, I, 3, 3], summed over the levels."""
    in_channels, out_channels = inputs[0].shape[1], gradients[0].shape[1]
    of_weight = torch.empty(
        (out_channels, in_channels, 3, 3), dtype=torch.float32, memory_format=torch.channels_last
    )
    work = (level_records(inputs, gradients, gates), len(inputs), in_channels, out_channels)
    threads = torch.get_num_threads()
    scratch = torch.empty(library().winograd_gradient_bytes(*work, threads), dtype=torch.uint8)
    with own_kernel("winograd_weight_gradient", (*inputs, *gradients, *gates), (of_weight,)):
        library().winograd_weight_gradient(*work, of_weight.data_ptr(), scratch.data_ptr(), threads)
    return of_weight


def bias_gradient(gradients: Sequence[Tensor], gates: Sequence[Tensor]) -> Tensor:
    """The bias's gradient, float32 [O], summed over the levels."""
    threads, out_channels = torch.get_num_threads(), gradients[0].shape[1]
    of_bias = torch.empty(out_channels)
    scratch = torch.empty(threads * out_channels)
    with own_kernel("winograd_bias_gradient", (*gradients, *gates), (of_bias,)):
        library().winograd_bias_gradient(
            level_records(gradients, gradients, gates),
            len(gradients),
            out_channels,
            of_bias.data_ptr(),
            scratch.data_ptr(),
            threads,
        )
    return of_bias


@functools.cache
def library() -> ctypes.CDLL:
    """Compile and load the kernel, once.

    Raises:
        NativeLibraryError: That fails.
    """
    loaded = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("winograd_panel_values", size, [size, size]),
        ("winograd_thread_bytes", size, []),
        ("winograd_gradient_bytes", size, [pointer, size, size, size, flag]),
        ("winograd_pack", None, [pointer, size, size, flag, pointer, flag]),
        (
            "winograd_convolve",
            None,
            [pointer, size, size, size, pointer, pointer, flag, pointer, flag],
        ),
        (
            "winograd_weight_gradient",
            None,
            [pointer, size, size, size, pointer, pointer, flag],
        ),
        ("winograd_bias_gradient", None, [pointer, size, size, pointer, pointer, flag]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
