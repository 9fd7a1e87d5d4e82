"""ReLU in the convolution, its gradient taken by the readers, against float64 autograd."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from retinanet.engine.convolution import convolve, get_conv_params
from retinanet.engine.norm_relu import add_relu, branches

PRECISIONS = [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
CONVOLUTIONS = [
    (nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 5, 3, padding=1)),
    (nn.Conv2d(16, 16, 1), nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4)),
    (nn.Conv2d(16, 7, 3, padding=1), nn.Conv2d(7, 6, 1, stride=2)),
]


def relative_error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm()).item()


def convolved(
    levels: list[Tensor], module: nn.Conv2d, *, relu: bool = False, gated: bool = False
) -> list[Tensor]:
    assert module.bias is not None
    params = get_conv_params(module)
    return convolve(levels, module.weight, module.bias, params=params, relu=relu, gated=gated)


def reference(level: Tensor, module: nn.Conv2d) -> Tensor:
    assert module.bias is not None
    stride, padding, groups = get_conv_params(module)
    weight, bias = module.weight.double(), module.bias.double()
    return F.conv2d(level, weight, bias, stride, padding, 1, groups)


@pytest.mark.parametrize(("dtype", "allowed"), PRECISIONS, ids=str)
@pytest.mark.parametrize(("first", "second"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("size", [(9, 6), (5, 1)])
def test_chain_of_two_over_levels(
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
    inner = convolved(levels, first, relu=True)
    outputs = convolved(inner, second, gated=True)
    # The reference's ReLU opens where ours does: near zero rounding decides.
    wanted_inner = [
        reference(level.double(), first) * (ours > 0)
        for level, ours in zip(levels, inner, strict=True)
    ]
    wanted = [reference(level, second) for level in wanted_inner]
    given = [torch.randn(y.shape) for y in wanted]
    found = torch.autograd.grad(outputs, sources, [g.to(dtype) for g in given])
    references = torch.autograd.grad(wanted, sources, [g.double() for g in given])
    for value, of_reference in zip(
        [*inner, *outputs, *found], [*wanted_inner, *wanted, *references], strict=True
    ):
        assert relative_error(value, of_reference.double()) < allowed


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-28)])
def test_relu_in_the_convolution_is_relu_behind_it(dtype: torch.dtype, allowed: float) -> None:
    torch.manual_seed(1)
    for module in (nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, padding=1, groups=4)):
        level = torch.randn(2, 16, 9, 7).to(dtype)
        [plain], [fused] = convolved([level], module), convolved([level], module, relu=True)
        torch.testing.assert_close(fused, plain.relu(), rtol=0, atol=allowed)
        assert (fused > -1e-28).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_is_not_hidden_by_relu(dtype: torch.dtype) -> None:
    module = nn.Conv2d(16, 32, 3, padding=1)
    module.weight.data[5, 2, 1, 1] = float("nan")
    [outputs] = convolved([torch.ones(1, 16, 6, 6).to(dtype)], module, relu=True)
    assert outputs[:, 5].isnan().all()
    assert outputs[:, :5].isfinite().all()


@pytest.mark.parametrize(("dtype", "allowed"), PRECISIONS, ids=str)
def test_residual_sum_and_its_readers(dtype: torch.dtype, allowed: float) -> None:
    torch.manual_seed(1)
    shape = (2, 16, 5, 3)
    maps, added = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))
    weights = [torch.randn(shape).to(dtype) for _ in range(3)]
    result = add_relu(maps * 1, added)
    readers = branches(result, 3)
    terms = [reader * weight for reader, weight in zip(readers, weights, strict=True)]
    ones = [torch.ones(shape).to(dtype)] * 2
    found = torch.autograd.grad([terms[0], terms[2]], [maps, added], ones)  # one reader left out
    wanted = (weights[0].double() + weights[2].double()) * (maps.double() + added.double() > 0)
    assert relative_error(result, F.relu(maps.double() + added.double())) < allowed
    for value in found:
        assert relative_error(value, wanted) < allowed


def test_maps_without_a_graph_are_handed_on() -> None:
    maps = torch.ones(1, 2, 3, 3)
    assert all(reader is maps for reader in branches(maps, 3))
    weight = torch.ones(1, 2, 3, 3, requires_grad=True)
    with torch.inference_mode():
        result = add_relu(maps * 1, -2 * weight)
    assert not result.requires_grad and (result == 0).all()


def test_relu_leaves_no_small_numbers_in_float32() -> None:
    """Their products would be denormal, with which a step took eight times as long on a Xeon."""
    torch.manual_seed(1)
    for module in (nn.Conv2d(16, 32, 1), nn.Conv2d(16, 32, 3, padding=1, groups=4)):
        [fused] = convolved([torch.randn(2, 16, 9, 7)], module, relu=True)
        assert (fused == 0).any()
        assert ((fused == 0) | (fused > 1e-10)).all()
