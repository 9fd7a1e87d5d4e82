"""3×3 convolutions in BF16 by Winograd's F(2×2, 3×3), see csrc/winograd.cpp.

16 products for four output pixels where the direct form takes 36, so that they run at up to twice
the processor's peak. Operands are rounded to BF16 after their transform, sums and transforms are
float32, and the weight's gradient is never rounded: forward and backward lose about 1.7 times as
much to rounding as a direct BF16 convolution does (docs/experiments.md).
"""

import ctypes
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retinanet.engine.convolution import Geometry
from retinanet.errors import InputError
from retinanet.native_library import NativeLibraryError, cpu_flags, load_library

SOURCE = Path(__file__).parent / "csrc" / "winograd.cpp"

SAME_3X3 = Geometry((1, 1), (1, 1), 1)


def choose_winograd(convolutions: str) -> bool:
    """Whether 3×3 convolutions are Winograd's: `auto`, `onednn` or `winograd` resolved.

    `auto` takes what is fastest: Winograd's where the processor has BF16 instructions for vectors,
    but not for whole matrices (AMX, where oneDNN's convolutions are many times as fast).

    Raises:
        InputError: `winograd` is asked for, and this machine cannot.
    """
    if convolutions == "onednn":
        return False
    if convolutions == "auto" and ("amx_bf16" in cpu_flags() or "avx512_bf16" not in cpu_flags()):
        return False
    problem = _winograd_problem()
    if problem is None:
        return True
    if convolutions == "winograd":
        raise InputError(
            f"engine.convolutions: no winograd here, as {problem}; take auto or onednn"
        )
    _say_once(f"convolutions: oneDNN's instead of Winograd's: {problem}")
    return False


@functools.cache
def _winograd_problem() -> str | None:
    if "avx512_bf16" not in cpu_flags():
        return "the processor has no AVX-512 BF16"
    try:
        _library()
    except NativeLibraryError as error:
        return str(error).splitlines()[0]
    return None


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def suits_winograd(levels: Sequence[Tensor], weight: Tensor, geometry: Geometry) -> bool:
    """Whether a convolution has the form that the kernel knows, and BF16 operands."""
    is_bf16 = all(level.dtype == torch.bfloat16 for level in levels)
    return is_bf16 and weight.shape[2:] == (3, 3) and geometry == SAME_3X3


def winograd_convolve(
    levels: Sequence[Tensor], weight: Tensor, bias: Tensor, *, relu: bool
) -> list[Tensor]:
    """A 3×3 convolution of stride 1 and padding 1, then ReLU if asked for, for each level.

    `levels`: BF16 [N, I, H_l, W_l]; `weight` float32 [O, I, 3, 3]; `bias` float32 [O]. Returns
    BF16 [N, O, H_l, W_l] in channels_last memory.
    """
    return list(_WinogradConvolution.apply(weight, bias, relu, *levels))


class _WinogradConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor, relu: bool, *levels: Tensor
    ) -> tuple[Tensor, ...]:
        maps = [_channels_last(level) for level in levels]
        outputs = _convolved(maps, weight, bias=bias, relu=relu, backward=False)
        ctx.save_for_backward(weight, *maps, *(outputs if relu else []))
        ctx.level_count = len(levels)
        return tuple(outputs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, *saved = ctx.saved_tensors
        maps, gates = saved[: ctx.level_count], saved[ctx.level_count :]
        wants_weight, wants_bias, _, *wants_levels = ctx.needs_input_grad
        given = [_channels_last(gradient) for gradient in gradients]
        of_levels: list[Tensor | None] = [None] * ctx.level_count
        if any(wants_levels):
            of_levels = [*_convolved(given, weight, gates=gates, backward=True)]
        of_weight = _weight_gradient(maps, given, weight, gates=gates) if wants_weight else None
        of_bias = _bias_gradient(given, gates=gates) if wants_bias else None
        return of_weight, of_bias, None, *of_levels


class _Level(ctypes.Structure):
    """`Level` as winograd.cpp has it."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("images", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def _convolved(
    inputs: Sequence[Tensor],
    weight: Tensor,
    *,
    backward: bool,
    bias: Tensor | None = None,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Forward from the input, or backward from the output's gradient to the input's."""
    library, threads = _library(), torch.get_num_threads()
    weight = _channels_last(weight)
    out_channels, in_channels = weight.shape[:2]
    if backward:
        summed, columns = out_channels, in_channels
    else:
        summed, columns = in_channels, out_channels
    panels = torch.empty(library.winograd_panel_values(summed, columns), dtype=torch.bfloat16)
    library.winograd_pack(
        weight.data_ptr(), out_channels, in_channels, backward, panels.data_ptr(), threads
    )
    outputs = [
        torch.empty(
            (len(level), columns, *level.shape[2:]),
            dtype=torch.bfloat16,
            memory_format=torch.channels_last,
        )
        for level in inputs
    ]
    scratch = torch.empty(library.winograd_thread_bytes() * threads, dtype=torch.uint8)
    library.winograd_convolve(
        _level_records(inputs, outputs, gates),
        len(inputs),
        summed,
        columns,
        panels.data_ptr(),
        bias.data_ptr() if bias is not None else None,
        relu,
        scratch.data_ptr(),
        threads,
    )
    return outputs


def _weight_gradient(
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: Tensor,
    *,
    gates: Sequence[Tensor],
) -> Tensor:
    library = _library()
    out_channels, in_channels = weight.shape[:2]
    of_weight = torch.empty(weight.shape, dtype=torch.float32, memory_format=torch.channels_last)
    scratch = torch.empty(library.winograd_gradient_bytes(in_channels), dtype=torch.uint8)
    library.winograd_weight_gradient(
        _level_records(inputs, gradients, gates),
        len(inputs),
        in_channels,
        out_channels,
        of_weight.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )
    return of_weight


def _bias_gradient(gradients: Sequence[Tensor], *, gates: Sequence[Tensor]) -> Tensor:
    threads, out_channels = torch.get_num_threads(), gradients[0].shape[1]
    of_bias = torch.empty(out_channels)
    scratch = torch.empty(threads * out_channels)
    _library().winograd_bias_gradient(
        _level_records(gradients, gradients, gates),
        len(gradients),
        out_channels,
        of_bias.data_ptr(),
        scratch.data_ptr(),
        threads,
    )
    return of_bias


def _level_records(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], gates: Sequence[Tensor]
) -> ctypes.Array[_Level]:
    gate_places = [gate.data_ptr() for gate in gates] or [0] * len(inputs)
    records = [
        _Level(level.data_ptr(), output.data_ptr(), gate, len(level), *level.shape[2:])
        for level, output, gate in zip(inputs, outputs, gate_places, strict=True)
    ]
    return (_Level * len(records))(*records)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


@functools.cache
def _library() -> ctypes.CDLL:
    library = load_library(SOURCE)
    pointer, size, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, result, arguments in (
        ("winograd_panel_values", size, [size, size]),
        ("winograd_thread_bytes", size, []),
        ("winograd_gradient_bytes", size, [size]),
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
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
