"""Convolutions fused with what surrounds them: the frozen norm, casts to BF16, ReLUs, sums, levels.

Each is computed by our own kernels (tile_convolution.py, grouped_convolution.py) where they suit,
else by oneDNN.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from retinanet.engine.grouped_convolution import (
    beats_onednn,
    grouped_convolution,
    grouped_input_gradient,
    grouped_weight_gradient,
    is_grouped,
)
from retinanet.engine.kernel_calls import suits_kernels
from retinanet.engine.norm_relu import add_relu_, masked_sum_
from retinanet.engine.tile_convolution import (
    BLOCK,
    PackedWeight,
    Tiles,
    best_tiles,
    has_tiles,
    pack_weight,
    pointwise_convolve,
    pointwise_weight_gradient,
    tile_convolve,
    weight_gradient,
)
from retinanet.model.retinanet import padded_to_even


class ConvParams(NamedTuple):
    """The stride, padding and groups of a convolution; pairs are (rows, columns)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int


POINTWISE = ConvParams((1, 1), (0, 0), 1)
SAME_3X3 = ConvParams((1, 1), (1, 1), 1)
RELU_SLOPE = 2.0**-100
"""Slope of oneDNN's leaky ReLU, for negative values. With oneDNN's plain ReLU NaN becomes 0, and an
error that should stop the training becomes a wrong result. 1e-30 of a value counts as 0."""


class _Form(NamedTuple):
    """The form of a convolution, besides its tensors; see the arguments of `convolve`."""

    params: ConvParams
    relu: bool
    gated: bool
    adds: bool
    passes: bool
    allow_tiles: bool


def get_conv_params(convolution: nn.Conv2d) -> ConvParams:
    """Return the parameters of a convolution without dilation and with zero padding."""
    assert not isinstance(convolution.padding, str)
    assert convolution.dilation == (1, 1)
    return ConvParams(convolution.stride, convolution.padding, convolution.groups)


def convolve(
    levels: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    *,
    params: ConvParams,
    scale: Tensor | None = None,
    relu: bool = False,
    gated: bool = False,
    added: Tensor | None = None,
    passes: bool = False,
    allow_tiles: bool = True,
) -> list[Tensor]:
    """Return `convolution(level, weight) * scale + bias` of each level [N, I, H_l, W_l].

    The arithmetic has the levels' precision; `weight` [O, I / groups, h, w], `bias` [O] and
    `scale` [O] are float32, and the latter two may be left out. A frozen batch norm is such a scale
    and bias, so that it costs nothing per pixel, and `scale` is a constant: it gets no gradient,
    but that of the weight is exact. The weight is cast once for all levels and its gradient summed
    over them in float32.

    `relu` applies one to the result and leaves its gradient to the readers of the result, see
    norm_relu.py. `gated` is such a reader: the only one of levels that a ReLU returned. `added`,
    for one level and with `relu`, is summed with the result before. `passes` returns the one level
    behind the result, for its other readers: what they send back is summed, and masked, as the
    level's gradient is written. `allow_tiles` lets the tile kernels compute it where they can; else
    oneDNN does.
    """
    assert len(levels) == 1 or (added is None and not passes)
    assert relu or added is None
    form = _Form(params, relu, gated, added is not None, passes, allow_tiles)
    maps = levels if added is None else (*levels, added)
    if allow_tiles and suits_packing(levels, weight, form):
        return list(_TileConvolution.apply(weight, bias, scale, form, *maps))
    return list(_Convolution.apply(weight, bias, scale, form, *maps))


