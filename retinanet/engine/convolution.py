"""Convolutions fused with what surrounds them: the frozen norm, casts to BF16, ReLUs, sums, levels.

Each is computed by the kernels that `retinanet.engine.kernels` chooses for it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retinanet.engine.kernels import (
    ConvParams,
    Kernel,
    LayerKernels,
    Machine,
    compute_outputs,
    input_gradients,
    kernels_for,
    prepare_weight,
    weight_gradients,
)
from retinanet.engine.winograd import winograd_convolve


class Fused(NamedTuple):
    """What is computed together with a convolution."""

    relu: bool = False
    """Apply one to the result; its gradient is left to the readers of the result, see norm_relu."""
    gated: bool = False
    """Be such a reader: the only one of levels that a ReLU returned."""
    passes: bool = False
    """Return the one level behind the result, for its other readers: what they send back is summed,
    and masked, as the level's gradient is written."""
    added: Tensor | None = None
    """Sum it with the result before the ReLU; for one level and with `relu`."""


NOTHING_FUSED = Fused()


def convolve(
    levels: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    *,
    params: ConvParams,
    machine: Machine,
    scale: Tensor | None = None,
    fused: Fused = NOTHING_FUSED,
) -> list[Tensor]:
    """Return `convolution(level, weight) * scale + bias` of each level [N, I, H_l, W_l].

    The arithmetic has the levels' precision; `weight` [O, I / groups, h, w], `bias` [O] and
    `scale` [O] are float32, and the latter two may be left out. A frozen batch norm is such a scale
    and bias, so that it costs nothing per pixel, and `scale` is a constant: it gets no gradient,
    but that of the weight is exact. The weight is cast once for all levels and its gradient summed
    over them in float32.
    """
    assert len(levels) == 1 or (fused.added is None and not fused.passes)
    assert fused.relu or fused.added is None
    kernels = kernels_for(levels, weight, params, machine)
    if kernels.forward is Kernel.WINOGRAD:
        assert scale is None and not fused.passes and fused.added is None
        return winograd_convolve(levels, weight, bias, relu=fused.relu, gated=fused.gated)
    maps = levels if fused.added is None else (*levels, fused.added)
    form = _Form(kernels, len(levels), fused._replace(added=None))
    return list(_Convolution.apply(weight, bias, scale, form, *maps))


class _Form(NamedTuple):
    """A call of `convolve`, besides its tensors."""

    kernels: LayerKernels
    level_count: int
    fused: Fused


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        form: _Form,
        *maps: Tensor,
    ) -> tuple[Tensor, ...]:
        levels, added = maps[: form.level_count], (*maps[form.level_count :], None)[0]
        ready, kept = prepare_weight(
            weight, scale, form.kernels, levels[0].dtype,
            for_gradients=any(ctx.needs_input_grad[4 : 4 + form.level_count]),
        )  # fmt: skip
        ctx.save_for_backward(kept, scale, *levels)
        ctx.form, ctx.has_added = form, added is not None
        outputs = compute_outputs(
            levels, ready, bias, form.kernels, relu=form.fused.relu, added=added
        )
        return (*outputs, levels[0].detach()) if form.fused.passes else tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        kept, scale, *levels = ctx.saved_tensors
        form, (needs_weight, needs_bias, _, _, *needs_maps) = ctx.form, ctx.needs_input_grad
        passed = gradients[-1] if form.fused.passes else None
        gradients = gradients[: form.level_count]
        grad_weight = grad_bias = None
        grad_levels: Sequence[Tensor | None] = [None] * form.level_count
        if needs_weight or needs_bias:
            grad_weight, grad_bias = weight_gradients(
                levels, gradients, kept, form.kernels, scale=scale, needs_bias=needs_bias
            )
        if any(needs_maps[: form.level_count]):
            grad_levels = input_gradients(
                levels, gradients, kept, form.kernels,
                scale=scale, gated=form.fused.gated, added=passed,
            )  # fmt: skip
        # Some kernels give the bias's gradient also where there is no bias.
        grad_bias = grad_bias if needs_bias else None
        grad_added = gradients if ctx.has_added else ()
        return grad_weight, grad_bias, None, None, *grad_levels, *grad_added
