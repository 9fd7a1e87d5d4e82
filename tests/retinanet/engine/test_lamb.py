from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.native import usable_instruction_sets
from retinanet.engine.optimizers import STEP_KERNELS, Lamb

Array = NDArray[np.float64]

SHAPES = [
    (1,),
    (17,),
    (5, 7),
    (24, 8, 3, 3),
    (3, 16, 1, 1),
    (600, 500),
    (130, 127),
    (2, 3, 5),
    (9,),
]
"""Odd sizes, and 300,000 values: many chunks of threads, more than a thread's group."""

RATE, DECAY, STEPS = 0.05, 0.1, 4


@pytest.fixture(params=["plain", *usable_instruction_sets()])
def make_lamb(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lamb]:
    """LAMB in each of its forms."""
    if request.param == "plain":
        return partial(Lamb, fused=False)
    monkeypatch.setattr(STEP_KERNELS, "instruction_set", request.param)
    return Lamb


def make_parameters(*, seed: int = 0) -> list[nn.Parameter]:
    """Weights of many scales, those of images' layers in channels_last memory."""
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for place, shape in enumerate(SHAPES):
        values = torch.randn(shape, generator=generator) * 10.0 ** (place % 3 - 1)
        if len(shape) == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        parameters.append(nn.Parameter(values))
    return parameters


