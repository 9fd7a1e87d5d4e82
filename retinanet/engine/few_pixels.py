"""Dense convolutions and their gradients for maps of few pixels, by csrc/few_pixels.cpp.

Reading weights takes most of the time there, so the float32 weight is scaled and rounded while it
is read, and no other form of it is written. Convolutions are 1×1 without padding or 3×3 with
padding 1, of stride 1 or 2, one group, and multiples of 32 input channels; outputs have at most
`MOST_PIXELS` pixels over all levels. Maps are BF16 [N, C, H, W]; what is not in channels_last
memory is copied. Each function raises NativeLibraryError where the kernel cannot be compiled.
"""

import functools
import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from retinanet.engine.kernel_calls import (
    CSRC,
    Kernels,
    c_struct,
    channels_last,
    empty_maps,
    float32_or_none,
    scratch_bytes,
)
from retinanet.model.retinanet import padded_to_even

FEW_PIXELS = Kernels(
    CSRC / "few_pixels.cpp",
    few_pixels_bytes="Pqi->q",
    few_pixels_outputs="PqPPPPiPi",
    few_pixels_inputs="PqPPPPi",
    few_pixels_weights="PqPPPPPi",
)
MOST_PIXELS = 256  # SUMMED in panel_products.h


class ScaledWeight(NamedTuple):
    """`values` [O, I, k, k] times `scale` [O] or 1; both float32."""

    values: Tensor
    scale: Tensor | None


_shape_record = c_struct("q outputs inputs kernel stride")  # `Shape` as few_pixels.cpp has it
_maps_record = c_struct(
    "P source result added gate", "q images source_height source_width height width"
)
"""`Maps`, also there."""


def few_pixels_outputs(
    levels: Sequence[Tensor],
    weight: ScaledWeight,
    bias: Tensor | None,
    *,
    stride: int,
    relu: bool = False,
    added: Tensor | None = None,
) -> list[Tensor]:
    """Return each level's convolution plus `bias` [O] and `added`, then ReLU; NaN stays.

    `added`, of the one level's output's shape, is for one level.
    """
    values, bias = channels_last(weight.values), float32_or_none(bias)
    sources = [channels_last(level) for level in levels]
    outputs = [
        empty_maps(
            level.shape[0], values.shape[0], *(-(-side // stride) for side in level.shape[2:])
        )
        for level in levels
    ]
    terms = () if added is None else (channels_last(added),)
    shape = _shape(values, stride)
    FEW_PIXELS.call(
        "few_pixels_outputs",
        _records(sources, outputs, terms, ()), len(levels), shape, values, weight.scale,
        bias, relu, *_scratch(shape, outputs),
        read=(*sources, *terms, values), written=outputs,
    )  # fmt: skip
    return outputs


def few_pixels_input_gradients(
    levels: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: ScaledWeight,
    *,
    stride: int,
    gates: Sequence[Tensor] = (),
    added: Tensor | None = None,
) -> list[Tensor]:
    """Return each level's gradient from its output's, plus `added`, for one level.

    It is zero where `gates`, maps of the levels' shapes that a ReLU returned, are zero or negative.
    """
    values = channels_last(weight.values)
    sources = [channels_last(padded_to_even(gradient, dim=1)) for gradient in gradients]
    results = [empty_maps(*level.shape) for level in levels]
    gates = [channels_last(gate) for gate in gates]
    terms = () if added is None else (channels_last(added),)
    shape = _shape(values, stride)
    FEW_PIXELS.call(
        "few_pixels_inputs",
        _records(sources, results, terms, gates), len(levels), shape, values, weight.scale,
        *_scratch(shape, results),
        read=(*sources, *terms, *gates, values), written=results,
    )  # fmt: skip
    return results


def few_pixels_weight_gradient(
    levels: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: ScaledWeight,
    *,
    stride: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `weight.values` and of the bias [O], float32, summed over levels."""
    sources = [channels_last(level) for level in levels]
    gradients = [channels_last(gradient) for gradient in gradients]
    of_weight = torch.empty_like(weight.values, memory_format=torch.channels_last)
    of_bias = torch.empty(of_weight.shape[0])
    shape = _shape(of_weight, stride)
    FEW_PIXELS.call(
        "few_pixels_weights",
        _records(sources, gradients, (), ()), len(levels), shape, weight.scale,
        of_weight, of_bias, *_scratch(shape, gradients),
        read=(*sources, *gradients), written=(of_weight, of_bias),
    )  # fmt: skip
    return of_weight, of_bias


def count_pixels(maps: Sequence[Tensor], stride: int = 1) -> int:
    """Return the pixels of convolutions' outputs, summed over images and levels."""
    return sum(
        level.shape[0] * math.prod(-(-side // stride) for side in level.shape[2:]) for level in maps
    )


def _records(
    sources: Sequence[Tensor],
    results: Sequence[Tensor],
    added: Sequence[Tensor],
    gates: Sequence[Tensor],
) -> bytes:
    maps = zip_longest(sources, results, added, gates)
    return b"".join(
        _maps_record(
            source, result, term, gate, source.shape[0], *source.shape[2:], *result.shape[2:]
        )
        for source, result, term, gate in maps
    )


def _shape(weight: Tensor, stride: int) -> bytes:
    outputs, inputs, kernel, _ = weight.shape
    return _shape_record(outputs, inputs, kernel, stride)


def _scratch(shape: bytes, results: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Return scratch memory and the number of threads that it is for."""
    threads = torch.get_num_threads()
    return scratch_bytes(_count_bytes(shape, count_pixels(results), threads)), threads


@functools.cache
def _count_bytes(shape: bytes, pixels: int, threads: int) -> int:
    size: int = FEW_PIXELS.library().few_pixels_bytes(shape, pixels, threads)
    return size
