"""The one place that decides which kernel computes a convolution and its gradients, and calls it.

`choose_kernels` names them for a layer and a machine; `compute_outputs`, `input_gradients` and
`weight_gradients` call them. `python -m retinanet.engine.kernels` prints
the choice for the layers of the model on three kinds of processors, the table of docs/code.md.
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.machine import cpu_flags
from retinanet.engine.few_pixels import (
    MOST_PIXELS,
    ScaledWeight,
    count_pixels,
    few_pixels_input_gradients,
    few_pixels_outputs,
    few_pixels_weight_gradient,
)
from retinanet.engine.grouped_convolution import (
    grouped_convolution,
    grouped_input_gradient,
    grouped_weight_gradient,
)
from retinanet.engine.kernel_calls import suits_kernels
from retinanet.engine.norm_relu import add_relu_, masked_sum_
from retinanet.engine.tile_convolution import (
    BLOCK,
    PackedWeight,
    Tiles,
    best_tiles,
    pack_weight,
    pointwise_convolve,
    pointwise_weight_gradient,
    round_weight,
    tile_convolve,
    weight_gradient,
)
from retinanet.engine.winograd import choose_winograd
from retinanet.model.retinanet import RetinaNet, padded_to_even


class ConvParams(NamedTuple):
    """The stride, padding and groups of a convolution; pairs are (rows, columns)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int


POINTWISE = ConvParams((1, 1), (0, 0), 1)
POINTWISE_OF_STRIDE_2 = ConvParams((2, 2), (0, 0), 1)
SAME_3X3 = ConvParams((1, 1), (1, 1), 1)


def get_conv_params(convolution: nn.Conv2d) -> ConvParams:
    """Return the parameters of a convolution without dilation and with zero padding."""
    assert not isinstance(convolution.padding, str)
    assert convolution.dilation == (1, 1)
    return ConvParams(convolution.stride, convolution.padding, convolution.groups)


class Machine(NamedTuple):
    """What a processor, the precision and the settings offer to convolutions besides oneDNN."""

    tiles: Tiles | None = None
    """The unit of our own kernels; EMULATED is chosen for as AMX is."""
    has_winograd: bool = False


ONLY_ONEDNN = Machine()


def machine_for(precision: str, convolutions: str) -> Machine:
    """Return what this machine offers to `engine.precision` and `engine.convolutions`.

    Raises:
        InputError: `convolutions` is "winograd", and it is not available on this machine.
    """
    if precision != "bf16":
        return ONLY_ONEDNN
    has_winograd = choose_winograd(convolutions)
    return Machine(None if convolutions == "onednn" else best_tiles(), has_winograd)


class Kernel(Enum):
    """What computes outputs or gradients, by the name that the table prints."""

    TILES = "tiles"  # tile_convolution.cpp, weight_gradient.cpp
    POINTWISE_TILES = "1×1 tiles"  # pointwise_convolution.cpp
    VECTORS = "vectors"  # pointwise_gradient.cpp
    GROUPED = "grouped"  # grouped_convolution.cpp or grouped_rows.cpp, grouped_weight_gradient.cpp
    WINOGRAD = "Winograd"  # winograd.cpp
    FEW_PIXELS = "few pixels"  # few_pixels.cpp
    MATRIX_PRODUCT = "product"
    """One matrix product over the pixels: oneDNN is faster at that than at the convolution."""
    PADDED_ONEDNN = "oneDNN, padded"
    """With an odd number of outputs oneDNN reads past the gradient, see `padded_to_even`."""
    ONEDNN = "oneDNN"


PACKED_KERNELS = (Kernel.TILES, Kernel.POINTWISE_TILES)
"""Those that read weights as tiles, see `pack_weight`."""


class LayerKernels(NamedTuple):
    """A layer and its kernels."""

    forward: Kernel
    input_gradient: Kernel
    weight_gradient: Kernel
    shape: tuple[int, ...]  # Of the weight: (outputs, inputs of a group, height, width)
    params: ConvParams
    unit: Tiles | None

    @property
    def tiles(self) -> Tiles:
        """Return the unit of our own kernels, where one of them is chosen."""
        assert self.unit is not None
        return self.unit


