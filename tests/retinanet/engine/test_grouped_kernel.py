"""Kernels of grouped convolutions, against torch in float64."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.engine import convolution as convolution_module
from retinanet.engine.convolution import ConvParams, convolve
from retinanet.engine.grouped_convolution import (
    grouped_convolution,
    grouped_input_gradient,
    grouped_weight_gradient,
    is_grouped,
)
from retinanet.engine.tile_convolution import Tiles
from tests.retinanet.engine.kernels import BF16_ROUNDING, nan_in_new_memory


class Case(NamedTuple):
    """A grouped 3×3 convolution with padding 1."""

    group_width: int
    size: tuple[int, int]
    stride: int = 1
    images: int = 2
    channels: int = 64
    threads: int = 2

    @property
    def out_size(self) -> tuple[int, int]:
        return (-(-self.size[0] // self.stride), -(-self.size[1] // self.stride))


CASES = {
    "groups of 4": Case(4, (11, 10)),
    "groups of 8": Case(8, (10, 13)),
    "groups of 16": Case(16, (7, 12)),
    "groups of 32": Case(32, (9, 11)),
    "groups of 4, stride 2": Case(4, (11, 10), stride=2),
    "groups of 8, stride 2": Case(8, (10, 13), stride=2),
    "groups of 16, stride 2": Case(16, (13, 12), stride=2),
    "groups of 32, stride 2": Case(32, (9, 11), stride=2),
    "one pixel": Case(4, (1, 1)),
    "one pixel, stride 2": Case(32, (1, 1), stride=2),
    "one column": Case(8, (19, 1)),
    "one column, stride 2": Case(8, (19, 1), stride=2),
    "one row": Case(16, (1, 21), images=3),
    "two columns, stride 2": Case(8, (6, 2), stride=2),
    "one thread": Case(8, (11, 7), channels=96, threads=1),
    "three threads": Case(8, (11, 7), channels=128, threads=3),
    "eight threads": Case(32, (40, 40), channels=96, threads=8),
    "several strips": Case(4, (70, 40), channels=32, images=1, threads=1),
    "several strips, stride 2": Case(4, (91, 81), stride=2, channels=32, images=1, threads=3),
}


@pytest.fixture
def weight_gradient(tiles: Tiles) -> Callable[..., tuple[Tensor, Tensor]]:
    return functools.partial(grouped_weight_gradient, tiles=tiles)


def maps_amid_nan(images: int, channels: int, height: int, width: int) -> Tensor:
    """Random maps, BF16 in channels_last memory, with NaN before and behind."""
    size = images * channels * height * width
    memory = torch.full((size + 4096,), torch.nan, dtype=torch.bfloat16)
    memory[2048 : 2048 + size] = torch.randn(size)
    return memory[2048 : 2048 + size].view(images, height, width, channels).permute(0, 3, 1, 2)


def maps_of(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Features, the output's gradient, and a gate."""
    torch.manual_seed(0)
    features = maps_amid_nan(case.images, case.channels, *case.size)
    gradient, gate = (maps_amid_nan(case.images, case.channels, *case.out_size) for _ in range(2))
    return features, gradient, gate


