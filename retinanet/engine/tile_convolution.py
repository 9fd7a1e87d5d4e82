"""Convolutions and their gradients by tile instructions: AMX's, or the same in AVX-512 BF16.

The C++ is in csrc/tile_weights.cpp (weights in the order in which the kernels read them),
tile_convolution.cpp (dense 3×3, stride 1, padding 1), pointwise_convolution.cpp (1×1, one group,
multiples of 32 channels, stride 1, or 2 for input gradients) and weight_gradient.cpp. An input's
gradient is a convolution by the weight turned round. pointwise_gradient.cpp has the weight
gradients of 1×1 convolutions for AVX-512 BF16 alone, in the form that suits vectors.

Maps are BF16 [N, C, H, W]; what is not in channels_last memory is copied. In all functions `tiles`
computes the tile instructions, and each raises NativeLibraryError where its kernel cannot be
compiled or loaded.
"""

import functools
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from common.machine import cpu_flags
from common.native import CPU_FLAGS_NEEDED, NativeLibraryError
from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    c_struct,
    channels_last,
    channels_last_or_none,
    empty_maps,
    float32_or_none,
    is_one_block,
    level_records,
    scratch_bytes,
)

WEIGHTS = Kernels(
    CSRC / "tile_weights.cpp",
    tile_weights_permitted="->i",
    tile_weights_round="PPi",
    tile_weights_pack="PPPi",
)
CONVOLUTION = Kernels(
    CSRC / "tile_convolution.cpp",
    tile_convolution_scratch_bytes="Pqqqi->q",
    tile_convolution="PqqqPPiPii",
)
POINTWISE = Kernels(
    CSRC / "pointwise_convolution.cpp",
    pointwise_scratch_bytes="qqqii->q",
    pointwise_convolution="PqqPPPiPii",
)
WEIGHT_GRADIENT = Kernels(
    CSRC / "weight_gradient.cpp",
    weight_gradient_bytes="PqPi->q",
    weight_gradient_sum="PqPPPPPii",
)
POINTWISE_GRADIENT = Kernels(
    CSRC / "pointwise_gradient.cpp",
    pointwise_gradient_bytes="PqPi->q",
    pointwise_gradient_sum="PqPPPPPi",
)

BLOCK = 32
"""Packed weights have multiples of this number of channels, the last ones zeros; those of 1×1
convolutions must have them anyway."""


class Tiles(IntEnum):
    """The unit that computes the tile instructions, as csrc/tiles.h has it."""

    AMX = 0
    VECTORS = 1  # AVX-512 BF16
    EMULATED = 2  # Plain C++, slow, for tests on any processor


@functools.cache
def best_tiles() -> Tiles | None:
    """Return the fastest that this processor has, or None where it has neither or C++ fails."""
    flags = cpu_flags()
    if not {"avx512_bf16", *CPU_FLAGS_NEEDED["x86-64-v4"]} <= flags:
        return None
    try:
        # A process needs Linux' permission for AMX's tiles; this requests it for all kernels.
        permitted = bool(WEIGHTS.library().tile_weights_permitted())
    except NativeLibraryError:
        return None
    return Tiles.AMX if permitted and "amx_bf16" in flags else Tiles.VECTORS


class PackedWeight(NamedTuple):
    """A convolution's weight, rounded to BF16, in tiles; or turned round, for input gradients."""

    values: Tensor
    channels: int  # Channels of the result


_weights_record = c_struct("P values scale", "q outputs inputs taps")
"""`Weights` as tile_weights.cpp has it."""


