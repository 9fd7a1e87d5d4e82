"""Dense convolutions and their gradients by tiles, against torch's in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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
from tests.retinanet.engine.kernels import (
    NAN,
    Case,
    assert_close_sums,
    assert_equal,
    assert_rounded,
    new_memory,
    random_maps,
)

DENSE = {
    "several levels": Case(2, 64, 32, [(12, 10), (6, 5), (3, 3)]),
    "odd channels": Case(2, 37, 71, [(9, 13)]),
    "one channel": Case(1, 1, 1, [(5, 4)]),
    "one pixel": Case(3, 5, 7, [(1, 1)]),
    "one column": Case(2, 16, 33, [(19, 1)]),
    "one row": Case(3, 33, 16, [(1, 21)]),
    "one thread": Case(2, 32, 96, [(11, 7)], threads=1),
    "three threads": Case(2, 32, 96, [(11, 7), (4, 4)], threads=3),
    "eight threads": Case(2, 96, 32, [(11, 7)], threads=8),
    "more blocks of pixels than one": Case(1, 32, 32, [(90, 43)], threads=1),
    "a sum in chunks": Case(1, 331, 40, [(9, 7)]),
}
POINTWISE = {
    "tasks of several sizes": Case(2, 64, 96, [(21, 17)], kernel=1),
    "whole tiles": Case(1, 32, 64, [(8, 8)], kernel=1),
    "one pixel": Case(1, 32, 32, [(1, 1)], kernel=1),
    "one column": Case(2, 64, 32, [(35, 1)], kernel=1),
    "one row": Case(3, 32, 32, [(1, 21)], kernel=1),
    "one thread": Case(1, 96, 128, [(33, 32)], threads=1, kernel=1),
    "eight threads": Case(2, 128, 64, [(5, 7)], threads=8, kernel=1),
    "weights larger than their part of the cache": Case(1, 1024, 352, [(9, 5)], kernel=1),
}
WEIGHT_GRADIENTS = {
    **DENSE,
    "one small map": Case(2, 96, 160, [(4, 3)]),
    "1x1 of one small map": Case(1, 160, 320, [(3, 4)], threads=3, kernel=1),
    "1x1": Case(2, 64, 96, [(13, 11), (5, 5)], kernel=1),
    "1x1 with odd channels": Case(1, 31, 33, [(7, 9)], threads=3, kernel=1),
    "1x1 of stride 2": Case(2, 40, 64, [(13, 10)], kernel=1, stride=2),
    "1x1 of stride 2, one pixel": Case(1, 8, 8, [(1, 2)], kernel=1, stride=2),
}
ZERO_BUT = {
    "nowhere": [],
    "at the first pixel": [(0, 0, 0, 0)],
    "at the last pixel": [(1, 1, -1, -1)],
    "at corners and borders": [(0, 0, 0, -1), (0, 1, -1, 0), (0, 1, 17, 0), (1, 0, 2, -1)],
    "where levels meet": [(0, 1, -1, -1), (1, 0, 0, 0)],
    "around objects": [(0, 0, 7, 4), (0, 0, 7, 5), (0, 0, 7, 18), (0, 0, 8, 5), (0, 1, 30, 9)],
}
"""Pixels with values, as (level, image, row, column)."""
BY_VECTORS = {
    "several levels": Case(2, 64, 96, [(21, 17), (5, 4), (1, 1)], kernel=1),
    "one thread": Case(2, 96, 32, [(33, 32)], threads=1, kernel=1),
    "an odd number of pixels": Case(1, 32, 32, [(27, 31)], threads=1, kernel=1),
    "one column": Case(3, 32, 64, [(35, 1)], kernel=1),
    "one pixel": Case(1, 32, 32, [(1, 1)], kernel=1),
    "parts of the pixels": Case(2, 64, 32, [(41, 33), (20, 17)], threads=7, kernel=1),
    "blocks of channels": Case(1, 352, 480, [(9, 7)], threads=8, kernel=1),
    "parts and blocks": Case(1, 512, 288, [(30, 30)], threads=64, kernel=1),
    "stride 2": Case(2, 64, 128, [(14, 12), (13, 9)], kernel=1, stride=2),
    "stride 2, one column": Case(2, 32, 32, [(9, 1), (1, 2)], threads=1, kernel=1, stride=2),
}
needs_vectors = pytest.mark.skipif(best_tiles() is None, reason="no AVX-512 BF16")


def forward_weight(weight: Tensor) -> PackedWeight:
    return pack_weight(weight)[0]


def backward_weight(weight: Tensor) -> PackedWeight:
    _, turned = pack_weight(weight, for_gradients=True)
    assert turned is not None
    return turned


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_dense_outputs(tiles: Tiles, name: str, relu: bool) -> None:
    case = DENSE[name]
    torch.set_num_threads(case.threads)
    weight, bias = case.weight_and_bias()
    levels = case.inputs_of_levels()
    results = tile_convolve(levels, forward_weight(weight), bias, relu=relu, tiles=tiles)
    for level, result in zip(levels, results, strict=True):
        expected = F.conv2d(level.double(), weight.double(), bias.double(), padding=1)
        assert_rounded(result, expected.relu() if relu else expected)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_dense_input_gradients(tiles: Tiles, name: str, gated: bool) -> None:
    case = DENSE[name]
    torch.set_num_threads(case.threads)
    weight, _ = case.weight_and_bias()
    gradients = case.outputs_of_levels()
    gates = [gate.relu() for gate in case.inputs_of_levels(seed=3)]
    results = tile_convolve(
        gradients, backward_weight(weight), gates=gates if gated else (), tiles=tiles
    )
    for gradient, gate, result in zip(gradients, gates, results, strict=True):
        expected = F.conv_transpose2d(gradient.double(), weight.double(), padding=1)
        assert_rounded(result, expected * (gate > 0) if gated else expected)


@pytest.mark.parametrize(("with_added", "masked"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_outputs_and_input_gradients(
    tiles: Tiles, name: str, with_added: bool, masked: bool
) -> None:
    case = POINTWISE[name]
    torch.set_num_threads(case.threads)
    weight, bias = case.weight_and_bias()
    [features], [output_maps] = case.inputs_of_levels(), case.outputs_of_levels()
    added = output_maps if with_added else None
    result = pointwise_convolve(
        features, forward_weight(weight), bias, added=added, relu=masked, tiles=tiles
    )
    expected = F.conv2d(features.double(), weight.double(), bias.double())
    expected = expected if added is None else expected + added.double()
    assert_rounded(result, expected.relu() if masked else expected)

    added = features if with_added else None
    gate = case.inputs_of_levels(seed=4)[0].relu() if masked else None
    result = pointwise_convolve(
        output_maps, backward_weight(weight), added=added, gate=gate, tiles=tiles
    )
    expected = F.conv_transpose2d(output_maps.double(), weight.double())
    expected = expected if added is None else expected + added.double()
    assert_rounded(result, expected if gate is None else expected * (gate > 0))


@pytest.mark.parametrize("size", [(9, 14), (10, 13), (1, 1), (2, 21)])
def test_pointwise_input_gradients_of_stride_2(tiles: Tiles, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    features = torch.randn(3, 64, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(32, 64, 1, 1).bfloat16()
    output = F.conv2d(features, weight.double(), stride=2)
    gradient = torch.randn(output.shape).bfloat16()
    [expected] = torch.autograd.grad(output, [features], gradient.double())
    result = pointwise_convolve(gradient, backward_weight(weight), spread_over=size, tiles=tiles)
    assert_rounded(result, expected)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_weight_and_bias_gradients(tiles: Tiles, name: str) -> None:
    case = WEIGHT_GRADIENTS[name]
    torch.set_num_threads(case.threads)
    levels, gradients = case.inputs_of_levels(), case.outputs_of_levels()
    shape: dict[str, Any] = {"kernel": case.kernel, "stride": case.stride}
    results = weight_gradient(levels, gradients, **shape, tiles=tiles)
    assert_close_sums(results, gradients_in_float64(case, levels, gradients))


def gradients_but_zero(
    case: Case, pixels: list[tuple[int, int, int, int]], value: float = 1.5
) -> list[Tensor]:
    """Return the outputs' gradients: zeros of both signs but in the last channel of some pixels."""
    gradients = [gradient.mul_(0.0) for gradient in case.outputs_of_levels()]
    for level, image, y, x in pixels:
        gradients[level][image, -1, y, x] = value
    return gradients


