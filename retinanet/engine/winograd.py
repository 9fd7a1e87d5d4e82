"""3×3 convolutions in BF16 by Winograd's F(2×2, 3×3), see csrc/winograd.cpp.

16 products for four output pixels where the direct form takes 36, so that they run at up to twice
the processor's peak. Operands are rounded to BF16 after their transform, sums and transforms are
float32, and the weight's gradient is never rounded: forward and backward lose about 1.7 times as
much to rounding as a direct BF16 convolution does (docs/experiments.md).

Maps are BF16 [N, C, H, W] in channels_last memory, one for each level.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from common.errors import InputError
from common.machine import cpu_flags
from common.native import NativeLibraryError
from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    channels_last,
    empty_maps,
    level_records,
    scratch_bytes,
)

WINOGRAD = Kernels(
    CSRC / "winograd.cpp",
    winograd_panel_values="qq->q",
    winograd_thread_bytes="->q",
    winograd_gradient_bytes="Pqqqi->q",
    winograd_pack="PqqiPi",
    winograd_convolve="PqqqPPiPi",
    winograd_weight_gradient="PqqqPPPi",
)


def choose_winograd(convolutions: str) -> bool:
    """Return whether 3×3 convolutions are Winograd's: `auto`, `onednn` or `winograd` resolved.

    `auto` takes what is fastest: Winograd's where the processor has BF16 instructions for vectors,
    but not for whole matrices (AMX, where direct convolutions are many times as fast).

    Raises:
        InputError: `winograd` is selected and not available on this machine.
    """
    if convolutions == "onednn":
        return False
    if convolutions == "auto" and ("amx_bf16" in cpu_flags() or "avx512_bf16" not in cpu_flags()):
        return False
    problem = "the processor has no AVX-512 BF16"
    if "avx512_bf16" in cpu_flags():
        try:
            WINOGRAD.library()
        except NativeLibraryError as error:
            problem = str(error).splitlines()[0]
        else:
            return True
    if convolutions == "winograd":
        raise InputError(
            f"engine.convolutions: winograd is not available: {problem}; use auto or onednn"
        )
    _print_once(f"convolutions: using oneDNN instead of Winograd: {problem}")
    return False


@functools.cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr)


def winograd_convolve(
    levels: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    *,
    relu: bool = False,
    gated: bool = False,
) -> list[Tensor]:
    """Apply a 3×3 convolution of stride 1 and padding 1, then optionally ReLU, to each level.

    `levels`: BF16 [N, I, H_l, W_l]; `weight` float32 [O, I, 3, 3]; `bias` float32 [O]. Returns
    BF16 [N, O, H_l, W_l] in channels_last memory. The ReLU's gradient is left to the readers of the
    result; `gated`: this is the only one of levels that a ReLU returned.
    """
    return list(_WinogradConvolution.apply(weight, bias, relu, gated, *levels))


class _WinogradConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, relu: bool, gated: bool, *levels: Tensor
    ) -> tuple[Tensor, ...]:
        maps = [channels_last(level) for level in levels]
        ctx.save_for_backward(weight, *maps)
        ctx.gated = gated
        return tuple(convolve_levels(maps, weight, bias, relu=relu))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, *maps = ctx.saved_tensors
        needs_weight, needs_bias, _, _, *needs_levels = ctx.needs_input_grad
        given = [channels_last(gradient) for gradient in gradients]
        grad_weight = grad_bias = None
        grad_levels: list[Tensor | None] = [None] * len(maps)
        if any(needs_levels):
            gates = maps if ctx.gated else ()
            grad_levels = [*convolve_levels(given, weight, gates=gates, backward=True)]
        if needs_weight or needs_bias:
            grad_weight, grad_bias = weight_gradient(maps, given)
        return grad_weight, grad_bias if needs_bias else None, None, None, *grad_levels


def convolve_levels(
    inputs: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
    backward: bool = False,
) -> list[Tensor]:
    """Return outputs from inputs, or if `backward` the inputs' gradients from the outputs'.

    They are zero where `gates`, maps of their shapes that a ReLU returned, are zero or negative.
    """
    # The weight's transform is not kept for the backward pass, which needs another one: of the
    # weight turned round, with its channels exchanged.
    weight, threads = channels_last(weight), torch.get_num_threads()
    columns, summed = reversed(weight.shape[:2]) if backward else weight.shape[:2]
    library = WINOGRAD.library()
    panels = torch.empty(library.winograd_panel_values(summed, columns), dtype=torch.bfloat16)
    WINOGRAD.call(
        "winograd_pack", weight, *weight.shape[:2], backward, panels, threads,
        read=(weight,), written=(panels,),
    )  # fmt: skip
    outputs = [empty_maps(level.shape[0], columns, *level.shape[2:]) for level in inputs]
    scratch = scratch_bytes(library.winograd_thread_bytes() * threads)
    WINOGRAD.call(
        "winograd_convolve",
        level_records(inputs, outputs, gates), len(inputs), summed, columns, panels,
        bias, relu, scratch, threads,
        read=(*inputs, *gates, panels, bias), written=outputs,
    )  # fmt: skip
    return outputs


def weight_gradient(inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, float32 [O, I, 3, 3] and [O], summed over levels."""
    in_channels, out_channels = inputs[0].shape[1], gradients[0].shape[1]
    grad_weight = torch.empty(
        (out_channels, in_channels, 3, 3), dtype=torch.float32, memory_format=torch.channels_last
    )
    grad_bias = torch.empty(out_channels)
    work = (level_records(inputs, gradients, ()), len(inputs), in_channels, out_channels)
    threads = torch.get_num_threads()
    size = WINOGRAD.library().winograd_gradient_bytes(*work, threads)
    WINOGRAD.call(
        "winograd_weight_gradient",
        *work, grad_weight, grad_bias, scratch_bytes(size), threads,
        read=(*inputs, *gradients), written=(grad_weight, grad_bias),
    )  # fmt: skip
    return grad_weight, grad_bias