def pack_weight(
    weight: Tensor, scale: Tensor | None = None, *, for_gradients: bool = False
) -> tuple[PackedWeight, PackedWeight | None]:
    """Return `weight * scale`, rounded once to BF16, in the order in which the kernels read it.

    `weight` is [O, I, h, w] of one group, converted to float32, `scale` [O]. The second result is
    the weight turned round, if `for_gradients`, else None.
    """
    weight, scale = channels_last(weight.detach().float()), float32_or_none(scale)
    outputs, inputs, *size = weight.shape
    taps = size[0] * size[1]
    record = _weights_record(weight, scale, outputs, inputs, taps)
    tiles = -(-outputs // BLOCK) * -(-inputs // BLOCK) * taps
    packed = [scratch_bytes(2 * BLOCK * BLOCK * tiles) for _ in range(1 + for_gradients)]
    turned = packed[1] if for_gradients else None
    WEIGHTS.call(
        "tile_weights_pack", record, packed[0], turned, torch.get_num_threads(),
        read=(weight,), written=packed,
    )  # fmt: skip
    backward = None if turned is None else PackedWeight(turned, inputs)
    return PackedWeight(packed[0], outputs), backward


def round_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """Return `weight * scale`, float32 [O, …] and [O], rounded once to BF16, in the same layout."""
    weight = weight.detach() if is_one_block(weight) else channels_last(weight.detach())
    values, factors = torch.empty_like(weight, dtype=torch.bfloat16), float32_or_none(scale)
    record = _weights_record(weight, factors, weight.shape[0], weight[0].numel(), 1)
    WEIGHTS.call(
        "tile_weights_round", record, values, torch.get_num_threads(),
        read=(weight, factors), written=(values,),
    )  # fmt: skip
    return values


def tile_convolve(
    inputs: Sequence[Tensor],
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    gates: Sequence[Tensor] = (),
    tiles: Tiles,
) -> list[Tensor]:
    """Return the results of a 3×3 convolution for each level; `bias` is float32 [O].

    `gates`: maps that a ReLU returned. The result is zero where they are zero or negative, which
    makes a gradient that of the ReLU's input.
    """
    inputs = [channels_last(level) for level in inputs]
    gates = [channels_last(gate) for gate in gates]
    packed, channels, threads = weight.values, weight.channels, torch.get_num_threads()
    outputs = [empty_maps(level.shape[0], channels, *level.shape[2:]) for level in inputs]
    work = (level_records(inputs, outputs, gates), len(inputs), inputs[0].shape[1], channels)
    size = CONVOLUTION.library().tile_convolution_scratch_bytes(*work, threads)
    CONVOLUTION.call(
        "tile_convolution",
        *work, packed, bias, relu, scratch_bytes(size), threads, tiles,
        read=(*inputs, *gates, packed, bias), written=outputs,
    )  # fmt: skip
    return outputs


_target_record = c_struct("P output added gate bias", "? relu", "q outputs")
"""`Target` as csrc/tile_writer.h has it."""
_spread_record = c_struct("q height width map_height map_width step")
"""`Spread` as pointwise_convolution.cpp has it."""


def pointwise_convolve(
    features: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    added: Tensor | None = None,
    gate: Tensor | None = None,
    relu: bool = False,
    spread_over: tuple[int, int] | None = None,
    tiles: Tiles,
) -> Tensor:
    """Return a 1×1 convolution's result plus `added`, then optionally ReLU; NaN stays.

    It is zero where `gate` is closed, see `tile_convolve`. `spread_over`: (height, width) of
    the result, whose every second row and column the features are, which makes it the input's
    gradient of a convolution of stride 2.
    """
    features, bias = channels_last(features), float32_or_none(bias)
    added, gate = channels_last_or_none(added), channels_last_or_none(gate)
    packed, channels = weight
    images, inputs, height, width = features.shape
    map_size = spread_over or (height, width)
    output = empty_maps(images, channels, *map_size)
    if spread_over is not None:
        # The kernel writes a quarter of the pixels; no gradient reaches the others.
        output.zero_()
    spread = _spread_record(height, width, *map_size, 1 if spread_over is None else 2)
    target = _target_record(output, added, gate, bias, relu, channels)
    maps = 1 + (added is not None) + (gate is not None)
    pixels, threads = images * height * width, torch.get_num_threads()
    size = POINTWISE.library().pointwise_scratch_bytes(pixels, inputs, channels, maps, threads)
    POINTWISE.call(
        "pointwise_convolution",
        features, pixels, inputs, packed, target, spread, maps, scratch_bytes(size), threads,
        tiles,
        read=(features, packed, added, gate, bias), written=(output,),
    )  # fmt: skip
    return output


_level_record = c_struct("P input gradient", "q images height width input_height input_width")
"""`Level` as weight_gradient.cpp and pointwise_gradient.cpp have it."""
_shape_record = c_struct("q inputs outputs kernel stride")  # `Shape` of weight_gradient.cpp


def weight_gradient(
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    kernel: int,
    stride: int = 1,
    scale: Tensor | None = None,
    tiles: Tiles,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution's weight and bias, summed over the levels.

    That of the weight is float32 [O, I, kernel, kernel] in channels_last memory, that of the bias
    [O]. `gradients` are those of the outputs. `kernel` is 3 (padding 1) or 1 (no padding), `stride`
    1, or 2 of a 1×1, and `scale` [O] a factor for each output's weights.
    """
    inputs = [channels_last(level) for level in inputs]
    gradients = [channels_last(gradient) for gradient in gradients]
    grad_weight, grad_bias = _empty_gradients(inputs, gradients, kernel=kernel)
    levels = _gradient_levels(inputs, gradients)
    shape = _shape_record(inputs[0].shape[1], len(grad_bias), kernel, stride)
    scale, threads = float32_or_none(scale), torch.get_num_threads()
    size = WEIGHT_GRADIENT.library().weight_gradient_bytes(levels, len(inputs), shape, threads)
    scratch = scratch_bytes(size)
    WEIGHT_GRADIENT.call(
        "weight_gradient_sum",
        levels, len(inputs), shape, scale, grad_weight, grad_bias, scratch, threads,
        tiles,
        read=(*inputs, *gradients), written=(grad_weight, grad_bias),
    )  # fmt: skip
    return grad_weight, grad_bias


_pixel_record = c_struct("q inputs outputs stride")  # `Shape` as pointwise_gradient.cpp has it


def pointwise_weight_gradient(
    inputs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *,
    stride: int = 1,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `weight_gradient` does for a 1×1 kernel, by the vectors of AVX-512 BF16.

    Channels are multiples of `BLOCK`.
    """
    inputs = [channels_last(level) for level in inputs]
    gradients = [channels_last(gradient) for gradient in gradients]
    grad_weight, grad_bias = _empty_gradients(inputs, gradients, kernel=1)
    levels = _gradient_levels(inputs, gradients)
    work = (levels, len(inputs), _pixel_record(inputs[0].shape[1], len(grad_bias), stride))
    scale, threads = float32_or_none(scale), torch.get_num_threads()
    size = POINTWISE_GRADIENT.library().pointwise_gradient_bytes(*work, threads)
    POINTWISE_GRADIENT.call(
        "pointwise_gradient_sum",
        *work, scale, grad_weight, grad_bias, scratch_bytes(size), threads,
        read=(*inputs, *gradients), written=(grad_weight, grad_bias),
    )  # fmt: skip
    return grad_weight, grad_bias


def _gradient_levels(inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> bytes:
    return b"".join(
        _level_record(level, gradient, level.shape[0], *gradient.shape[2:], *level.shape[2:])
        for level, gradient in zip(inputs, gradients, strict=True)
    )


def _empty_gradients(
    inputs: Sequence[Tensor], gradients: Sequence[Tensor], *, kernel: int
) -> tuple[Tensor, Tensor]:
    in_channels, out_channels = inputs[0].shape[1], gradients[0].shape[1]
    # Laid out as the weight: DDP and the optimizers would otherwise copy it.
    grad_weight = torch.empty(out_channels, kernel, kernel, in_channels).permute(0, 3, 1, 2)
    return grad_weight, torch.empty(out_channels)