@functools.cache
def choose_kernels(
    shape: tuple[int, ...],
    params: ConvParams,
    machine: Machine = ONLY_ONEDNN,
    *,
    few_pixels: bool = False,
) -> LayerKernels:
    """Choose for a weight of this shape [O, I / groups, h, w] and BF16 maps.

    `few_pixels`: the outputs have at most `MOST_PIXELS` pixels.

    The speeds that decide were measured beside oneDNN 3.7, see docs/experiments.md.
    """
    outputs, group_width, *size = shape
    has_amx = machine.tiles in (Tiles.AMX, Tiles.EMULATED)
    has_vectors = machine.tiles is Tiles.VECTORS
    is_same_3x3 = size == [3, 3] and params == SAME_3X3
    is_pointwise = size == [1, 1] and params in (POINTWISE, POINTWISE_OF_STRIDE_2)
    in_blocks = outputs % BLOCK == 0 and group_width % BLOCK == 0

    forward = Kernel.ONEDNN
    of_input = Kernel.PADDED_ONEDNN if outputs % 2 else Kernel.ONEDNN
    of_weight = Kernel.MATRIX_PRODUCT if is_pointwise and params == POINTWISE else Kernel.ONEDNN
    if few_pixels and has_vectors and is_dense(shape, params):
        forward = of_input = of_weight = Kernel.FEW_PIXELS
    elif is_same_3x3 and machine.has_winograd:
        forward = of_input = of_weight = Kernel.WINOGRAD
    elif is_same_3x3 and has_amx:
        forward = of_input = of_weight = Kernel.TILES
    elif is_pointwise and (has_amx or has_vectors):
        if has_amx:
            of_weight = Kernel.TILES
        elif in_blocks:
            of_weight = Kernel.VECTORS
        if in_blocks:
            of_input = Kernel.POINTWISE_TILES
            forward = Kernel.POINTWISE_TILES if params == POINTWISE else Kernel.ONEDNN
    elif is_grouped(shape, params):
        is_narrow, has_stride_2 = group_width <= 8, params.stride == (2, 2)
        # With 16 and more channels a group oneDNN's tiles are as full as ours.
        if has_vectors or (has_amx and (is_narrow or has_stride_2)):
            forward = of_input = Kernel.GROUPED
        if has_amx or has_vectors:
            of_weight = Kernel.GROUPED
    return LayerKernels(forward, of_input, of_weight, shape, params, machine.tiles)


def is_dense(shape: tuple[int, ...], params: ConvParams) -> bool:
    """Return whether a convolution is one that few_pixels.py is for."""
    _, inputs, height, width = shape
    return (
        params.groups == 1
        and inputs % BLOCK == 0
        and height == width
        and (height, params.padding) in ((1, (0, 0)), (3, (1, 1)))
        and params.stride in ((1, 1), (2, 2))
    )


def is_grouped(shape: tuple[int, ...], params: ConvParams) -> bool:
    """Return whether a convolution is one that grouped_convolution.py is for."""
    outputs, group_width, *size = shape
    return (
        group_width in (4, 8, 16, 32)
        and params.groups > 1
        and outputs == group_width * params.groups
        and outputs % BLOCK == 0
        and size == [3, 3]
        and params.padding == (1, 1)
        and params.stride in ((1, 1), (2, 2))
    )


def kernels_for(
    levels: Sequence[Tensor], weight: Tensor, params: ConvParams, machine: Machine
) -> LayerKernels:
    """Return the kernels for these maps: oneDNN's, unless all are BF16 and not of zero images."""
    suitable = all(map(suits_kernels, levels))
    few = count_pixels(levels, params.stride[0]) <= MOST_PIXELS
    return choose_kernels(
        tuple(weight.shape), params, machine if suitable else ONLY_ONEDNN, few_pixels=few
    )


