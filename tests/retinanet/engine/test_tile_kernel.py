"""AMX's kernel for 3×3 convolutions, against torch's in float64."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.engine import convolution as convolution_module
from retinanet.engine.convolution import POINTWISE, SAME_3X3, ConvParams, convolve
from retinanet.engine.tile_convolution import (
    PackedWeight,
    Tiles,
    pack_weight,
    tile_convolve,
)
from tests.retinanet.engine.kernels import BF16_ROUNDING, nan_in_new_memory


class Case(NamedTuple):
    """Convolutions of some levels."""

    images: int
    inputs: int
    outputs: int
    sizes: list[tuple[int, int]]
    threads: int = 2


CASES = {
    "several levels": Case(2, 64, 32, [(12, 10), (6, 5), (3, 3)]),
    "odd channels": Case(2, 37, 71, [(9, 13)]),
    "one channel": Case(1, 1, 1, [(5, 4)]),
    "one pixel": Case(3, 5, 7, [(1, 1)]),
    "one column": Case(2, 16, 33, [(19, 1)]),
    "one row": Case(3, 33, 16, [(1, 21)]),
    "one thread": Case(2, 32, 96, [(11, 7)], threads=1),
    "three threads": Case(2, 32, 96, [(11, 7), (4, 4)], threads=3),
    "eight threads": Case(2, 96, 32, [(11, 7)], threads=8),
    "more blocks of pixels than one": Case(1, 32, 32, [(40, 43)], threads=1),
    "a sum in chunks": Case(1, 331, 40, [(9, 7)]),
}


def maps_of(case: Case, channels: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(case.images, channels, *size) for size in case.sizes]
    return [
        torch.randn(shape, generator=generator)
        .bfloat16()
        .contiguous(memory_format=torch.channels_last)
        for shape in shapes
    ]


def packed(weight: Tensor) -> PackedWeight:
    return pack_weight(weight)[0]


def turned(weight: Tensor) -> PackedWeight:
    _, backward = pack_weight(weight, for_gradients=True)
    assert backward is not None
    return backward


def weight_and_bias(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(case.outputs, case.inputs, 3, 3, generator=generator).bfloat16()
    return weight, torch.randn(case.outputs, generator=generator)


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Within the rounding of the result to BF16; the sums are float32."""
    for actual, reference in zip(found, wanted, strict=True):
        assert actual.dtype == torch.bfloat16
        assert actual.shape == reference.shape
        assert actual.permute(0, 2, 3, 1).is_contiguous()
        allowed = BF16_ROUNDING * reference.abs() + 1e-4 * reference.abs().max()
        assert ((actual.double() - reference).abs() <= allowed).all()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_the_convolutions(tiles: Tiles, name: str, relu: bool) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    weight, bias = weight_and_bias(case)
    inputs = maps_of(case, case.inputs, seed=0)
    found = tile_convolve(inputs, packed(weight), bias, relu=relu, tiles=tiles)
    wanted = [F.conv2d(x.double(), weight.double(), bias.double(), padding=1) for x in inputs]
    assert_close(found, [map_.relu() if relu else map_ for map_ in wanted])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_input_gradients_are_the_convolutions(tiles: Tiles, name: str, gated: bool) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    weight, _ = weight_and_bias(case)
    gradients = maps_of(case, case.outputs, seed=1)
    gates = [gate.relu() for gate in maps_of(case, case.inputs, seed=3)]
    found = tile_convolve(gradients, turned(weight), gates=gates if gated else (), tiles=tiles)
    wanted = [F.conv_transpose2d(g.double(), weight.double(), padding=1) for g in gradients]
    if gated:
        wanted = [map_ * (gate > 0) for map_, gate in zip(wanted, gates, strict=True)]
    assert_close(found, wanted)


def test_what_lies_in_scratch_memory_does_not_reach_results(tiles: Tiles) -> None:
    case = CASES["odd channels"]
    weight, bias = weight_and_bias(case)
    inputs = maps_of(case, case.inputs, seed=0)
    with nan_in_new_memory():
        found = tile_convolve(inputs, packed(weight), bias, relu=False, tiles=tiles)
    wanted = [F.conv2d(x.double(), weight.double(), bias.double(), padding=1) for x in inputs]
    assert_close(found, wanted)