def make_gradients(parameters: list[nn.Parameter], *, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    gradients = []
    for place, parameter in enumerate(parameters):
        values = torch.randn(parameter.shape, generator=generator) * 10.0 ** (-place)
        gradients.append(torch.empty_like(parameter).copy_(values))
    return gradients


def train(optimizer: Lamb, parameters: list[nn.Parameter], *, first: int = 0) -> list[Tensor]:
    """Some steps with gradients that their numbers give; the weights after them."""
    for step in range(first, first + STEPS):
        for parameter, gradient in zip(
            parameters, make_gradients(parameters, step=step), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def algorithm_2(weight: Array, gradients: list[Array], *, decay: float, adapt: bool) -> Array:
    """The paper's formulas in float64, written down again."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, gradient in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        update = r + decay * weight
        x, u = np.sqrt((weight**2).sum()), np.sqrt((update**2).sum())
        weight = weight - RATE * (x / u if adapt and x > 0 and u > 0 else 1.0) * update
    return weight


def expected_of(parameters: list[nn.Parameter], *, decay: float) -> list[Tensor]:
    """What the paper's formulas make of the weights."""
    steps = [make_gradients(parameters, step=step) for step in range(STEPS)]
    return [
        torch.from_numpy(
            algorithm_2(
                parameter.detach().double().numpy(),
                [gradients[place].double().numpy() for gradients in steps],
                decay=decay if parameter.dim() > 1 else 0.0,
                adapt=parameter.dim() > 1,
            )
        )
        for place, parameter in enumerate(parameters)
    ]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(float(other.abs().max()), STEPS * RATE)  # steps leave their rounding behind
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=4e-6 * scale)


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_steps_are_the_papers(make_lamb: Callable[..., Lamb], decay: float) -> None:
    parameters = make_parameters()
    expected = expected_of(parameters, decay=decay)
    optimizer = make_lamb(parameters, lr=RATE, weight_decay=decay)
    assert_close(train(optimizer, parameters), expected)


def test_a_layer_of_zeros_takes_plain_steps(make_lamb: Callable[..., Lamb]) -> None:
    weight = nn.Parameter(torch.zeros(40, 3))
    optimizer = make_lamb([weight], lr=RATE)
    weight.grad = torch.linspace(-1, 1, 120).reshape(40, 3).sign()
    optimizer.step()
    # The first step is the gradient's sign.
    torch.testing.assert_close(weight.detach(), -RATE * weight.grad)


def test_without_gradient_or_decay_weights_stay(make_lamb: Callable[..., Lamb]) -> None:
    weight, unused = nn.Parameter(torch.randn(40, 3)), nn.Parameter(torch.randn(7, 3))
    before = [weight.detach().clone(), unused.detach().clone()]
    optimizer = make_lamb([weight, unused], lr=RATE)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.equal(weight, before[0])
    assert torch.equal(unused, before[1]) and unused not in optimizer.state


def test_a_first_step_is_as_long_as_its_share_of_the_weights(
    make_lamb: Callable[..., Lamb],
) -> None:
    for scale in (1e-3, 1.0, 1e3):
        weight = nn.Parameter(torch.randn(50, 60) * scale)
        before = weight.detach().clone()
        weight.grad = torch.randn(50, 60)
        make_lamb([weight], lr=RATE).step()
        length = (weight.detach() - before).norm() / before.norm()
        assert length.item() == pytest.approx(RATE, rel=1e-4)


def test_parameters_that_join_later_count_their_own_steps(make_lamb: Callable[..., Lamb]) -> None:
    early, late, alone = (nn.Parameter(torch.full((4, 5), 2.0)) for _ in range(3))
    optimizer, other = make_lamb([early, late], lr=RATE), make_lamb([alone], lr=RATE)
    gradient = torch.linspace(-1, 2, 20).reshape(4, 5)
    early.grad = gradient.clone()
    optimizer.step()
    late.grad = gradient.clone()
    optimizer.step()
    alone.grad = gradient.clone()
    other.step()
    assert torch.equal(late, alone)
    assert not torch.equal(late, early)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_gradient_or_a_state_in_another_layout_is_taken_for_what_it_is(
    make_lamb: Callable[..., Lamb], layout: torch.memory_format
) -> None:
    values = torch.randn(6, 5, 4, 3)
    gradients = [torch.randn(6, 5, 4, 3) for _ in range(3)]
    ends = []
    for other in (torch.contiguous_format, torch.channels_last):
        weight = nn.Parameter(values.clone(memory_format=layout))
        optimizer = make_lamb([weight], lr=RATE)
        for gradient in gradients:
            weight.grad = gradient.clone(memory_format=other)
            optimizer.step()
            for slot in ("exp_avg", "exp_avg_sq"):
                state = optimizer.state[weight]
                assert state[slot].stride() == weight.stride()
                state[slot] = state[slot].clone(memory_format=other)
        ends.append(weight.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_are_not_in_one_piece_or_not_float32_are_updated_too(
    make_lamb: Callable[..., Lamb], dtype: torch.dtype
) -> None:
    dense = nn.Parameter(torch.randn(6, 8))
    values = torch.zeros(6, 16, dtype=dtype)
    values[:, ::2] = dense.detach()
    view = nn.Parameter(values[:, ::2])
    assert not view.is_contiguous()
    optimizer = make_lamb([dense, view], lr=RATE)
    for _ in range(3):
        dense.grad = torch.randn(6, 8)
        view.grad = dense.grad.to(dtype)
        optimizer.step()
    torch.testing.assert_close(view.detach().float(), dense.detach(), rtol=1e-5, atol=1e-6)
    assert values[:, 1::2].eq(0).all()


def test_the_number_of_threads_does_not_change_a_bit(make_lamb: Callable[..., Lamb]) -> None:
    threads = torch.get_num_threads()
    ends = []
    try:
        for number in (1, 2, 3):
            parameters = make_parameters()
            # PyTorch's own sums depend on its threads.
            fused = make_lamb is Lamb
            torch.set_num_threads(number if fused else 1)
            ends.append(train(make_lamb(parameters, lr=RATE, weight_decay=DECAY), parameters))
    finally:
        torch.set_num_threads(threads)
    for end in ends[1:]:
        assert all(torch.equal(one, other) for one, other in zip(end, ends[0], strict=True))


def test_a_state_dict_goes_on_in_the_other_form() -> None:
    ends = []
    for forms in ((True, False), (False, True), (False, False)):
        parameters = make_parameters()
        optimizer, other = (
            Lamb(parameters, lr=RATE, weight_decay=DECAY, fused=fused) for fused in forms
        )
        train(optimizer, parameters)
        state, groups = optimizer.state_dict()["state"], other.state_dict()["param_groups"]
        other.load_state_dict({"state": state, "param_groups": groups})
        ends.append(train(other, parameters, first=STEPS))
    assert_close(ends[0], ends[2])
    assert_close(ends[1], ends[2])
