"""AMX's kernel for 1×1 convolutions, against torch's in float64."""

import functools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.engine.convolution import POINTWISE, SAME_3X3, ConvParams, convolve
from retinanet.engine.tile_convolution import (
    PackedWeight,
    Tiles,
    pack_weight,
    pointwise_convolve,
)
from tests.retinanet.engine.kernels import BF16_ROUNDING, nan_in_new_memory


class Case(NamedTuple):
    """A convolution of a map [images, inputs, *size]."""

    images: int
    inputs: int
    outputs: int
    size: tuple[int, int]
    threads: int = 2


CASES = {
    "tasks of several sizes": Case(2, 64, 96, (21, 17)),
    "whole tiles": Case(1, 32, 64, (8, 8)),
    "one pixel": Case(1, 32, 32, (1, 1)),
    "one column": Case(2, 64, 32, (35, 1)),
    "one row": Case(3, 32, 32, (1, 21)),
    "one thread": Case(1, 96, 128, (33, 32), threads=1),
    "eight threads": Case(2, 128, 64, (5, 7), threads=8),
    "weights larger than their part of the cache": Case(1, 1024, 352, (9, 5)),
}


def map_of(case: Case, channels: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(case.images, channels, *case.size, generator=generator).bfloat16()
    return made.contiguous(memory_format=torch.channels_last)


def packed(weight: Tensor) -> PackedWeight:
    return pack_weight(weight)[0]


def turned(weight: Tensor) -> PackedWeight:
    _, backward = pack_weight(weight, for_gradients=True)
    assert backward is not None
    return backward


def weight_and_bias(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(case.outputs, case.inputs, 1, 1, generator=generator).bfloat16()
    return weight, torch.randn(case.outputs, generator=generator)


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """Within the rounding of the result to BF16; the sums are float32."""
    assert found.dtype == torch.bfloat16
    assert found.shape == wanted.shape
    assert found.permute(0, 2, 3, 1).is_contiguous()
    allowed = BF16_ROUNDING * wanted.abs() + 1e-4 * wanted.abs().max()
    assert ((found.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize(("with_added", "relu"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", CASES)
def test_output_is_the_convolutions(tiles: Tiles, name: str, with_added: bool, relu: bool) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    weight, bias = weight_and_bias(case)
    features = map_of(case, case.inputs, seed=0)
    added = map_of(case, case.outputs, seed=1) if with_added else None
    found = pointwise_convolve(features, packed(weight), bias, added=added, relu=relu, tiles=tiles)
    wanted = F.conv2d(features.double(), weight.double(), bias.double())
    if added is not None:
        wanted = wanted + added.double()
    assert_close(found, wanted.relu() if relu else wanted)


@pytest.mark.parametrize(("with_added", "gated"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", CASES)
def test_input_gradient_is_the_convolutions(
    tiles: Tiles, name: str, with_added: bool, gated: bool
) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    weight, _ = weight_and_bias(case)
    gradient = map_of(case, case.outputs, seed=1)
    added = map_of(case, case.inputs, seed=3) if with_added else None
    gate = map_of(case, case.inputs, seed=4).relu() if gated else None
    found = pointwise_convolve(gradient, turned(weight), added=added, gate=gate, tiles=tiles)
    wanted = F.conv_transpose2d(gradient.double(), weight.double())
    if added is not None:
        wanted = wanted + added.double()
    assert_close(found, wanted if gate is None else wanted * (gate > 0))


@pytest.mark.parametrize("size", [(9, 14), (10, 13), (1, 1), (2, 21)])
def test_input_gradient_of_stride_2_is_the_convolutions(
    tiles: Tiles, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    features = torch.randn(3, 64, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(32, 64, 1, 1).bfloat16()
    output = F.conv2d(features, weight.double(), stride=2)
    gradient = torch.randn(output.shape).bfloat16()
    [wanted] = torch.autograd.grad(output, [features], gradient.double())
    found = pointwise_convolve(gradient, turned(weight), spread_over=size, tiles=tiles)
    assert_close(found, wanted)


def test_nan_around_the_maps_and_in_scratch_memory_does_not_reach_results(tiles: Tiles) -> None:
    case = CASES["one column"]
    weight, bias = weight_and_bias(case)
    features, added = (map_of(case, channels, seed=0) for channels in (case.inputs, case.outputs))
    plain = pointwise_convolve(features, packed(weight), bias, added=added, relu=True, tiles=tiles)

    def amid_nan(level: Tensor) -> Tensor:
        memory = torch.full((level.numel() + 4096,), torch.nan, dtype=torch.bfloat16)
        return memory[2048:].as_strided(level.shape, level.stride(), 2048).copy_(level)

    features, added = amid_nan(features), amid_nan(added)
    with nan_in_new_memory():
        found = pointwise_convolve(
            features, packed(weight), bias, added=added, relu=True, tiles=tiles
        )
    assert torch.equal(found, plain)


def test_nan_reaches_its_pixel_alone_and_passes_relu(tiles: Tiles) -> None:
    case = CASES["one row"]
    weight, bias = weight_and_bias(case)
    features = map_of(case, case.inputs, seed=0)
    features[1, 3, 0, 20] = torch.nan
    found = pointwise_convolve(features, packed(weight), bias, relu=True, tiles=tiles)
    assert found[1, :, 0, 20].isnan().all()
    assert found.isnan().sum() == case.outputs


def test_a_nan_gate_is_open(tiles: Tiles) -> None:
    case = CASES["one row"]
    weight, _ = weight_and_bias(case)
    gradient = map_of(case, case.outputs, seed=1)
    gate = torch.zeros_like(map_of(case, case.inputs, seed=3))
    gate[1, 2, 0, 4] = -torch.nan
    found = pointwise_convolve(gradient, turned(weight), gate=gate, tiles=tiles)
    assert found[1, 2, 0, 4] != 0
    assert (found != 0).sum() == 1


def test_maps_in_other_layouts_are_taken(tiles: Tiles) -> None:
    case = CASES["tasks of several sizes"]
    weight, bias = weight_and_bias(case)
    maps = [map_of(case, case.inputs, seed=0), map_of(case, case.outputs, seed=1)]
    plain = [one.contiguous() for one in maps]
    found = [
        pointwise_convolve(one, packed(weight), bias, added=added, relu=True, tiles=tiles)
        for one, added in (maps, plain)
    ]
    assert torch.equal(*found)


def test_threads_and_repetition_change_nothing(tiles: Tiles) -> None:
    case = CASES["weights larger than their part of the cache"]
    weight, bias = weight_and_bias(case)
    features = map_of(case, case.inputs, seed=0)
    results = []
    for threads in (1, 2, 2, 7):
        torch.set_num_threads(threads)
        results.append(pointwise_convolve(features, packed(weight), bias, tiles=tiles))
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("allow_tiles", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("params", [POINTWISE, SAME_3X3, ConvParams((1, 1), (1, 1), 4)], ids=str)
def test_a_residual_block_of_two_trains_as_in_float64(
    own_tiles: None, params: ConvParams, dtype: torch.dtype, allow_tiles: bool
) -> None:
    torch.manual_seed(0)
    size = 1 + 2 * params.padding[0]
    features = torch.randn(2, 32, 11, 9).relu()
    shapes = [(32, 32 // params.groups, size, size)] * 2
    weights = [torch.randn(shape) / shape[1] ** 0.5 / size for shape in shapes]
    weights = [weight.bfloat16().float().requires_grad_() for weight in weights]
    given = torch.randn(2, 32, 11, 9)
    level = features.to(dtype).requires_grad_()
    inner, shortcut = convolve(
        [level],
        weights[0],
        None,
        params=params,
        relu=True,
        gated=True,
        passes=True,
        allow_tiles=allow_tiles,
    )
    [result] = convolve(
        [inner], weights[1], None,
        params=params, relu=True, gated=True, added=shortcut, allow_tiles=allow_tiles,
    )  # fmt: skip
    # The last ReLU's mask is its readers' to apply.
    found = torch.autograd.grad(result, [level, *weights], (given * (result > 0)).to(dtype))
    exact = features.double().requires_grad_()
    exact_weights = [weight.detach().double().requires_grad_() for weight in weights]
    # ReLUs open where ours do: near zero rounding decides.
    exactly = functools.partial(F.conv2d, padding=params.padding, groups=params.groups)
    wanted_inner = exactly(exact, exact_weights[0]) * (inner > 0)
    wanted = (exactly(wanted_inner, exact_weights[1]) + exact) * (result > 0)
    references = torch.autograd.grad(wanted, [exact, *exact_weights], given.double())
    masked = (references[0] * (features > 0), *references[1:])
    allowed = 1e-2 if dtype == torch.bfloat16 else 1e-6
    for value, reference in zip([result, *found], [wanted, *masked], strict=True):
        assert (value.double() - reference).norm() <= allowed * reference.norm()
