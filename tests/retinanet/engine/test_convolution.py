"""Convolutions over levels, with ReLUs and residual sums, against float64."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from retinanet.engine import kernels
from retinanet.engine.convolution import Fused, convolve
from retinanet.engine.kernels import (
    ONLY_ONEDNN,
    POINTWISE,
    POINTWISE_OF_STRIDE_2,
    SAME_3X3,
    ConvParams,
    Machine,
    get_conv_params,
)
from retinanet.engine.norm_relu import add_relu, branches
from retinanet.engine.tile_convolution import Tiles, best_tiles, pack_weight, tile_convolve
from tests.retinanet.engine.kernels import BF16_ROUNDING, assert_close_sums, distance

PRECISIONS = [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
HERE = Machine(best_tiles())
EMULATED = Machine(Tiles.EMULATED)


def convolve_by(
    module: nn.Conv2d,
    levels: list[Tensor],
    *,
    scale: Tensor | None = None,
    machine: Machine = HERE,
    **fused: Any,
) -> list[Tensor]:
    return convolve(
        levels, module.weight, module.bias,
        params=get_conv_params(module), machine=machine, scale=scale, fused=Fused(**fused),
    )  # fmt: skip


def reference(level: Tensor, module: nn.Conv2d, scale: Tensor | None = None) -> Tensor:
    """Convolve in float64."""
    assert module.bias is not None
    stride, padding, groups = get_conv_params(module)
    weight, bias = module.weight.double(), module.bias.double()
    if scale is not None:
        weight = weight * scale.double()[:, None, None, None]
    return F.conv2d(level.double(), weight, bias, stride, padding, 1, groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(8, 6, 1),
        nn.Conv2d(8, 6, 1, stride=2),
        nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=4),
        nn.Conv2d(8, 45, 3, padding=1),
        nn.Conv2d(8, 3, 7, stride=2, padding=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("scaled", [False, True])
def test_values_and_gradients_over_levels(
    module: nn.Conv2d, dtype: torch.dtype, scaled: bool
) -> None:
    torch.manual_seed(1)
    levels = [torch.randn(2, 8, *size).to(dtype).requires_grad_() for size in ((9, 6), (4, 4))]
    scale = torch.rand(len(module.weight)) + 0.5 if scaled else None
    outputs = convolve_by(module, levels, scale=scale)
    expected = [reference(level, module, scale) for level in levels]
    given = [torch.randn(output.shape) for output in expected]
    sources = [*module.parameters(), *levels]
    gradients = torch.autograd.grad(outputs, sources, [g.to(dtype) for g in given])
    references = torch.autograd.grad(expected, sources, [g.double() for g in given])
    allowed = 1e-5 if dtype == torch.float32 else 1e-2
    for value, exact in zip([*outputs, *gradients], [*expected, *references], strict=True):
        assert distance(value, exact.double()) < allowed
    assert gradients[0].dtype == gradients[1].dtype == torch.float32


@pytest.mark.parametrize("height", [1, 2, 3])
def test_strided_convolution_of_a_map_one_pixel_wide_writes_its_whole_gradient(
    height: int,
) -> None:
    torch.manual_seed(1)
    weight = torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last)
    weight.requires_grad_()
    params = get_conv_params(nn.Conv2d(64, 64, 3, stride=2, padding=1))
    level = torch.randn(2, 64, height, 1).bfloat16().requires_grad_()
    for _ in range(5):
        for size in range(1, 200):  # NaN in freed memory of many sizes
            torch.full((size * 64,), float("nan"))
        [output] = convolve([level], weight, torch.zeros(64), params=params, machine=HERE)
        gradients = torch.autograd.grad(output, [weight, level], torch.ones_like(output))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][..., 0] == 0).all() and (gradients[0][..., 2] == 0).all()
        assert gradients[1].dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "allowed"), PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 5, 3, padding=1)),
        (nn.Conv2d(16, 16, 1), nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4)),
        (nn.Conv2d(16, 7, 3, padding=1), nn.Conv2d(7, 6, 1, stride=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(9, 6), (5, 1)])
def test_relu_between_two_convolutions_over_levels(
    first: nn.Conv2d,
    second: nn.Conv2d,
    size: tuple[int, int],
    dtype: torch.dtype,
    allowed: float,
) -> None:
    torch.manual_seed(1)
    exact = torch.promote_types(dtype, torch.float32)
    first, second = deepcopy(first).to(exact), deepcopy(second).to(exact)
    levels = [torch.randn(2, 16, *side).to(dtype).requires_grad_() for side in (size, (4, 4))]
    sources = [*first.parameters(), *second.parameters(), *levels]
    inner = convolve_by(first, levels, relu=True)
    outputs = convolve_by(second, inner, gated=True)
    # The reference's ReLU opens where ours does: near zero rounding decides.
    expected_inner = [
        reference(level, first) * (maps > 0) for level, maps in zip(levels, inner, strict=True)
    ]
    expected = [reference(level, second) for level in expected_inner]
    given = [torch.randn(output.shape) for output in expected]
    gradients = torch.autograd.grad(outputs, sources, [g.to(dtype) for g in given])
    references = torch.autograd.grad(expected, sources, [g.double() for g in given])
    for value, exact_value in zip(
        [*inner, *outputs, *gradients], [*expected_inner, *expected, *references], strict=True
    ):
        assert distance(value, exact_value.double()) < allowed


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-28)])
@pytest.mark.parametrize("module", [nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, 1, 1, groups=4)])
def test_fused_relu_equals_relu_behind_the_convolution(
    module: nn.Conv2d, dtype: torch.dtype, allowed: float
) -> None:
    torch.manual_seed(1)
    level = torch.randn(2, 16, 9, 7).to(dtype)
    [plain], [fused] = convolve_by(module, [level]), convolve_by(module, [level], relu=True)
    torch.testing.assert_close(fused, plain.relu(), rtol=0, atol=allowed)
    assert (fused > -1e-28).all()
    if dtype == torch.float32:
        # Products of small numbers would be denormal: a step took 8 times as long on a Xeon.
        assert (fused == 0).any()
        assert ((fused == 0) | (fused > 1e-10)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_passes_relu(dtype: torch.dtype) -> None:
    module = nn.Conv2d(16, 32, 3, padding=1)
    module.weight.data[5, 2, 1, 1] = float("nan")
    [outputs] = convolve_by(module, [torch.ones(1, 16, 6, 6).to(dtype)], relu=True)
    assert outputs[:, 5].isnan().all()
    assert outputs[:, :5].isfinite().all()


@pytest.mark.parametrize(("dtype", "allowed"), PRECISIONS, ids=str)
def test_residual_sum_and_its_readers(dtype: torch.dtype, allowed: float) -> None:
    torch.manual_seed(1)
    shape = (2, 16, 5, 3)
    maps, added = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))
    weights = [torch.randn(shape).to(dtype) for _ in range(3)]
    result = add_relu(maps * 1, added)
    terms = [reader * weight for reader, weight in zip(branches(result, 3), weights, strict=True)]
    ones = [torch.ones(shape).to(dtype)] * 2
    gradients = torch.autograd.grad([terms[0], terms[2]], [maps, added], ones)  # one left out
    expected = (weights[0].double() + weights[2].double()) * (maps.double() + added.double() > 0)
    assert distance(result, F.relu(maps.double() + added.double())) < allowed
    for value in gradients:
        assert distance(value, expected) < allowed


def test_maps_without_a_graph_are_returned_as_they_are() -> None:
    maps = torch.ones(1, 2, 3, 3)
    assert all(reader is maps for reader in branches(maps, 3))
    weight = torch.ones(1, 2, 3, 3, requires_grad=True)
    with torch.inference_mode():
        result = add_relu(maps * 1, -2 * weight)
    assert not result.requires_grad and (result == 0).all()


@pytest.mark.parametrize("machine", [EMULATED, ONLY_ONEDNN])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("params", [POINTWISE, SAME_3X3, ConvParams((1, 1), (1, 1), 4)], ids=str)
def test_a_residual_block_trains_as_in_float64(
    params: ConvParams, dtype: torch.dtype, machine: Machine
) -> None:
    torch.manual_seed(0)
    size = 1 + 2 * params.padding[0]
    features = torch.randn(2, 32, 11, 9).relu()
    shapes = [(32, 32 // params.groups, size, size)] * 2
    weights = [torch.randn(shape) / shape[1] ** 0.5 / size for shape in shapes]
    weights = [weight.bfloat16().float().requires_grad_() for weight in weights]
    given = torch.randn(2, 32, 11, 9)
    level = features.to(dtype).requires_grad_()
    layer, reader = partial(convolve, params=params, machine=machine), Fused(relu=True, gated=True)
    inner, shortcut = layer([level], weights[0], None, fused=reader._replace(passes=True))
    [result] = layer([inner], weights[1], None, fused=reader._replace(added=shortcut))
    # The last ReLU's mask is its readers' to apply.
    gradients = torch.autograd.grad(result, [level, *weights], (given * (result > 0)).to(dtype))
    exact = features.double().requires_grad_()
    exact_weights = [weight.detach().double().requires_grad_() for weight in weights]
    # ReLUs open where ours do: near zero rounding decides.
    exactly = partial(F.conv2d, padding=params.padding, groups=params.groups)
    expected_inner = exactly(exact, exact_weights[0]) * (inner > 0)
    expected = (exactly(expected_inner, exact_weights[1]) + exact) * (result > 0)
    references = torch.autograd.grad(expected, [exact, *exact_weights], given.double())
    masked = (references[0] * (features > 0), *references[1:])
    for value, reference in zip([result, *gradients], [expected, *masked], strict=True):
        assert distance(value, reference) <= (1e-2 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize(
    ("params", "size", "scaled"),
    [
        (SAME_3X3, 3, False),
        (SAME_3X3, 3, True),
        (POINTWISE, 1, True),
        (POINTWISE_OF_STRIDE_2, 1, True),
    ],
)
def test_tiles_train_as_float32(params: ConvParams, size: int, scaled: bool) -> None:
    torch.manual_seed(0)
    maps = [torch.randn(2, 24, *side).relu().bfloat16() for side in ((11, 9), (5, 4))]
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(1)
        weight = torch.randn(41, 24, size, size).bfloat16().float().requires_grad_()
        bias = torch.randn(41).bfloat16().float().requires_grad_()
        scale = torch.rand(41) + 0.5 if scaled else None
        levels = [level.to(dtype).requires_grad_() for level in maps]
        outputs = convolve(
            levels, weight, bias,
            params=params, machine=EMULATED, scale=scale, fused=Fused(gated=True),
        )  # fmt: skip
        sources = [weight, bias] if scaled else [weight, bias, *levels]
        given = [torch.ones_like(output) for output in outputs]
        gradients = torch.autograd.grad(outputs, sources, given)
        assert gradients[0].dtype == gradients[1].dtype == torch.float32
        results.append([*gradients, *([] if scaled else outputs)])
    assert_close_sums(*results, allowed=BF16_ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(32, 64, 1),
        nn.Conv2d(32, 64, 1, stride=2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.Conv2d(64, 64, 3, padding=1, groups=8),
        nn.Conv2d(64, 64, 3, padding=1, groups=8, stride=2),
    ],
    ids=str,
)
def test_zero_images_are_as_in_torch(module: nn.Conv2d, dtype: torch.dtype) -> None:
    level = torch.zeros(0, module.in_channels, 6, 5, dtype=dtype, requires_grad=True)
    sources = [level, *module.parameters()]
    for relu in (False, True):
        [output] = convolve_by(module, [level], machine=EMULATED, relu=relu, gated=True)
        expected = F.conv2d(level.float(), module.weight, None, *get_conv_params(module)[:2], 1,
                            module.groups)  # fmt: skip
        assert output.shape == expected.shape and output.dtype == dtype
        gradients = torch.autograd.grad(output, sources, torch.zeros_like(output))
        for gradient, source in zip(gradients, sources, strict=True):
            assert gradient.shape == source.shape and not gradient.any()


def test_kernels_refuse_zero_images() -> None:
    packed, _ = pack_weight(torch.zeros(32, 32, 3, 3))
    with pytest.raises(AssertionError, match="suits_kernels"):
        tile_convolve([torch.zeros(0, 32, 6, 5).bfloat16()], packed, tiles=Tiles.EMULATED)


@pytest.mark.parametrize("stride", [1, 2])
def test_grouped_kernels_train_as_onednn(stride: int) -> None:
    torch.manual_seed(1)
    levels = [torch.randn(2, 64, 12, size).bfloat16() for size in (10, 7)]
    weight, bias = torch.randn(64, 16, 3, 3), torch.randn(64)
    params = ConvParams((stride, stride), (1, 1), 4)
    results = []
    for machine in (EMULATED, ONLY_ONEDNN):
        sources = [tensor.clone().requires_grad_() for tensor in (weight, bias, *levels)]
        outputs = convolve(sources[2:], *sources[:2], params=params, machine=machine)
        loss = torch.stack([output.float().square().sum() for output in outputs]).sum()
        results.append(torch.autograd.grad(loss, sources))
    by_tiles, by_onednn = results
    assert [value.dtype for value in by_tiles] == [value.dtype for value in by_onednn]
    assert not torch.equal(by_tiles[0], by_onednn[0])  # another order of the sums
    assert_close_sums(by_tiles, by_onednn, allowed=2 * BF16_ROUNDING)


@pytest.mark.skipif(best_tiles() is None, reason="no AVX-512 BF16")
@pytest.mark.parametrize("params", [POINTWISE, POINTWISE_OF_STRIDE_2])
def test_without_amx_vectors_compute_pointwise_weight_gradients(params: ConvParams) -> None:
    torch.manual_seed(1)
    module = nn.Conv2d(64, 32, 1, stride=params.stride)  # type: ignore[arg-type]
    levels = [torch.randn(2, 64, *size).bfloat16() for size in ((9, 6), (4, 4))]
    scale = torch.rand(32) + 0.5
    outputs = convolve_by(module, levels, scale=scale, machine=Machine(Tiles.VECTORS))
    given = [torch.randn(output.shape).bfloat16() for output in outputs]
    gradients = torch.autograd.grad(outputs, list(module.parameters()), given)
    expected = [reference(level, module, scale) for level in levels]
    doubles = [gradient.double() for gradient in given]
    references = torch.autograd.grad(expected, list(module.parameters()), doubles)
    for value, exact in zip(gradients, references, strict=True):
        assert value.dtype == torch.float32 and distance(value, exact.double()) < 1e-6


@pytest.mark.parametrize("machine", [EMULATED, HERE])
def test_results_of_convolve_may_be_changed_in_place(machine: Machine) -> None:
    features, weight = torch.randn(1, 64, 5, 5).bfloat16(), torch.randn(64, 8, 3, 3)
    params = ConvParams((1, 1), (1, 1), 8)
    [output] = convolve([features], weight.requires_grad_(), None, params=params, machine=machine)
    output.relu_().sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_float32_maps_use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "tile_convolve", None)  # a call would fail
    level, weight = torch.ones(1, 8, 9, 9), torch.ones(8, 8, 3, 3)
    [output] = convolve([level], weight, None, params=SAME_3X3, machine=EMULATED)
    assert (output[..., 1:-1, 1:-1] == 72).all()
