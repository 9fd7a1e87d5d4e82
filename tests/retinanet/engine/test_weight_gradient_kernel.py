"""AMX's kernel for weight gradients, against torch's in float64."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from retinanet.engine.convolution import POINTWISE, SAME_3X3, ConvParams, convolve
from retinanet.engine.tile_convolution import Tiles, weight_gradient
from tests.retinanet.engine.kernels import BF16_ROUNDING, nan_in_new_memory


class Case(NamedTuple):
    """Convolutions of some levels."""

    images: int
    inputs: int
    outputs: int
    sizes: list[tuple[int, int]]
    kernel: int = 3
    stride: int = 1
    threads: int = 2


CASES = {
    "several levels": Case(2, 64, 32, [(12, 10), (6, 5), (3, 3)]),
    "odd channels": Case(2, 37, 70, [(9, 13)]),
    "one channel": Case(1, 1, 1, [(5, 4)]),
    "one pixel": Case(1, 5, 7, [(1, 1)]),
    "one column": Case(2, 16, 33, [(19, 1)]),
    "one row": Case(3, 33, 16, [(1, 21)]),
    "one thread": Case(2, 32, 96, [(11, 7)], threads=1),
    "three threads": Case(2, 32, 96, [(11, 7), (4, 4)], threads=3),
    "eight threads": Case(2, 96, 32, [(11, 7)], threads=8),
    "more blocks of pixels than one": Case(1, 32, 32, [(90, 43)], threads=1),
    "1x1": Case(2, 64, 96, [(13, 11), (5, 5)], kernel=1),
    "1x1 with odd channels": Case(1, 31, 33, [(7, 9)], kernel=1, threads=3),
    "1x1 of stride 2": Case(2, 40, 64, [(13, 10)], kernel=1, stride=2),
    "1x1 of stride 2, one pixel": Case(1, 8, 8, [(1, 2)], kernel=1, stride=2),
}


@pytest.fixture
def kernel(tiles: Tiles) -> Callable[..., tuple[Tensor, Tensor]]:
    return functools.partial(weight_gradient, tiles=tiles)


def maps_amid_nan(images: int, channels: int, height: int, width: int) -> Tensor:
    """Random maps, BF16 in channels_last memory, with NaN before and behind."""
    size = images * channels * height * width
    memory = torch.full((size + 512,), torch.nan, dtype=torch.bfloat16)
    memory[256 : 256 + size] = torch.randn(size)
    return memory[256 : 256 + size].view(images, height, width, channels).permute(0, 3, 1, 2)


def maps_of(case: Case) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Inputs, gradients of the outputs, and gates, of each level."""
    torch.manual_seed(0)
    inputs, gradients, gates = [], [], []
    for height, width in case.sizes:
        inputs.append(maps_amid_nan(case.images, case.inputs, height, width))
        of_output = (-(-height // case.stride), -(-width // case.stride))
        gradients.append(maps_amid_nan(case.images, case.outputs, *of_output))
        gates.append(maps_amid_nan(case.images, case.outputs, *of_output))
    return inputs, gradients, gates


def expected(case: Case, inputs: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
    """torch's own gradients of weight and bias, in float64."""
    weight = torch.zeros(case.outputs, case.inputs, case.kernel, case.kernel).double()
    of_weight, of_bias = torch.zeros_like(weight), torch.zeros(case.outputs).double()
    for level, gradient in zip(inputs, gradients, strict=True):
        parts: tuple[Any, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            gradient.double(), level.double(), weight, [case.outputs],
            (case.stride, case.stride), (case.kernel // 2, case.kernel // 2), (1, 1), False, (0, 0),
            1, (False, True, True),
        )  # fmt: skip
        of_weight += parts[1]
        of_bias += parts[2]
    return of_weight, of_bias


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    scale = float(wanted.abs().max())
    assert float((actual - wanted).abs().max()) <= 2e-6 * max(scale, 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(
    kernel: Callable[..., tuple[Tensor, Tensor]], name: str
) -> None:
    case = CASES[name]
    torch.set_num_threads(case.threads)
    inputs, gradients, _ = maps_of(case)
    of_weight, of_bias = kernel(inputs, gradients, kernel=case.kernel, stride=case.stride)
    weight_wanted, bias_wanted = expected(case, inputs, gradients)
    assert_close(of_weight, weight_wanted)
    assert_close(of_bias, bias_wanted)


@pytest.mark.parametrize("name", ["several levels", "odd channels", "1x1 of stride 2"])
def test_gradients_count_where_the_gate_is_positive(
    kernel: Callable[..., tuple[Tensor, Tensor]], name: str
) -> None:
    case = CASES[name]
    inputs, gradients, gates = maps_of(case)
    of_weight, of_bias = kernel(inputs, gradients, gates, kernel=case.kernel, stride=case.stride)
    masked = [one * (gate > 0) for one, gate in zip(gradients, gates, strict=True)]
    weight_wanted, bias_wanted = expected(case, inputs, masked)
    assert_close(of_weight, weight_wanted)
    assert_close(of_bias, bias_wanted)


def test_what_lies_in_scratch_memory_does_not_reach_gradients(
    kernel: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    case = CASES["odd channels"]
    inputs, gradients, _ = maps_of(case)
    with nan_in_new_memory():
        of_weight, _ = kernel(inputs, gradients, kernel=3)
    assert_close(of_weight, expected(case, inputs, gradients)[0])


def test_nan_in_a_map_reaches_the_gradients_that_it_belongs_to(
    kernel: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    inputs, gradients, _ = maps_of(CASES["several levels"])
    inputs[0][0, 3, 5, 5] = torch.nan
    of_weight, of_bias = kernel(inputs, gradients, kernel=3)
    assert of_weight[:, 3].isnan().all()
    assert not of_weight[:, 4:].isnan().any()
    assert not of_bias.isnan().any()


def test_maps_in_other_layouts_are_taken(kernel: Callable[..., tuple[Tensor, Tensor]]) -> None:
    inputs, gradients, _ = maps_of(CASES["several levels"])
    of_weight, _ = kernel(inputs, gradients, kernel=3)
    plain, _ = kernel(
        [level.contiguous() for level in inputs],
        [gradient.contiguous() for gradient in gradients],
        kernel=3,
    )
    assert torch.equal(of_weight, plain)


@pytest.mark.parametrize(
    ("params", "size"), [(SAME_3X3, 3), (POINTWISE, 1), (ConvParams((2, 2), (0, 0), 1), 1)]
)
def test_convolve_trains_as_in_float32(own_tiles: None, params: ConvParams, size: int) -> None:
    torch.manual_seed(0)
    levels = [torch.randn(2, 24, *side).bfloat16() for side in ((11, 9), (5, 4))]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(1)
        weight = torch.randn(40, 24, size, size).bfloat16().float().requires_grad_()
        bias, scale = torch.randn(40).bfloat16().float().requires_grad_(), torch.rand(40) + 0.5
        maps = convolve(
            [level.to(dtype) for level in levels], weight, bias, params=params, scale=scale
        )
        torch.autograd.backward(maps, [torch.ones_like(one) for one in maps])
        assert weight.grad is not None and bias.grad is not None
        found.append((weight.grad, bias.grad))
    for actual, wanted in zip(*found, strict=True):
        assert actual.dtype == torch.float32
        error = float((actual - wanted).abs().max() / wanted.abs().max())
        assert error <= BF16_ROUNDING
