"""3×3 convolutions in BF16 by Winograd's F(2×2, 3×3), see csrc/winograd.cpp.

16 products for four output pixels where the direct form takes 36, so that they run at up to twice
the processor's peak. Operands are rounded to BF16 after their transform, sums and transforms are
float32, and the weight's gradient is never rounded: forward and backward lose about 1.7 times as
much to rounding as a direct BF16 convolution does (docs/experiments.md).
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retinanet.engine import winograd_kernel
from retinanet.engine.convolution import Geometry
from retinanet.engine.layout import channels_last
from retinanet.errors import InputError
from retinanet.native_library import NativeLibraryError
from retinanet.processor import cpu_flags

SAME_3X3 = Geometry((1, 1), (1, 1), 1)


def choose_winograd(convolutions: str) -> bool:
    """Whether 3×3 convolutions are Winograd's: `auto`, `onednn` or `winograd` resolved.

    `auto` takes what is fastest: Winograd's where the processor has BF16 instructions for vectors,
    but not for whole matrices (AMX, where direct convolutions are many times as fast).

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
        winograd_kernel.library()
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
        maps = [channels_last(level) for level in levels]
        outputs = winograd_kernel.outputs_of(maps, weight, bias, relu=relu)
        ctx.save_for_backward(weight, *maps, *(outputs if relu else []))
        ctx.level_count = len(levels)
        return tuple(outputs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, *saved = ctx.saved_tensors
        maps, gates = saved[: ctx.level_count], saved[ctx.level_count :]
        wants_weight, wants_bias, _, *wants_levels = ctx.needs_input_grad
        given = [channels_last(gradient) for gradient in gradients]
        of_weight = of_bias = None
        of_levels: list[Tensor | None] = [None] * ctx.level_count
        if any(wants_levels):
            of_levels = [*winograd_kernel.input_gradients(given, weight, gates)]
        if wants_weight:
            of_weight = winograd_kernel.weight_gradient(maps, given, gates)
        if wants_bias:
            of_bias = winograd_kernel.bias_gradient(given, gates)
        return of_weight, of_bias, None, *of_levels