def prepare_weight(
    weight: Tensor,
    scale: Tensor | None,
    kernels: LayerKernels,
    dtype: torch.dtype,
    *,
    for_gradients: bool = False,
) -> tuple[Tensor | PackedWeight | ScaledWeight, Tensor | None]:
    """Return `weight * scale`, rounded once, for outputs, and what the gradients need of it.

    Tiles are packed for both passes at once, so that the float32 weight is read once a step; the
    turned ones are None unless `for_gradients`. Other kernels share one tensor in the weight's
    layout, which is saved instead of the float32 weight: the backward pass needs no second cast,
    and the weight's gradient does not depend on the weight. Maps of few pixels take the weight as
    it is.
    """
    if kernels.forward is Kernel.FEW_PIXELS:
        return ScaledWeight(weight, scale), weight
    if kernels.forward in PACKED_KERNELS:
        packed, turned = pack_weight(weight, scale, for_gradients=for_gradients)
        return packed, None if turned is None else turned.values
    if scale is None:
        cast = weight.detach().to(dtype)
    elif dtype == torch.bfloat16 and weight.dtype == torch.float32 and kernels.unit is not None:
        cast = round_weight(weight, scale)
    else:
        cast = torch.empty_like(weight, dtype=dtype, requires_grad=False)
        torch.mul(weight.detach(), scale.view(-1, 1, 1, 1), out=cast)
    return cast, cast


def compute_outputs(
    levels: Sequence[Tensor],
    weight: Tensor | PackedWeight | ScaledWeight,
    bias: Tensor | None,
    kernels: LayerKernels,
    *,
    relu: bool = False,
    added: Tensor | None = None,
) -> list[Tensor]:
    """Convolve each level by a weight of `prepare_weight`; `added` is summed before the ReLU."""
    stride = kernels.params.stride[0]
    if isinstance(weight, ScaledWeight):
        return few_pixels_outputs(levels, weight, bias, stride=stride, relu=relu, added=added)
    if isinstance(weight, PackedWeight) and kernels.forward is Kernel.POINTWISE_TILES:
        return [
            pointwise_convolve(level, weight, bias, added=added, relu=relu, tiles=kernels.tiles)
            for level in levels
        ]
    fused_relu = relu and added is None
    if isinstance(weight, PackedWeight):
        outputs = tile_convolve(levels, weight, bias, relu=fused_relu, tiles=kernels.tiles)
    elif kernels.forward is Kernel.GROUPED:
        outputs = [
            grouped_convolution(
                level, weight, bias, stride=stride, relu=fused_relu, tiles=kernels.tiles
            )
            for level in levels
        ]
    else:
        outputs = [
            onednn_convolution(level, weight, bias, kernels.params, relu=fused_relu)
            for level in levels
        ]
    return outputs if added is None else [add_relu_(outputs[0], added)]


RELU_SLOPE = 2.0**-100
"""Slope of oneDNN's leaky ReLU, for negative values. With oneDNN's plain ReLU NaN becomes 0, and an
error that should stop the training becomes a wrong result. 1e-30 of a value counts as 0."""


def onednn_convolution(
    features: Tensor, weight: Tensor, bias: Tensor | None, params: ConvParams, *, relu: bool
) -> Tensor:
    """Convolve [N, I, H, W] to [N, O, H', W']; the bias is cast, the rest has one precision."""
    stride, padding, groups = params
    if leaks_on_amx(features, weight, params):
        features, weight, precision = features.float(), weight.float(), features.dtype
        wide = onednn_convolution(features, weight, bias, params, relu=relu)
        return wide.to(precision, memory_format=torch.channels_last)
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


FEW_PIXELS = 64


def leaks_on_amx(features: Tensor, weight: Tensor, params: ConvParams) -> bool:
    """Return whether oneDNN may let memory beside maps this small reach its BF16 results.

    On AMX oneDNN 3.10 did in strided 3×3 convolutions of maps of 1 to 36 pixels, where a NaN in
    foreign memory becomes NaN in the result; convolutions without a stride and of 1×1 did not.
    """
    few = features.shape[2] * features.shape[3] <= FEW_PIXELS * math.prod(params.stride)
    is_strided = params.stride != (1, 1) and weight.shape[3] == 3
    return few and is_strided and features.dtype == torch.bfloat16 and "amx_bf16" in cpu_flags()


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