class _TileConvolution(torch.autograd.Function):
    """1×1 and 3×3 convolutions of stride 1 by AMX's tiles, whose weights are packed once a step."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        form: _Form,
        *maps: Tensor,
    ) -> tuple[Tensor, ...]:
        levels, added = (maps[:-1], maps[-1]) if form.adds else (maps, None)
        # Packed for both passes at once, so that the float32 weight is read once a step. The
        # backward pass needs the turned weight only, not the weight itself.
        for_gradients = any(ctx.needs_input_grad[4 : 4 + len(levels)])
        packed, turned = pack_weight(weight, scale, for_gradients=for_gradients)
        ctx.save_for_backward(turned.values if turned else None, scale, *levels)
        ctx.form, ctx.shape = form, weight.shape
        if weight.shape[2:] == (1, 1):
            outputs = [pointwise_convolve(levels[0], packed, bias, added=added, relu=form.relu)]
        else:
            outputs = tile_convolve(levels, packed, bias, relu=form.relu)
        return (*outputs, levels[0].detach()) if form.passes else tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        turned, scale, *levels = ctx.saved_tensors
        needs_weight, needs_bias, _, _, *_ = ctx.needs_input_grad
        passed = gradients[-1] if ctx.form.passes else None
        gradients = gradients[: len(levels)]
        grad_weight = grad_bias = None
        if needs_weight or needs_bias:
            kernel = ctx.shape[-1]
            grad_weight, grad_bias = weight_gradient(levels, gradients, kernel=kernel, scale=scale)
        grad_levels: Sequence[Tensor | None] = [None] * len(levels)
        if turned is not None:
            packed = PackedWeight(turned, ctx.shape[1])
            if ctx.shape[2:] == (1, 1):
                gate = levels[0] if ctx.form.gated else None
                grad_levels = [pointwise_convolve(gradients[0], packed, added=passed, gate=gate)]
            else:
                gates = levels if ctx.form.gated else ()
                grad_levels = tile_convolve(gradients, packed, gates=gates)
        # The kernel gives the bias's gradient also where there is no bias.
        grad_bias = grad_bias if needs_bias else None
        grad_added = gradients if ctx.form.adds else ()
        return grad_weight, grad_bias, None, None, *grad_levels, *grad_added


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
        levels, added = (maps[:-1], maps[-1]) if form.adds else (maps, None)
        # Saved instead of the float32 weight: the backward pass needs no second cast, and the
        # weight's gradient does not depend on the weight.
        cast = cast_weight(weight, scale, levels[0].dtype)
        ctx.save_for_backward(cast, scale, *levels)
        ctx.form, ctx.dtype = form, weight.dtype
        outputs = [
            convolution(
                level,
                cast,
                bias,
                form.params,
                relu=form.relu,
                added=added,
                allow_tiles=form.allow_tiles,
            )
            for level in levels
        ]
        return (*outputs, levels[0].detach()) if form.passes else tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        weight, scale, *levels = ctx.saved_tensors
        needs_weight, needs_bias, _, _, *needs_levels = ctx.needs_input_grad
        grad_levels: list[Tensor | None] = []
        grad_weight = grad_bias = None
        params, allow_tiles = ctx.form.params, ctx.form.allow_tiles
        passed = gradients[-1] if ctx.form.passes else None
        gradients = gradients[: len(levels)]
        # One call for all levels, which share the sums: the loop below would write and read them
        # again for each level.
        stride = params.stride[0]
        if needs_weight and allow_tiles and suits_tiles(levels[0], weight, params):
            grad_weight, grad_bias = weight_gradient(
                levels, gradients, kernel=weight.shape[-1], stride=stride, scale=scale
            )
            needs_weight = needs_bias = False
        elif needs_weight and allow_tiles and suits_pointwise_vectors(levels[0], weight, params):
            grad_weight, grad_bias = pointwise_weight_gradient(
                levels, gradients, stride=stride, scale=scale
            )
            needs_weight = needs_bias = False
        # `needs_levels` has an entry for `added` as well, hence strict=False.
        for gradient, level, needs_level in zip(gradients, levels, needs_levels, strict=False):
            grad_level, weight_part, bias_part = convolution_gradients(
                gradient, level, weight, params,
                needs=(needs_level, needs_weight, needs_bias), added=passed, gated=ctx.form.gated,
                allow_tiles=allow_tiles,
            )  # fmt: skip
            grad_levels.append(grad_level)
            if needs_weight or needs_bias:
                grad_weight = _sum(grad_weight, weight_part, ctx.dtype)
                grad_bias = _sum(grad_bias, bias_part, ctx.dtype)
        # The gradient is that of `weight * scale`; the chain rule's factor comes last, in float32.
        if needs_weight and grad_weight is not None and scale is not None:
            grad_weight = grad_weight.mul_(scale.view(-1, 1, 1, 1))
        # Our kernels give the bias's gradient also where there is no bias.
        grad_bias = grad_bias if ctx.needs_input_grad[1] else None
        grad_added = gradients if ctx.form.adds else ()
        return grad_weight, grad_bias, None, None, *grad_levels, *grad_added


def cast_weight(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return `weight * scale` for each output channel, rounded once, in the weight's layout."""
    if scale is None:
        return weight.detach().to(dtype)
    scaled = torch.empty_like(weight, dtype=dtype, requires_grad=False)
    return torch.mul(weight.detach(), scale.view(-1, 1, 1, 1), out=scaled)