@pytest.mark.parametrize("outputs", [64, 331])
@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("name", ZERO_BUT)
def test_input_gradients_where_gradients_are_zero(
    tiles: Tiles, name: str, threads: int, outputs: int
) -> None:
    """As those of boxes are, but around the objects: nothing is multiplied elsewhere."""
    case = Case(2, 37, outputs, [(33, 23), (3, 2)], threads)
    torch.set_num_threads(case.threads)
    weight, _ = case.weight_and_bias()
    gradients = gradients_but_zero(case, ZERO_BUT[name])
    with new_memory(NAN):
        results = tile_convolve(gradients, backward_weight(weight), tiles=tiles)
    for gradient, result in zip(gradients, results, strict=True):
        assert_rounded(result, F.conv_transpose2d(gradient.double(), weight.double(), padding=1))
    infinite = backward_weight(torch.full_like(weight, torch.inf))
    results = tile_convolve(gradients, infinite, tiles=tiles)
    assert all(result[:, :, 12:15].count_nonzero() == 0 for result in results)


@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("name", ZERO_BUT)
def test_weight_gradients_where_gradients_are_zero(tiles: Tiles, name: str, threads: int) -> None:
    """Nothing is multiplied in rows that have no value around them."""
    case = Case(2, 37, 71, [(33, 23), (3, 2)], threads)
    torch.set_num_threads(case.threads)
    levels, gradients = case.inputs_of_levels(), gradients_but_zero(case, ZERO_BUT[name])
    levels[0][:, :, 12:15] = torch.nan
    with new_memory(NAN):
        results = weight_gradient(levels, gradients, kernel=3, tiles=tiles)
    read = [level.nan_to_num(0) for level in levels]
    assert_close_sums(results, gradients_in_float64(case, read, gradients))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_among_zeros(tiles: Tiles, value: float) -> None:
    case = Case(2, 37, 71, [(33, 23)])
    weight, _ = case.weight_and_bias()
    gradients = gradients_but_zero(case, [(0, 1, 30, 0)], value)
    [result] = tile_convolve(gradients, backward_weight(weight.abs() + 1), tiles=tiles)
    assert result[1, :, 29:32, :2].isfinite().count_nonzero() == 0
    assert result.isfinite().logical_not().sum() == 6 * case.inputs
    grad_weight, grad_bias = weight_gradient(
        case.inputs_of_levels(), gradients, kernel=3, tiles=tiles
    )
    assert not grad_weight[-1].isfinite().any() and not grad_bias[-1].isfinite()
    assert grad_weight[:-1].count_nonzero() == 0 and grad_bias[:-1].count_nonzero() == 0