def input_gradients(
    levels: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: Tensor | None,
    kernels: LayerKernels,
    *,
    gated: bool = False,
    added: Tensor | None = None,
    scale: Tensor | None = None,
) -> list[Tensor]:
    """Return the gradient of each level from that of its output.

    `weight` is the second result of `prepare_weight`. `gated`: the levels are what a ReLU returned,
    and the gradient of its input takes the place of theirs. `added` is summed before; one level.
    """
    assert weight is not None
    kernel, stride = kernels.input_gradient, kernels.params.stride[0]
    if kernel is Kernel.FEW_PIXELS:
        return few_pixels_input_gradients(
            levels, gradients, ScaledWeight(weight, scale),
            stride=stride, gates=levels if gated else (), added=added,
        )  # fmt: skip
    turned = PackedWeight(weight, kernels.shape[1])
    pairs = list(zip(gradients, levels, strict=True))
    if kernel is Kernel.POINTWISE_TILES and stride == 1:
        return [
            pointwise_convolve(
                gradient, turned, added=added, gate=level if gated else None, tiles=kernels.tiles
            )
            for gradient, level in pairs
        ]
    fuses_gate = gated and added is None
    if kernel is Kernel.TILES:
        gates = levels if fuses_gate else ()
        results = tile_convolve(gradients, turned, gates=gates, tiles=kernels.tiles)
    elif kernel is Kernel.GROUPED:
        results = [
            grouped_input_gradient(
                gradient, weight, level.shape, level if fuses_gate else None,
                stride=stride, tiles=kernels.tiles,
            )
            for gradient, level in pairs
        ]  # fmt: skip
    else:
        fuses_gate = False
        results = [_input_gradient(*pair, weight, kernels) for pair in pairs]
    terms = [] if added is None else [added]
    if gated and not fuses_gate:
        masked = zip(results, levels, strict=True)
        return [masked_sum_([result, *terms], level) for result, level in masked]
    return results if added is None else [results[0].add_(added)]


def _input_gradient(
    gradient: Tensor, level: Tensor, weight: Tensor, kernels: LayerKernels
) -> Tensor:
    """Return the gradient of a level by kernels that neither sum nor mask."""
    if kernels.input_gradient is Kernel.POINTWISE_TILES:
        _, turned = pack_weight(weight, for_gradients=True)
        assert turned is not None
        size = (level.shape[2], level.shape[3])
        return pointwise_convolve(gradient, turned, spread_over=size, tiles=kernels.tiles)
    if kernels.input_gradient is Kernel.PADDED_ONEDNN:
        gradient, weight = padded_to_even(gradient, dim=1), padded_to_even(weight, dim=0)
    result, _, _ = _onednn_gradients(gradient, level, weight, kernels.params, (True, False, False))
    assert result is not None
    return result.to(level.dtype)