def convolution(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    params: ConvParams,
    *,
    relu: bool = False,
    added: Tensor | None = None,
    allow_tiles: bool = True,
) -> Tensor:
    """Convolve [N, I, H, W] to [N, O, H', W']; the bias is cast, the rest has one precision.

    `added`, of the result's shape, is summed with it before the ReLU.
    """
    stride, padding, groups = params
    if allow_tiles and suits_pointwise(features, weight, params):
        packed, _ = pack_weight(weight)
        return pointwise_convolve(features, packed, bias, added=added, relu=relu)
    if added is not None:
        return add_relu_(
            convolution(features, weight, bias, params, allow_tiles=allow_tiles), added
        )
    if allow_tiles and suits_grouped_convolution(features, weight, params):
        return grouped_convolution(features, weight, bias, stride=stride[0], relu=relu)
    cast_bias = None if bias is None else bias.detach().to(features.dtype)
    # A private operator of torch's compiler: the only way to oneDNN's post-operations from Python.
    if relu and can_fuse_relu(features.dtype):
        fused: Tensor = torch.ops.mkldnn._convolution_pointwise(
            features, weight, cast_bias, padding, stride, (1, 1), groups,
            "leaky_relu", [RELU_SLOPE], None,
        )  # fmt: skip
        return fused
    maps = F.conv2d(features, weight, cast_bias, stride, padding, 1, groups)
    return F.relu_(maps) if relu else maps


def can_fuse_relu(dtype: torch.dtype) -> bool:
    """Return whether oneDNN applies a ReLU as it writes a convolution's result.

    Not in float32: products of what `RELU_SLOPE` leaves are denormal there, with which Intel's
    processors compute tens of times slower. BF16's instructions take them for 0.
    """
    return (
        dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch._C._get_mkldnn_enabled()
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def convolution_gradients(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    params: ConvParams,
    *,
    needs: tuple[bool, bool, bool],
    added: Tensor | None = None,
    gated: bool = False,
    allow_tiles: bool = True,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of features, weight and bias that `needs` selects, else None.

    `added` is summed with that of the features. `gated`: the features are what a ReLU returned, and
    the gradient of its input takes the place of theirs.
    """
    needs_features, needs_weight, needs_bias = needs
    grad_features = grad_weight = grad_bias = None
    dtype, gate = features.dtype, features
    if needs_features:
        if allow_tiles and added is None and suits_grouped_convolution(features, weight, params):
            grad_features = grouped_input_gradient(
                gradient, weight, features.shape, gate if gated else None, stride=params.stride[0]
            )
            gated = False
        else:
            grad_features = _special_features_gradient(
                gradient, features, weight, params, allow_tiles=allow_tiles
            )
        needs_features = grad_features is None
    if needs_weight:
        grad_weight, grad_bias = _special_weight_gradient(
            gradient, features, weight, params, allow_tiles=allow_tiles
        )
        needs_weight, needs_bias = grad_weight is None, needs_bias and grad_bias is None
    if needs_weight and features.shape[3] == 1 and params.stride != (1, 1):
        # For maps one pixel wide oneDNN 3.7's BF16 kernel leaves the outer taps of the gradient
        # unwritten: they hold what was in memory before, NaN included.
        wide = torch.promote_types(dtype, torch.float32)
        gradient, features, weight = gradient.to(wide), features.to(wide), weight.to(wide)
    if needs_features or needs_weight or needs_bias:
        computed = _onednn_gradients(
            gradient, features, weight, params, needs=(needs_features, needs_weight, needs_bias)
        )
        if needs_features and computed[0] is not None:
            grad_features = computed[0].to(dtype)
        grad_weight = computed[1] if needs_weight else grad_weight
        grad_bias = computed[2] if needs_bias else grad_bias
    if grad_features is not None and gated:
        grad_features = masked_sum_(
            [grad_features] if added is None else [grad_features, added], gate
        )
    elif grad_features is not None and added is not None:
        grad_features = grad_features.add_(added)
    return grad_features, grad_weight, grad_bias


def _special_features_gradient(
    gradient: Tensor, features: Tensor, weight: Tensor, params: ConvParams, *, allow_tiles: bool
) -> Tensor | None:
    """Return the features' gradient where oneDNN's is wrong or slow, else None."""
    # With an odd number of outputs oneDNN reads past the gradient, see `padded_to_even`.
    if len(weight) % 2 == 1:
        gradient, weight = padded_to_even(gradient, dim=1), padded_to_even(weight, dim=0)
        needs = (True, False, False)
        return _onednn_gradients(gradient, features, weight, params, needs=needs)[0]
    if allow_tiles and suits_pointwise(features, weight, params, stride=2):
        _, turned = pack_weight(weight, for_gradients=True)
        assert turned is not None
        size = (features.shape[2], features.shape[3])
        return pointwise_convolve(gradient, turned, spread_over=size)
    return None


def _special_weight_gradient(
    gradient: Tensor, features: Tensor, weight: Tensor, params: ConvParams, *, allow_tiles: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the weight's gradient, perhaps with the bias's, where oneDNN's is slow, else None."""
    if weight.shape[2:] == (1, 1) and params == POINTWISE:
        # One matrix product over the pixels: oneDNN is faster at that than at the convolution. The
        # maps become [N * H * W, C], which are views where they are channels_last.
        by_pixel, features_by_pixel = (
            maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]) for maps in (gradient, features)
        )
        product = by_pixel.t() @ features_by_pixel
        # DDP warns, and copies, if a gradient's strides are not those of its weight.
        return product.as_strided(weight.shape, weight.stride()), None
    if allow_tiles and suits_grouped_weight_gradient(features, weight, params):
        return grouped_weight_gradient(
            features, gradient, group_width=weight.shape[1], stride=params.stride[0]
        )
    return None, None


