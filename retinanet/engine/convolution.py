"""A convolution with what surrounds it taken in: the frozen norm, the cast to BF16, the levels."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Geometry(NamedTuple):
    """How a convolution's window moves; (rows, columns)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int


POINTWISE = Geometry((1, 1), (0, 0), 1)


def geometry_of(convolution: nn.Conv2d) -> Geometry:
    """The geometry of a convolution without dilation and with zeros around the picture."""
    assert not isinstance(convolution.padding, str)
    assert convolution.dilation == (1, 1)
    return Geometry(convolution.stride, convolution.padding, convolution.groups)


def convolve(
    levels: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    *,
    geometry: Geometry,
    scale: Tensor | None = None,
) -> list[Tensor]:
    """`convolution(level, weight) * scale + bias` for each level, [N, I, H_l, W_l] → [N, O, …].

    The arithmetic has the levels' precision; `weight` [O, I / groups, h, w], `bias` [O] and
    `scale` [O] are float32. A frozen batch norm is such a scale and bias, so that it costs nothing
    per pixel, and `scale` is a constant: it gets no gradient, but that of the weight is exact.
    The weight is cast once for all levels and its gradient summed over them in float32.
    """
    return list(_Convolution.apply(weight, bias, scale, geometry, *levels))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        geometry: Geometry,
        *levels: Tensor,
    ) -> tuple[Tensor, ...]:
        cast = cast_weight(weight, scale, levels[0].dtype)
        ctx.save_for_backward(cast, scale, *levels)
        ctx.geometry, ctx.dtype = geometry, weight.dtype
        return tuple(convolution(level, cast, bias, geometry) for level in levels)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, scale, *levels = ctx.saved_tensors
        wants_weight, wants_bias, _, _, *wants_levels = ctx.needs_input_grad
        of_levels = []
        of_weight = of_bias = None
        for gradient, level, wants_level in zip(gradients, levels, wants_levels, strict=True):
            wants = (wants_level, wants_weight, wants_bias)
            of_level, weight_part, bias_part = convolution_gradients(
                gradient, level, weight, ctx.geometry, wants=wants
            )
            of_levels.append(of_level)
            of_weight = _sum(of_weight, weight_part, ctx.dtype)
            of_bias = _sum(of_bias, bias_part, ctx.dtype)
        if of_weight is not None and scale is not None:
            of_weight = of_weight.mul_(scale.view(-1, 1, 1, 1))
        return of_weight, of_bias, None, None, *of_levels


def cast_weight(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`weight * scale` for each output channel, rounded once to `dtype`, in the weight's layout."""
    if scale is None:
        return weight.detach().to(dtype)
    scaled = torch.empty_like(weight, dtype=dtype, requires_grad=False)
    return torch.mul(weight.detach(), scale.view(-1, 1, 1, 1), out=scaled)


def convolution(features: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
    """[N, I, H, W] to [N, O, H', W']; the bias is cast, everything else has one precision."""
    cast_bias = bias.detach().to(features.dtype)
    stride, padding, groups = geometry
    return F.conv2d(features, weight, cast_bias, stride, padding, 1, groups)


def convolution_gradients(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    geometry: Geometry,
    *,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of features, weight and bias, as far as `wants` asks for them.

    The weight gradient of a 1×1 convolution is one matrix product over the pixels: oneDNN is
    faster at that than at the convolution.
    """
    wants_features, wants_weight, wants_bias = wants
    of_features = of_weight = of_bias = None
    dtype = features.dtype
    if wants_features and len(weight) % 2 == 1:
        of_features = _features_gradient_of_odd(gradient, features, weight, geometry)
        wants_features = False
    if wants_weight and weight.shape[2:] == (1, 1) and geometry == POINTWISE:
        product = _by_pixel(gradient).t() @ _by_pixel(features)
        of_weight = product.as_strided(weight.shape, weight.stride())  # as DDP expects gradients
        wants_weight = False
    if wants_weight and features.shape[3] == 1 and geometry.stride != (1, 1):
        # For maps one pixel wide oneDNN 3.7's BF16 kernel leaves places of the gradient unwritten.
        gradient, features, weight = gradient.float(), features.float(), weight.float()
    if wants_features or wants_weight or wants_bias:
        rest = _onednn_gradients(
            gradient, features, weight, geometry, wants=(wants_features, wants_weight, wants_bias)
        )
        if wants_features and rest[0] is not None:
            of_features = rest[0].to(dtype)
        of_weight = rest[1] if wants_weight else of_weight
        of_bias = rest[2]
    return of_features, of_weight, of_bias


def _features_gradient_of_odd(
    gradient: Tensor, features: Tensor, weight: Tensor, geometry: Geometry
) -> Tensor | None:
    """The features' gradient for an odd number of output channels.

    oneDNN 3.7's BF16 kernel takes channels in pairs. Where the last is single, it multiplies what
    follows the gradient in memory by zero: if that is NaN by chance, so is the result.
    """
    gradient, weight = F.pad(gradient, (0, 0, 0, 0, 0, 1)), F.pad(weight, (0, 0, 0, 0, 0, 0, 0, 1))
    wants = (True, False, False)
    return _onednn_gradients(gradient, features, weight, geometry, wants=wants)[0]


def _onednn_gradients(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    geometry: Geometry,
    *,
    wants: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    stride, padding, groups = geometry
    return torch.ops.aten.convolution_backward(
        gradient, features, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), groups,
        wants,
    )  # fmt: skip


def _sum(total: Tensor | None, part: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if total is None or part is None:
        return None if part is None else part.to(dtype)
    return total.add_(part)


def _by_pixel(maps: Tensor) -> Tensor:
    """[N, C, H, W] as [N * H * W, C]: a view where `maps` is channels_last."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])