def weight_gradients(
    levels: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: Tensor | None,
    kernels: LayerKernels,
    *,
    scale: Tensor | None = None,
    needs_bias: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the float32 weight and of the bias, summed over the levels.

    `gradients` are those of the outputs; `weight` and `scale` as in `input_gradients` and
    `convolve`. The bias's may be there without `needs_bias`, too.
    """
    stride = kernels.params.stride[0]
    # One call for all levels, which share the sums, instead of writing and reading them again.
    if kernels.weight_gradient is Kernel.TILES:
        return weight_gradient(
            levels, gradients, kernel=kernels.shape[-1], stride=stride, scale=scale,
            tiles=kernels.tiles,
        )  # fmt: skip
    if kernels.weight_gradient is Kernel.VECTORS:
        return pointwise_weight_gradient(levels, gradients, stride=stride, scale=scale)
    assert weight is not None
    if kernels.weight_gradient is Kernel.FEW_PIXELS:
        scaled = ScaledWeight(weight, scale)
        return few_pixels_weight_gradient(levels, gradients, scaled, stride=stride)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    of_weight = of_bias = None
    for level, gradient in zip(levels, gradients, strict=True):
        weight_part, bias_part = _weight_gradient(level, gradient, weight, kernels, needs_bias)
        of_weight = _sum(of_weight, weight_part, dtype)
        of_bias = _sum(of_bias, bias_part, dtype)
    assert of_weight is not None
    # The gradient is that of `weight * scale`; the chain rule's factor comes last, in float32.
    if scale is not None:
        of_weight = of_weight.mul_(scale.view(-1, 1, 1, 1))
    return of_weight, of_bias


def _weight_gradient(
    level: Tensor, gradient: Tensor, weight: Tensor, kernels: LayerKernels, needs_bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    if kernels.weight_gradient is Kernel.GROUPED:
        stride, width = kernels.params.stride[0], kernels.shape[1]
        return grouped_weight_gradient(
            level, gradient, group_width=width, stride=stride, tiles=kernels.tiles
        )
    product = None
    if kernels.weight_gradient is Kernel.MATRIX_PRODUCT:
        # The maps become [N * H * W, C], which are views where they are channels_last.
        by_pixel, level_by_pixel = (
            maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]) for maps in (gradient, level)
        )
        # DDP warns, and copies, if a gradient's strides are not those of its weight.
        product = (by_pixel.t() @ level_by_pixel).as_strided(weight.shape, weight.stride())
        if not needs_bias:
            return product, None
    needs = (False, product is None, needs_bias)
    _, of_weight, of_bias = _onednn_gradients(gradient, level, weight, kernels.params, needs)
    return (of_weight if product is None else product), of_bias


def _onednn_gradients(
    gradient: Tensor,
    level: Tensor,
    weight: Tensor,
    params: ConvParams,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of level, weight and bias that `needs` selects, else None."""
    stride, padding, groups = params
    if (level.shape[3] == 1 and stride != (1, 1)) or leaks_on_amx(level, weight, params):
        # For maps one pixel wide the BF16 kernel of oneDNN 3.7 to 3.13 leaves the outer taps of the
        # weight's gradient unwritten: they hold what was in memory before, NaN included.
        wide = torch.promote_types(level.dtype, torch.float32)
        gradient, level, weight = gradient.to(wide), level.to(wide), weight.to(wide)
    return torch.ops.aten.convolution_backward(
        gradient, level, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), groups,
        needs,
    )  # fmt: skip


def _sum(total: Tensor | None, part: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if total is None or part is None:
        return None if part is None else part.to(dtype)
    return total.add_(part)


PROCESSORS = {
    "AMX": Machine(Tiles.AMX),
    "AVX-512 BF16": Machine(Tiles.VECTORS, has_winograd=True),
    "others, float32": ONLY_ONEDNN,
}
"""With `engine.convolutions=auto`."""


def print_table() -> None:
    """Print the kernels of output / input gradient / weight gradient, by kind of layer."""
    with torch.device("meta"):
        model = RetinaNet(num_classes=264)
    columns = {name: (machine, False) for name, machine in PROCESSORS.items()}
    small = (PROCESSORS["AVX-512 BF16"], True)
    columns[f"AVX-512 BF16, at most {MOST_PIXELS} pixels"] = small
    kinds: Counter[tuple[str, ...]] = Counter()
    for module in model.modules():
        if not isinstance(module, nn.Conv2d):
            continue
        params, shape = get_conv_params(module), tuple(module.weight.shape)
        groups = f", groups of {shape[1]}" if params.groups > 1 else ""
        stride = ", stride 2" if params.stride == (2, 2) else ""
        choices = (
            choose_kernels(shape, params, machine, few_pixels=few)[:3]
            for machine, few in columns.values()
        )
        cells = (" / ".join(kernel.value for kernel in kernels) for kernels in choices)
        kinds[f"{shape[2]}×{shape[3]}{stride}{groups}", *cells] += 1
    print("| layers of the model | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for (kind, *names), count in sorted(kinds.items()):
        print(f"| {count} of {kind} | " + " | ".join(names) + " |")


if __name__ == "__main__":
    print_table()