def gradients_in_float64(
    case: Case, levels: list[Tensor], gradients: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, summed over the levels."""
    weight = torch.zeros_like(case.weight_and_bias()[0], dtype=torch.float64)
    grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros(case.outputs).double()
    for level, gradient in zip(levels, gradients, strict=True):
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            gradient.double(), level.double(), weight, [case.outputs],
            (case.stride, case.stride), (case.kernel // 2, case.kernel // 2), (1, 1), False, (0, 0),
            1, (False, True, True),
        )  # fmt: skip
        grad_weight, grad_bias = grad_weight + of_weight, grad_bias + of_bias
    return grad_weight, grad_bias


@needs_vectors
@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("name", BY_VECTORS)
def test_pointwise_weight_gradients_by_vectors(name: str) -> None:
    case = BY_VECTORS[name]
    torch.set_num_threads(case.threads)
    levels, gradients = case.inputs_of_levels(), case.outputs_of_levels()
    for level in levels:
        # What a stride skips is not read.
        level[:, :, 1 :: case.stride] *= 1 if case.stride == 1 else torch.nan
        level[:, :, :, 1 :: case.stride] *= 1 if case.stride == 1 else torch.nan
    results = pointwise_weight_gradient(levels, gradients, stride=case.stride)
    read = [level.nan_to_num(0) for level in levels]
    expected = gradients_in_float64(case, read, gradients)
    assert_close_sums(results, expected)

    scale = torch.rand(case.outputs) + 0.5
    with new_memory(NAN):
        scaled, _ = pointwise_weight_gradient(levels, gradients, stride=case.stride, scale=scale)
    assert_close_sums([scaled], [expected[0] * scale.view(-1, 1, 1, 1)])
    again, _ = pointwise_weight_gradient(levels, gradients, stride=case.stride, scale=scale)
    assert_equal([scaled], [again])


@needs_vectors
def test_nan_reaches_only_its_channels_gradient_by_vectors() -> None:
    case = BY_VECTORS["several levels"]
    levels, gradients = case.inputs_of_levels(), case.outputs_of_levels()
    levels[1][1, 37, 4, 3], gradients[0][0, 65, 20, 16] = torch.nan, torch.nan
    grad_weight, grad_bias = pointwise_weight_gradient(levels, gradients)
    is_nan = torch.zeros(case.outputs, case.inputs, dtype=torch.bool)
    is_nan[:, 37] = is_nan[65] = True
    assert torch.equal(grad_weight[:, :, 0, 0].isnan(), is_nan)
    assert torch.equal(grad_bias.isnan(), is_nan[:, 0])


def run_dense(tiles: Tiles, features: Tensor, others: Tensor) -> list[Tensor]:
    weight, bias = Case(2, features.shape[1], others.shape[1], []).weight_and_bias()
    return tile_convolve([features], forward_weight(weight), bias, relu=True, tiles=tiles)


def run_pointwise(tiles: Tiles, features: Tensor, others: Tensor) -> list[Tensor]:
    weight, bias = Case(2, features.shape[1], others.shape[1], [], kernel=1).weight_and_bias()
    packed = forward_weight(weight)
    return [pointwise_convolve(features, packed, bias, added=others, relu=True, tiles=tiles)]


def run_weight_gradient(tiles: Tiles, features: Tensor, others: Tensor) -> list[Tensor]:
    return [*weight_gradient([features], [others], kernel=3, tiles=tiles)]


Run = Callable[[Tiles, Tensor, Tensor], list[Tensor]]
every_kernel = pytest.mark.parametrize(
    ("run", "inputs", "outputs"),
    [(run_dense, 37, 71), (run_pointwise, 64, 32), (run_weight_gradient, 37, 71)],
)


@every_kernel
def test_results_do_not_depend_on_unwritten_memory_or_layout(
    tiles: Tiles, run: Run, inputs: int, outputs: int
) -> None:
    features, others = random_maps(2, inputs, 9, 13), random_maps(2, outputs, 9, 13, seed=1)
    results = run(tiles, features, others)
    assert all(result.isfinite().all() for result in results)
    with new_memory(NAN):
        after_nan = run(tiles, features, others)
    assert_equal(results, after_nan, run(tiles, features.contiguous(), others.contiguous()))


@pytest.mark.parametrize(
    ("run", "case"),
    [
        (run_dense, DENSE["a sum in chunks"]),
        (run_pointwise, POINTWISE["weights larger than their part of the cache"]),
    ],
)
def test_threads_and_repetition_change_nothing(tiles: Tiles, run: Run, case: Case) -> None:
    results = []
    for threads in (1, 2, 2, 7):
        torch.set_num_threads(threads)
        results.append(run(tiles, case.inputs_of_levels()[0], case.outputs_of_levels()[0]))
    assert_equal(*results)


def test_nan_reaches_only_what_is_computed_from_it(tiles: Tiles) -> None:
    case = DENSE["several levels"]
    weight, bias = case.weight_and_bias()
    levels = case.inputs_of_levels()
    levels[0][0, 3, 5, 0] = torch.nan
    first, *others = tile_convolve(levels, forward_weight(weight), bias, relu=True, tiles=tiles)
    assert first[0, :, 4:7, :2].isnan().all()
    assert first.isnan().sum() == 6 * case.outputs
    assert not any(other.isnan().any() for other in others)

    levels[0][0, 3, 5, 0], levels[0][0, 3, 5, 5] = 0.0, torch.nan
    grad_weight, grad_bias = weight_gradient(
        levels, case.outputs_of_levels(), kernel=3, tiles=tiles
    )
    assert grad_weight[:, 3].isnan().all() and grad_bias.isfinite().all()
    assert grad_weight[:, :3].isfinite().all() and grad_weight[:, 4:].isfinite().all()

    case = POINTWISE["one row"]
    weight, bias = case.weight_and_bias()
    [features] = case.inputs_of_levels()
    features[1, 3, 0, 20] = torch.nan
    result = pointwise_convolve(features, forward_weight(weight), bias, relu=True, tiles=tiles)
    assert result[1, :, 0, 20].isnan().all()
    assert result.isnan().sum() == case.outputs


@needs_vectors
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rounded_weights_have_the_bits_of_torchs_product(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(65, 8, 3, 3) * 10.0 ** torch.randint(-42, 39, (65, 8, 3, 3))).float()
    weight = weight.contiguous(memory_format=layout)
    scale = torch.rand(65) * 3
    expected = torch.empty_like(weight, dtype=torch.bfloat16)
    torch.mul(weight, scale.view(-1, 1, 1, 1), out=expected)
    rounded = round_weight(weight, scale)
    assert rounded.stride() == weight.stride()
    assert torch.equal(rounded.view(torch.int16), expected.view(torch.int16))


def unpack(tiles: Tensor, columns: int, sums: int, taps: int) -> Tensor:
    """Return packed tiles as [columns, sums, taps], padding included."""
    shape = (-(-columns // BLOCK) * 2, -(-sums // BLOCK), taps, 16, 16, 2)
    values = tiles.view(torch.bfloat16).view(shape)
    by_column = values.permute(0, 4, 1, 3, 5, 2)
    return by_column.reshape(shape[0] * 16, shape[1] * BLOCK, taps)


@pytest.mark.parametrize(
    "shape", [(32, 32, 1, 1), (64, 96, 3, 3), (37, 5, 3, 3), (1, 71, 1, 1)], ids=str
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_packed_weight_is_in_its_place(
    shape: tuple[int, ...], layout: torch.memory_format, scaled: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(shape).contiguous(memory_format=layout)
    scale = torch.rand(shape[0]) + 0.5 if scaled else None
    packed, turned = pack_weight(weight, scale, for_gradients=True)
    outputs, inputs, taps = shape[0], shape[1], shape[2] * shape[3]
    expected = weight if scale is None else weight * scale.view(-1, 1, 1, 1)
    expected = expected.reshape(outputs, inputs, taps).bfloat16()
    forward = unpack(packed.values, outputs, inputs, taps)
    assert turned is not None and (packed.channels, turned.channels) == (outputs, inputs)
    backward = unpack(turned.values, inputs, outputs, taps)
    assert torch.equal(forward[:outputs, :inputs], expected)
    assert torch.equal(backward[:inputs, :outputs], expected.transpose(0, 1).flip(2))
    assert forward.count_nonzero() == backward.count_nonzero() == expected.count_nonzero()
    assert pack_weight(weight, scale)[1] is None
