"""Kernels of grouped convolutions, against torch in float64."""

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.engine.grouped_convolution import (
    grouped_convolution,
    grouped_input_gradient,
    grouped_weight_gradient,
)
from retinanet.engine.tile_convolution import Tiles
from tests.retinanet.engine.kernels import (
    BF16_ROUNDING,
    NAN,
    assert_close_sums,
    assert_equal,
    new_memory,
    random_maps,
)


class Case(NamedTuple):
    """A grouped 3×3 convolution with padding 1."""

    group_width: int
    size: tuple[int, int]
    stride: int = 1
    images: int = 2
    channels: int = 64
    threads: int = 2

    @property
    def groups(self) -> int:
        return self.channels // self.group_width

    def features(self) -> Tensor:
        return random_maps(self.images, self.channels, *self.size)

    def output_maps(self, seed: int = 1) -> Tensor:
        size = (-(-self.size[0] // self.stride), -(-self.size[1] // self.stride))
        return random_maps(self.images, self.channels, *size, seed=seed)

    def weight(self) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        weight = torch.randn(self.channels, self.group_width, 3, 3, generator=generator)
        return (weight / (3 * self.group_width**0.5)).bfloat16()

    def gradients(self, features: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return torch's gradients of features, weight and bias, in float64."""
        parts: tuple[Any, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            gradient.double(), features.double(), self.weight().double(), [self.channels],
            (self.stride, self.stride), (1, 1), (1, 1), False, (0, 0), self.groups,
            (True, True, True),
        )  # fmt: skip
        return parts


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
    "fewer rows than threads": Case(16, (2, 5), channels=160, threads=8),
    "several strips": Case(4, (70, 40), channels=32, images=1, threads=1),
    "several strips, stride 2": Case(4, (91, 81), stride=2, channels=32, images=1, threads=3),
    "a row of all blocks": Case(32, (5, 18)),
    "a row of all blocks, stride 2": Case(16, (5, 36), stride=2),
    "odd columns, stride 2": Case(8, (4, 37), stride=2),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def assert_rounded(actual: Tensor, expected: Tensor) -> None:
    """Assert one rounding to BF16, of sums in float32 whose terms may cancel."""
    assert actual.dtype == torch.bfloat16
    assert actual.is_contiguous(memory_format=torch.channels_last)
    error = (actual.double() - expected).abs()
    assert bool((error <= expected.abs() * BF16_ROUNDING + 1e-5).all())


@pytest.mark.parametrize("relu", [False, True])
@every_case
def test_outputs_are_those_of_float64(tiles: Tiles, case: Case, relu: bool) -> None:
    torch.set_num_threads(case.threads)
    features, weight, bias = case.features(), case.weight(), torch.randn(case.channels)
    output = grouped_convolution(features, weight, bias, stride=case.stride, relu=relu, tiles=tiles)
    expected = F.conv2d(
        features.double(), weight.double(), bias.double(), case.stride, 1, 1, case.groups
    )
    assert_rounded(output, expected.relu() if relu else expected)


@pytest.mark.parametrize("gated", [False, True])
@every_case
def test_input_gradients_are_those_of_float64(tiles: Tiles, case: Case, gated: bool) -> None:
    torch.set_num_threads(case.threads)
    features, gradient = case.features(), case.output_maps()
    result = grouped_input_gradient(
        gradient,
        case.weight(),
        features.shape,
        features if gated else None,
        stride=case.stride,
        tiles=tiles,
    )
    expected, _, _ = case.gradients(features, gradient)
    assert_rounded(result, expected * (features > 0) if gated else expected)


@every_case
def test_weight_and_bias_gradients_are_those_of_float64(tiles: Tiles, case: Case) -> None:
    torch.set_num_threads(case.threads)
    features, gradient = case.features(), case.output_maps()
    shape = {"group_width": case.group_width, "stride": case.stride}
    results = grouped_weight_gradient(features, gradient, **shape, tiles=tiles)
    _, *expected = case.gradients(features, gradient)
    assert results[0].is_contiguous(memory_format=torch.channels_last)
    assert_close_sums(results, expected)


def test_weight_gradients_do_not_depend_on_unwritten_memory(tiles: Tiles) -> None:
    case = CASES["several strips, stride 2"]
    torch.set_num_threads(case.threads)
    maps = (case.features(), case.output_maps())
    compute = partial(grouped_weight_gradient, group_width=4, stride=2, tiles=tiles)
    results = compute(*maps)
    with new_memory(NAN):
        assert_equal(results, compute(*maps))


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_results_do_not_depend_on_unwritten_memory(tiles: Tiles, width: int) -> None:
    for stride in (1, 2):
        case = Case(width, (9, 17), stride=stride)
        features, gradient, weight = case.features(), case.output_maps(), case.weight()
        compute = (
            partial(grouped_convolution, features, weight, None, stride=stride, tiles=tiles),
            partial(
                grouped_input_gradient, gradient, weight, features.shape, stride=stride, tiles=tiles
            ),
        )
        plain = [function() for function in compute]
        with new_memory(NAN):
            assert_equal(plain, [function() for function in compute])


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
    expected = F.conv2d(features[0, 5:6].isnan().float(), torch.ones(1, 1, 3, 3), None, stride, 1)
    assert torch.equal(reached, expected[0] > 0)
    assert output[0, 4:8].isnan().all(dim=0).equal(reached)
    if tiles is Tiles.VECTORS:  # which multiply each group alone
        assert output[0, 8:].isfinite().all() and output[0, :4].isfinite().all()
