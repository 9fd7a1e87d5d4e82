"""Dense convolutions and their gradients for maps of few pixels, against torch's in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from retinanet.engine.convolution import Fused, convolve
from retinanet.engine.few_pixels import (
    MOST_PIXELS,
    ScaledWeight,
    few_pixels_input_gradients,
    few_pixels_outputs,
    few_pixels_weight_gradient,
)
from retinanet.engine.kernels import ConvParams, Kernel, Machine, kernels_for
from retinanet.engine.tile_convolution import Tiles, best_tiles
from tests.retinanet.engine.kernels import (
    NAN,
    Case,
    assert_close_sums,
    assert_equal,
    assert_rounded,
    new_memory,
    random_maps,
)

pytestmark = [
    pytest.mark.skipif(best_tiles() is None, reason="no AVX-512 BF16"),
    pytest.mark.usefixtures("threads_restored"),
]


def scaled_weight(case: Case) -> tuple[ScaledWeight, Tensor]:
    """Return the weight, and what it is as a product rounded to BF16, in float64."""
    scale = torch.rand(case.outputs, generator=torch.Generator().manual_seed(3)) + 0.5
    values = case.weight_and_bias()[0].float().to(memory_format=torch.channels_last) * 1.001
    rounded = (values * scale.view(-1, 1, 1, 1)).bfloat16().double()
    return ScaledWeight(values, scale), rounded


CASES = {
    "levels of a tower": Case(1, 256, 54, [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]),
    "several images": Case(3, 64, 32, [(6, 5), (3, 2)], threads=3),
    "odd outputs": Case(2, 32, 27, [(3, 4)]),
    "one pixel, one output": Case(1, 32, 1, [(1, 1)], threads=7),
    "3×3 of stride 2": Case(2, 96, 71, [(7, 4), (1, 3)], stride=2),
    "1×1": Case(2, 128, 64, [(5, 7)], kernel=1, threads=8),
    "1×1 of stride 2": Case(2, 64, 96, [(5, 7)], kernel=1, stride=2, threads=1),
    "large weights": Case(1, 2048, 512, [(2, 2)], kernel=1),
    "as many pixels as it takes": Case(4, 32, 64, [(8, 8)]),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.mark.parametrize("fused", [False, True])
@every_case
def test_outputs_and_input_gradients(case: Case, fused: bool) -> None:
    torch.set_num_threads(case.threads)
    (weight, rounded), bias = scaled_weight(case), torch.linspace(-1, 1, case.outputs)
    levels, gradients, padding = case.inputs_of_levels(), case.outputs_of_levels(), case.kernel // 2
    is_single = fused and len(levels) == 1
    results = few_pixels_outputs(
        levels, weight, bias,
        stride=case.stride, relu=fused, added=gradients[0] if is_single else None,
    )  # fmt: skip
    for level, gradient, result in zip(levels, gradients, results, strict=True):
        expected = F.conv2d(level.double(), rounded, bias.double(), case.stride, padding)
        expected = expected + gradient.double() if is_single else expected
        assert_rounded(result, expected.relu() if fused else expected)

    results = few_pixels_input_gradients(
        levels, gradients, weight,
        stride=case.stride, gates=levels if fused else (), added=levels[0] if is_single else None,
    )  # fmt: skip
    for level, gradient, result in zip(levels, gradients, results, strict=True):
        source = level.double().requires_grad_()
        output = F.conv2d(source, rounded, None, case.stride, padding)
        [expected] = torch.autograd.grad(output, [source], gradient.double())
        expected = expected + level.double() if is_single else expected
        assert_rounded(result, expected * (level > 0) if fused else expected)


@every_case
def test_weight_and_bias_gradients(case: Case) -> None:
    torch.set_num_threads(case.threads)
    weight, rounded = scaled_weight(case)
    levels, gradients, factors = (
        case.inputs_of_levels(),
        case.outputs_of_levels(),
        rounded.requires_grad_(),
    )
    bias = torch.zeros(case.outputs, dtype=torch.float64, requires_grad=True)
    outputs = [
        F.conv2d(level.double(), factors, bias, case.stride, case.kernel // 2) for level in levels
    ]
    of_weight, of_bias = torch.autograd.grad(
        outputs, [factors, bias], [gradient.double() for gradient in gradients]
    )
    assert weight.scale is not None
    with new_memory(NAN):
        results = few_pixels_weight_gradient(levels, gradients, weight, stride=case.stride)
    assert_close_sums(results, [of_weight * weight.scale.view(-1, 1, 1, 1), of_bias])


@every_case
def test_threads_layout_and_repetition_change_nothing(case: Case) -> None:
    weight, _ = scaled_weight(case)
    results = []
    for threads, layout in ((1, torch.channels_last), (2, torch.contiguous_format), (5, None)):
        torch.set_num_threads(threads)
        levels, gradients = (
            [maps.contiguous(memory_format=layout) if layout else maps for maps in group]
            for group in (case.inputs_of_levels(), case.outputs_of_levels())
        )
        results.append([
            *few_pixels_outputs(levels, weight, None, stride=case.stride),
            *few_pixels_input_gradients(levels, gradients, weight, stride=case.stride),
            *few_pixels_weight_gradient(levels, gradients, weight, stride=case.stride),
        ])  # fmt: skip
    assert_equal(*results)


@pytest.mark.parametrize("size", [(8, 8), (8, 9)])
def test_a_layer_takes_the_kernel_up_to_its_number_of_pixels(size: tuple[int, int]) -> None:
    levels = [random_maps(4, 32, *size)]
    weight = torch.randn(32, 32, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    machine, params = Machine(Tiles.VECTORS), ConvParams((1, 1), (1, 1), 1)
    is_few = 4 * size[0] * size[1] <= MOST_PIXELS
    kernels = kernels_for(levels, weight, params, machine)
    assert set(kernels[:3]) == {Kernel.FEW_PIXELS if is_few else Kernel.ONEDNN}
    [maps] = convolve(levels, weight, None, params=params, machine=machine, fused=Fused(relu=True))
    [gradient] = torch.autograd.grad(maps.float().sum(), [weight])
    source, factors = levels[0].double(), weight.detach().bfloat16().double().requires_grad_()
    expected = F.conv2d(source, factors, padding=1)
    assert_rounded(maps, expected.relu())
    [reference] = torch.autograd.grad(expected.sum(), [factors])
    assert_close_sums([gradient], [reference], allowed=4e-3)  # oneDNN rounds it