def test_nan_around_the_maps_does_not_reach_results(tiles: Tiles) -> None:
    case = CASES["odd channels"]
    weight, bias = weight_and_bias(case)
    [level] = maps_of(case, case.inputs, seed=0)
    memory = torch.full((level.numel() + 4096,), torch.nan, dtype=torch.bfloat16)
    within = memory[2048:][: level.numel()].as_strided(level.shape, level.stride(), 2048)
    within.copy_(level)
    found = tile_convolve([within], packed(weight), bias, relu=True, tiles=tiles)
    plain = tile_convolve([level], packed(weight), bias, relu=True, tiles=tiles)
    assert torch.equal(found[0], plain[0])


def test_nan_reaches_its_neighbours_alone_and_passes_relu(tiles: Tiles) -> None:
    case = CASES["several levels"]
    weight, bias = weight_and_bias(case)
    inputs = maps_of(case, case.inputs, seed=0)
    inputs[0][0, 3, 5, 0] = torch.nan
    found, *others = tile_convolve(inputs, packed(weight), bias, relu=True, tiles=tiles)
    assert found[0, :, 4:7, :2].isnan().all()
    assert found.isnan().sum() == 6 * case.outputs
    assert not any(other.isnan().any() for other in others)


def test_a_nan_gate_is_open(tiles: Tiles) -> None:
    case = CASES["one row"]
    weight, _ = weight_and_bias(case)
    gradients = maps_of(case, case.outputs, seed=1)
    gates = [torch.zeros_like(gate) for gate in maps_of(case, case.inputs, seed=3)]
    gates[0][1, 2, 0, 4] = -torch.nan
    [found] = tile_convolve(gradients, turned(weight), gates=gates, tiles=tiles)
    assert found[1, 2, 0, 4] != 0
    assert (found != 0).sum() == 1


def test_maps_in_other_layouts_are_taken(tiles: Tiles) -> None:
    case = CASES["several levels"]
    weight, bias = weight_and_bias(case)
    inputs = maps_of(case, case.inputs, seed=0)
    plain = [level.contiguous() for level in inputs]
    found = tile_convolve(plain, packed(weight), bias, relu=False, tiles=tiles)
    wanted = tile_convolve(inputs, packed(weight), bias, relu=False, tiles=tiles)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_threads_and_repetition_change_nothing(tiles: Tiles) -> None:
    case = CASES["a sum in chunks"]
    weight, bias = weight_and_bias(case)
    inputs = maps_of(case, case.inputs, seed=0)
    results = []
    for threads in (1, 2, 2, 7):
        torch.set_num_threads(threads)
        results.append(tile_convolve(inputs, packed(weight), bias, relu=True, tiles=tiles)[0])
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_convolve_trains_as_in_float32(own_tiles: None) -> None:
    torch.manual_seed(0)
    sizes = [(11, 9), (5, 4)]
    maps = [torch.randn(2, 24, *size).relu().bfloat16() for size in sizes]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(1)
        weight = torch.randn(41, 24, 3, 3).bfloat16().float().requires_grad_()
        bias = torch.randn(41).requires_grad_()
        levels = [level.detach().to(dtype).requires_grad_() for level in maps]
        outputs = convolve(levels, weight, bias, params=SAME_3X3, gated=True)
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        found.append([*outputs, *(level.grad for level in levels), weight.grad, bias.grad])
    for actual, wanted in zip(*found, strict=True):
        assert actual is not None and wanted is not None
        assert (actual.float() - wanted).abs().max() <= BF16_ROUNDING * wanted.abs().max()


@pytest.mark.parametrize(
    ("params", "shape", "dtype"),
    [
        (ConvParams((2, 2), (1, 1), 1), (8, 8, 3, 3), torch.bfloat16),
        (ConvParams((1, 1), (0, 0), 1), (8, 8, 3, 3), torch.bfloat16),
        (POINTWISE, (32, 40, 1, 1), torch.bfloat16),
        (SAME_3X3, (8, 8, 3, 3), torch.float32),
    ],
)
def test_other_convolutions_are_onednns(
    own_tiles: None,
    monkeypatch: pytest.MonkeyPatch,
    params: ConvParams,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError

    for name in ("tile_convolve", "pointwise_convolve"):
        monkeypatch.setattr(convolution_module, name, never)
    level = torch.ones(1, shape[1], 9, 9, dtype=dtype)
    [output] = convolve([level], torch.ones(shape), None, params=params)
    inside = output[0, 0, output.shape[2] // 2, output.shape[3] // 2]
    assert inside == shape[1] * shape[2] * shape[3]
