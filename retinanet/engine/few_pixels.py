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
from itertools import chain, zip_longest
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
    values, scale = channels_last(weight.values), float32_or_none(weight.scale)
    sources = [channels_last(level) for level in levels]
    outputs = [
        empty_maps(
            level.shape[0], values.shape[0], *(-(-side // stride) for side in level.shape[2:])
        )
        for level in levels
    ]
    maps = _Maps(sources, outputs, () if added is None else (channels_last(added),))
    _call(
        "few_pixels_outputs", maps, values, stride, (values, scale, float32_or_none(bias), relu),
        written=outputs,
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
    terms = () if added is None else (channels_last(added),)
    maps = _Maps(sources, results, terms, [channels_last(gate) for gate in gates])
    arguments = (values, float32_or_none(weight.scale))
    _call("few_pixels_inputs", maps, values, stride, arguments, written=results)
    return results


def few_pixels_weight_gradient(
    levels: Sequence[Tensor],
    gradients: Sequence[Tensor],
    weight: ScaledWeight,
    *,
    stride: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `weight.values` and of the bias [O], float32, summed over levels."""
    assert count_pixels(gradients) <= MOST_PIXELS
    maps = _Maps(
        [channels_last(level) for level in levels], [channels_last(maps) for maps in gradients]
    )
    of_weight = torch.empty_like(weight.values, memory_format=torch.channels_last)
    of_bias = torch.empty(of_weight.shape[0])
    arguments = (float32_or_none(weight.scale), of_weight, of_bias)
    _call("few_pixels_weights", maps, of_weight, stride, arguments, written=(of_weight, of_bias))
    return of_weight, of_bias


def count_pixels(maps: Sequence[Tensor], stride: int = 1) -> int:
    """Return the pixels of convolutions' outputs, summed over images and levels."""
    return sum(
        level.shape[0] * math.prod(-(-side // stride) for side in level.shape[2:]) for level in maps
    )


class _Maps(NamedTuple):
    """The maps of each level, as `Maps` of few_pixels.cpp names them; the last two may be empty."""

    sources: Sequence[Tensor]
    results: Sequence[Tensor]
    added: Sequence[Tensor] = ()
    gates: Sequence[Tensor] = ()


def _call(
    function: str,
    maps: _Maps,
    weight: Tensor,
    stride: int,
    arguments: tuple[Tensor | bool | None, ...],
    *,
    written: Sequence[Tensor],
) -> None:
    """Call a function that reads all maps and arguments which it does not write."""
    pixels, (outputs, inputs, kernel, _) = count_pixels(maps.results), weight.shape
    shape, threads = _shape_record(outputs, inputs, kernel, stride), torch.get_num_threads()
    levels = b"".join(
        _maps_record(
            source, result, term, gate, source.shape[0], *source.shape[2:], *result.shape[2:]
        )
        for source, result, term, gate in zip_longest(*maps)
    )
    scratch = scratch_bytes(_count_bytes(shape, pixels, threads))
    tensors = (value for value in (*chain(*maps), *arguments) if isinstance(value, Tensor))
    FEW_PIXELS.call(
        function, levels, len(maps.sources), shape, *arguments, scratch, threads,
        read=(value for value in tensors if all(value is not other for other in written)),
        written=written,
    )  # fmt: skip


@functools.cache
def _count_bytes(shape: bytes, pixels: int, threads: int) -> int:
    size: int = FEW_PIXELS.library().few_pixels_bytes(shape, pixels, threads)
    return size
