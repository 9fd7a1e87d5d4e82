"""One convolution over several levels, against torch's own in float64, where kernels have traps."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from retinanet.engine.convolution import ConvParams, convolve, get_conv_params

CONVOLUTIONS = [
    nn.Conv2d(8, 6, 1),
    nn.Conv2d(8, 6, 1, stride=2),
    nn.Conv2d(8, 12, 3, stride=2, padding=1),
    nn.Conv2d(8, 8, 3, padding=1, groups=4),
    nn.Conv2d(8, 45, 3, padding=1),
    nn.Conv2d(8, 3, 7, stride=2, padding=3),
]


def poison() -> None:
    """Leave NaN in freed memory of many sizes."""
    for size in range(1, 200):
        torch.full((size * 64,), float("nan"))


def relative_error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_values_and_gradients_over_levels(
    convolution: nn.Conv2d, dtype: torch.dtype, scaled: bool
) -> None:
    torch.manual_seed(1)
    levels = [torch.randn(2, 8, *size).to(dtype).requires_grad_() for size in ((9, 6), (4, 4))]
    bias = torch.randn(len(convolution.weight), requires_grad=True)
    scale = torch.rand(len(convolution.weight)) + 0.5 if scaled else None
    weight = convolution.weight
    params = get_conv_params(convolution)
    outputs = convolve(levels, weight, bias, params=params, scale=scale)
    full = (
        weight.double() if scale is None else weight.double() * scale.double()[:, None, None, None]
    )
    stride, padding, groups = params
    wanted = [F.conv2d(x.double(), full, bias.double(), stride, padding, 1, groups) for x in levels]
    given = [torch.randn(y.shape) for y in wanted]
    sources = [weight, bias, *levels]
    found = torch.autograd.grad(outputs, sources, [g.to(dtype) for g in given])
    references = torch.autograd.grad(wanted, sources, [g.double() for g in given])
    allowed = 1e-5 if dtype == torch.float32 else 1e-2
    for value, reference in zip([*outputs, *found], [*wanted, *references], strict=True):
        assert relative_error(value, reference.double()) < allowed
    assert found[0].dtype == found[1].dtype == torch.float32


@pytest.mark.parametrize("height", [1, 2, 3])
def test_strided_convolution_of_a_map_one_pixel_wide_writes_all_of_its_gradient(
    height: int,
) -> None:
    torch.manual_seed(1)
    weight = (
        torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    )
    bias = torch.zeros(64)
    params = get_conv_params(nn.Conv2d(64, 64, 3, stride=2, padding=1))
    level = torch.randn(2, 64, height, 1).bfloat16().requires_grad_()
    for _ in range(5):
        poison()
        [output] = convolve([level], weight, bias, params=params)
        found = torch.autograd.grad(output, [weight, level], torch.ones_like(output))
        assert all(gradient.isfinite().all() for gradient in found)
        assert (found[0][..., 0] == 0).all() and (found[0][..., 2] == 0).all()
        assert found[1].dtype == torch.bfloat16


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("size", [1, 3])
def test_a_convolution_without_bias_trains_in_bf16(groups: int, size: int) -> None:
    torch.manual_seed(0)
    params = ConvParams((1, 1), (size // 2, size // 2), groups)
    weight = torch.randn(32, 32 // groups, size, size, requires_grad=True)
    level = torch.randn(2, 32, 6, 5).bfloat16()
    [output] = convolve([level], weight, None, params=params)
    output.float().sum().backward()
    [expected] = torch.autograd.grad(
        torch.nn.functional.conv2d(level.float(), weight, padding=size // 2, groups=groups).sum(),
        [weight],
    )
    assert weight.grad is not None
    assert torch.allclose(weight.grad, expected, atol=0.05 * float(expected.abs().max()))