def _onednn_gradients(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    params: ConvParams,
    *,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    stride, padding, groups = params
    return torch.ops.aten.convolution_backward(
        gradient, features, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), groups,
        needs,
    )  # fmt: skip


def suits_tiles(features: Tensor, weight: Tensor, params: ConvParams) -> bool:
    """Return whether AMX's own kernel computes the weight's gradient of a convolution here."""
    size = weight.shape[2:]
    known = (
        (size == (3, 3) and params == SAME_3X3)
        or (size == (1, 1) and params == POINTWISE)
        or (size == (1, 1) and params == ConvParams((2, 2), (0, 0), 1))
    )
    return known and suits_kernels(features) and has_tiles()


def suits_packing(levels: Sequence[Tensor], weight: Tensor, form: _Form) -> bool:
    """Return whether AMX's own kernels compute a convolution and all its gradients."""
    if weight.shape[2:] == (1, 1):
        return len(levels) == 1 and suits_pointwise(levels[0], weight, form.params)
    plain = form.params == SAME_3X3 and not (form.adds or form.passes)
    return plain and suits_tiles(levels[0], weight, form.params)


def suits_pointwise(
    features: Tensor, weight: Tensor, params: ConvParams, *, stride: int = 1
) -> bool:
    """Return whether AMX's own kernel computes a 1×1 convolution and its input gradient here.

    With a stride of 2 it computes the latter alone.
    """
    known = params == ConvParams((stride, stride), (0, 0), 1)
    whole = all(channels % BLOCK == 0 for channels in weight.shape[:2])
    return known and whole and suits_tiles(features, weight, params)


def suits_pointwise_vectors(features: Tensor, weight: Tensor, params: ConvParams) -> bool:
    """Return whether the kernel for AVX-512 BF16 computes a 1×1 convolution's weight gradient."""
    known = params in (POINTWISE, ConvParams((2, 2), (0, 0), 1)) and weight.shape[2:] == (1, 1)
    whole = all(channels % BLOCK == 0 for channels in weight.shape[:2])
    return known and whole and suits_kernels(features) and best_tiles() is Tiles.VECTORS


def suits_grouped_convolution(features: Tensor, weight: Tensor, params: ConvParams) -> bool:
    """Return whether our own kernels compute a grouped convolution and its input gradient here.

    Without AMX they are faster than oneDNN 3.7 for all group widths.
    """
    known = suits_kernels(features) and is_grouped(weight, *params)
    by_tiles = has_tiles() and beats_onednn(weight, params.stride)
    return known and (by_tiles or best_tiles() is Tiles.VECTORS)


def suits_grouped_weight_gradient(features: Tensor, weight: Tensor, params: ConvParams) -> bool:
    """Return whether our own kernel computes a grouped convolution's weight gradient here.

    Without AMX it is faster than oneDNN 3.7 for up to 8 channels a group, or 16 with a stride of 2.
    """
    fast = weight.shape[1] <= 8 or (weight.shape[1] == 16 and params.stride == (2, 2))
    known = suits_kernels(features) and is_grouped(weight, *params)
    return known and (has_tiles() or (fast and best_tiles() is Tiles.VECTORS))


def _sum(total: Tensor | None, part: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if total is None or part is None:
        return None if part is None else part.to(dtype)
    return total.add_(part)
