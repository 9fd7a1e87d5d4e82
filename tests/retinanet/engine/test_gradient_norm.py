import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from retinanet.engine.optimizers import clip_gradients, gradient_norm


def parameters(*, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """With gradients but for the last one; the first in channels_last, as the model's are."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for shape in ((8, 4, 3, 3), (8,), (), (5, 7), (2,)):
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = torch.randn(shape, generator=generator).to(dtype)
        made.append(parameter)
    weight, *_, last = made
    assert weight.grad is not None
    weight.grad = weight.grad.contiguous(memory_format=torch.channels_last)
    last.grad = None
    return made


def gradients(of: list[nn.Parameter]) -> list[Tensor]:
    return [one.grad for one in of if one.grad is not None]


@pytest.mark.parametrize("longest", [0.5, 1e6])
def test_clipping_is_torchs_to_the_last_bit(longest: float) -> None:
    ours, theirs = parameters(), parameters()
    norm = gradient_norm(ours)
    clip_gradients(ours, norm=norm, longest=longest)
    assert norm == clip_grad_norm_(theirs, longest).item()
    for one, other in zip(gradients(ours), gradients(theirs), strict=True):
        assert torch.equal(one, other)
    assert gradient_norm(ours) == pytest.approx(min(norm, longest), rel=1e-5)


def test_without_a_longest_norm_gradients_stay() -> None:
    ours = parameters()
    clip_gradients(ours, norm=1e30, longest=None)
    for one, other in zip(gradients(ours), gradients(parameters()), strict=True):
        assert torch.equal(one, other)


def test_the_norm_of_bf16_gradients_is_not_rounded() -> None:
    rounded = parameters(dtype=torch.bfloat16)
    squares = sum(float(one.double().square().sum()) for one in gradients(rounded))
    assert gradient_norm(rounded) == pytest.approx(math.sqrt(squares), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_one_value_that_is_not_finite_or_whose_square_is_not_shows(value: float) -> None:
    ours = parameters()
    gradients(ours)[0][7, 3, 2, 2] = value
    assert not math.isfinite(gradient_norm(ours))


def test_no_gradients_have_no_norm() -> None:
    assert gradient_norm([nn.Parameter(torch.zeros(3))]) == 0