def expected(case: Case, features: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """torch's own gradients of weight and bias, in float64."""
    weight = torch.zeros(case.channels, case.group_width, 3, 3).double()
    parts: tuple[Any, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient.double(), features.double(), weight, [case.channels], (case.stride, case.stride),
        (1, 1), (1, 1), False, (0, 0), case.channels // case.group_width, (False, True, True),
    )  # fmt: skip
    return parts[1], parts[2]


def assert_close(actual: Tensor, wanted: Tensor, *, allowed: float = 2e-6) -> None:
    scale = float(wanted.abs().max())
    assert float((actual - wanted).abs().max()) <= allowed * max(scale, 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_weight_gradients_are_those_of_float64(
    weight_gradient: Callable[..., tuple[Tensor, Tensor]], name: str
) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    features, gradient, _ = maps_of(case)
    of_weight, of_bias = weight_gradient(
        features, gradient, group_width=case.group_width, stride=case.stride
    )
    weight_wanted, bias_wanted = expected(case, features, gradient)
    assert of_weight.is_contiguous(memory_format=torch.channels_last)
    assert_close(of_weight, weight_wanted)
    assert_close(of_bias, bias_wanted)


@pytest.mark.parametrize("name", ["groups of 8", "groups of 32, stride 2"])
def test_weight_gradients_count_where_the_gate_is_positive(
    weight_gradient: Callable[..., tuple[Tensor, Tensor]], name: str
) -> None:
    case = CASES[name]
    features, gradient, gate = maps_of(case)
    of_weight, of_bias = weight_gradient(
        features, gradient, gate, group_width=case.group_width, stride=case.stride
    )
    weight_wanted, bias_wanted = expected(case, features, gradient * (gate > 0))
    assert_close(of_weight, weight_wanted)
    assert_close(of_bias, bias_wanted)


def test_what_lies_in_scratch_memory_does_not_reach_gradients(
    weight_gradient: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    case = CASES["groups of 8, stride 2"]
    features, gradient, _ = maps_of(case)
    with nan_in_new_memory():
        of_weight, of_bias = weight_gradient(features, gradient, group_width=8, stride=2)
    weight_wanted, bias_wanted = expected(case, features, gradient)
    assert_close(of_weight, weight_wanted)
    assert_close(of_bias, bias_wanted)


def test_weight_gradients_are_the_same_each_time(
    weight_gradient: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    case = CASES["several strips, stride 2"]
    torch.set_num_threads(case.threads)
    features, gradient, _ = maps_of(case)
    first, again = (
        weight_gradient(features, gradient, group_width=4, stride=2)[0] for _ in range(2)
    )
    assert torch.equal(first, again)


def weight_of(case: Case) -> Tensor:
    weight = torch.randn(case.channels, case.group_width, 3, 3) / (3 * case.group_width**0.5)
    return weight.bfloat16()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_float64(tiles: Tiles, name: str, relu: bool) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    features, _, _ = maps_of(case)
    weight, bias = weight_of(case), torch.randn(case.channels)
    output = grouped_convolution(features, weight, bias, stride=case.stride, relu=relu, tiles=tiles)
    wanted = F.conv2d(
        features.double(), weight.double(), bias.double(), case.stride, 1, 1,
        case.channels // case.group_width,
    )  # fmt: skip
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert_rounded(output, wanted.relu() if relu else wanted)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_input_gradients_are_those_of_float64(tiles: Tiles, name: str, gated: bool) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    features, gradient, _ = maps_of(case)
    weight = weight_of(case)
    gate = features if gated else None
    found = grouped_input_gradient(
        gradient, weight, features.shape, gate, stride=case.stride, tiles=tiles
    )
    wanted: Tensor = torch.ops.aten.convolution_backward(
        gradient.double(), features.double(), weight.double(), None, (case.stride, case.stride),
        (1, 1), (1, 1), False, (0, 0), case.channels // case.group_width, (True, False, False),
    )[0]  # fmt: skip
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_rounded(found, wanted * (features > 0) if gated else wanted)


def assert_rounded(found: Tensor, wanted: Tensor) -> None:
    """One rounding to BF16, of sums in float32 whose terms may cancel."""
    error = (found.double() - wanted).abs()
    assert bool((error <= wanted.abs() * BF16_ROUNDING + 1e-5).all())


@pytest.mark.parametrize("stride", [1, 2])
def test_nan_reaches_what_is_computed_from_it(tiles: Tiles, stride: int) -> None:
    features = torch.randn(1, 32, 9, 9).bfloat16()
    features[0, 5, 4, 4] = torch.nan
    weight = torch.randn(32, 4, 3, 3).bfloat16()
    output = grouped_convolution(
        features, weight, torch.zeros(32), stride=stride, relu=True, tiles=tiles
    )
    # A unit of 32 channels is summed together, with weights of zero between groups.
    reached = output.isnan().any(dim=1)[0]
    wanted = F.conv2d(features[0, 5:6].isnan().float(), torch.ones(1, 1, 3, 3), None, stride, 1)
    assert torch.equal(reached, wanted[0] > 0)
    assert output[0, 4:8].isnan().all(dim=0).equal(reached)


@pytest.mark.parametrize(
    ("shape", "stride", "padding", "groups", "suits"),
    [
        ((64, 8, 3, 3), (1, 1), (1, 1), 8, True),
        ((64, 32, 3, 3), (2, 2), (1, 1), 2, True),
        ((64, 64, 3, 3), (1, 1), (1, 1), 1, False),
        ((64, 1, 3, 3), (1, 1), (1, 1), 64, False),
        ((128, 8, 3, 3), (1, 1), (1, 1), 8, False),  # twice as many output channels
        ((48, 8, 3, 3), (1, 1), (1, 1), 6, False),
        ((64, 8, 3, 3), (2, 1), (1, 1), 8, False),
        ((64, 8, 3, 3), (1, 1), (0, 0), 8, False),
        ((64, 8, 1, 3), (1, 1), (1, 1), 8, False),
    ],
)
def test_which_convolutions_are_taken(
    shape: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    groups: int,
    suits: bool,
) -> None:
    assert is_grouped(torch.zeros(shape), stride, padding, groups) == suits


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_take_the_kernel(
    own_tiles: None, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Gradients through `convolve` stay as they are without it, within BF16's rounding."""
    torch.manual_seed(1)
    levels = [torch.randn(2, 64, 12, size).bfloat16() for size in (10, 7)]
    weight, bias = torch.randn(64, 16, 3, 3), torch.randn(64)
    params = ConvParams((stride, stride), (1, 1), 4)

    def gradients() -> list[Tensor]:
        sources = [tensor.clone().requires_grad_() for tensor in (weight, bias, *levels)]
        outputs = convolve(sources[2:], *sources[:2], params=params)
        return list(
            torch.autograd.grad([output.float().square().sum() for output in outputs], sources)
        )

    calls = []

    def counted(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        calls.append(options)
        return grouped_weight_gradient(*arguments, **options, tiles=Tiles.EMULATED)

    monkeypatch.setattr(convolution_module, "grouped_weight_gradient", counted)
    own = gradients()
    assert len(calls) == len(levels)
    monkeypatch.setattr(convolution_module, "has_tiles", lambda: False)
    for found, wanted in zip(own, gradients(), strict=True):
        assert found.dtype == wanted.dtype
        assert_close(found, wanted, allowed=2 * BF16_ROUNDING)
    assert len(calls) == len(levels)


@pytest.mark.parametrize(("group_width", "takes_ours"), [(8, True), (16, False)])
def test_without_amx_narrow_groups_alone_take_the_weight_gradients_kernel(
    monkeypatch: pytest.MonkeyPatch, group_width: int, takes_ours: bool
) -> None:
    monkeypatch.setattr(convolution_module, "has_tiles", lambda: False)
    monkeypatch.setattr(convolution_module, "best_tiles", lambda: Tiles.VECTORS)
    features, weight = torch.zeros(1, 64, 5, 5).bfloat16(), torch.zeros(64, group_width, 3, 3)
    params = ConvParams((1, 1), (1, 1), 64 // group_width)
    suits = convolution_module.suits_grouped_weight_gradient(features, weight, params)
    assert suits == takes_ours
    assert not convolution_module.suits_grouped_tiles(features, weight, params)


def test_what_convolve_returns_may_be_changed_in_place(own_tiles: None) -> None:
    features, weight = torch.randn(1, 64, 5, 5).bfloat16(), torch.randn(64, 8, 3, 3)
    params = ConvParams((1, 1), (1, 1), 8)
    [output] = convolve([features], weight.requires_grad_(), None, params=params)
    output.relu_().sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()
