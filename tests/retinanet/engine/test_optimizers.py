import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer

from common.native import usable_instruction_sets
from retinanet.engine.optimizers import (
    STEP_KERNELS,
    FusedAdam,
    FusedAdamW,
    FusedSGD,
    Lamb,
    clip_gradients,
    gradient_norm,
    make_optimizer,
    native_steps_work,
    set_learning_rate,
)
from tests.retinanet.engine.kernels import assert_equal
from tests.retinanet.engine.layers import Layers, random_gradients, trainable
from tests.support.no_compiler import no_compiler

Array = NDArray[np.float64]
Make = Callable[..., Optimizer]
MakeLamb = Callable[..., Lamb]

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
NAMES = ("adam", "adamw", "sgd", "lamb")
RATE, DECAY, STEPS = 0.05, 0.1, 4


def train(
    optimizer: Optimizer, parameters: list[nn.Parameter], *, first_seed: int = 100
) -> list[Tensor]:
    """Return the weights after steps with random gradients, a seed for each step."""
    for seed in range(first_seed, first_seed + STEPS):
        gradients = random_gradients(parameters, seed=seed)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def train_model(optimizer: Optimizer, model: nn.Module) -> list[Tensor]:
    train(optimizer, trainable(model), first_seed=1)
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(weights: list[Tensor], expected: list[Tensor]) -> None:
    for weight, reference in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, reference, rtol=1e-5, atol=2e-6)


@pytest.fixture(params=usable_instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEP_KERNELS, "instruction_set", request.param)


@pytest.mark.parametrize(
    ("name", "reference", "settings"),
    [
        ("adam", Adam, {"weight_decay": 0.0}),
        ("adam", Adam, {"weight_decay": 0.1}),
        ("adamw", AdamW, {"weight_decay": 0.1}),
        ("sgd", SGD, {"weight_decay": 0.1, "momentum": 0.0}),
        ("sgd", SGD, {"weight_decay": 0.1, "momentum": 0.9}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("instruction_set")
def test_steps_are_torchs(
    name: str, reference: Callable[..., Optimizer], settings: dict[str, Any], dtype: torch.dtype
) -> None:
    model, other = Layers().to(dtype), Layers().to(dtype)
    fused = make_optimizer(model, name=name, learning_rate=0.02, **settings)
    assert fused.param_groups[0]["fused"]
    assert type(fused) is (reference if dtype == torch.float64 else FUSED[reference])
    plain = reference(trainable(other), lr=0.02, foreach=False, **settings)
    assert_close(train_model(fused, model), train_model(plain, other))
    names = [[*map(set, each.state_dict()["state"].values())] for each in (fused, plain)]
    assert names[0] == names[1]


FUSED: dict[Any, type[Optimizer]] = {Adam: FusedAdam, AdamW: FusedAdamW, SGD: FusedSGD}


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AVX2"),
    reason="torch rounds otherwise on this processor",
)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adam", {}),
        ("adam", {"weight_decay": 0.1, "beta1": 0.3}),
        ("adamw", {"weight_decay": 0.1}),
        ("sgd", {}),
        ("sgd", {"weight_decay": 0.1, "momentum": 0.9}),
    ],
)
def test_steps_are_those_of_torchs_fused_to_the_last_bit(
    name: str, settings: dict[str, Any]
) -> None:
    # More values than a thread takes at a time, and no multiples of a vector's.
    models = [nn.Linear(181, 203), nn.Linear(181, 203)]
    models[1].load_state_dict(models[0].state_dict())
    make: Make = partial(make_optimizer, name=name, learning_rate=0.02, **settings)
    ours, theirs = (make(model) for model in models)
    theirs.__class__ = {fused: plain for plain, fused in FUSED.items()}[type(ours)]
    weights = [
        train_model(optimizer, model)
        for optimizer, model in zip((ours, theirs), models, strict=True)
    ]
    assert_equal(*weights)


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_steps_are_torchs_own() -> None:
    for name, kind in (("adam", Adam), ("adamw", AdamW), ("sgd", SGD)):
        assert type(make_optimizer(Layers(), name=name, learning_rate=0.1)) is kind


@pytest.mark.parametrize("name", NAMES)
def test_plain_form_takes_equal_steps_tensor_by_tensor(name: str) -> None:
    model, other = Layers(), Layers()
    make: Make = partial(make_optimizer, name=name, learning_rate=0.02, weight_decay=0.1)
    plain = make(other, fused=False)
    group = plain.param_groups[0]
    assert not group["fused"] and not group.get("foreach", False)
    assert type(plain) in (Adam, AdamW, SGD, Lamb)
    assert_close(train_model(make(model), model), train_model(plain, other))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fused", [True, False])
def test_settings_arrive_and_frozen_parameters_are_left_out(name: str, fused: bool) -> None:
    model = Layers()
    optimizer = make_optimizer(
        model, name=name, learning_rate=0.5, momentum=0.7, weight_decay=0.25, fused=fused
    )
    (group,) = optimizer.param_groups
    assert list(map(id, group["params"])) == list(map(id, trainable(model)))
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    assert group.get("momentum", 0.7) == 0.7


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fused", [True, False])
def test_first_parameters_have_a_learning_rate_times_a_factor(name: str, fused: bool) -> None:
    """They step as in an optimizer of their own with that rate, and so do the others."""
    make: Make = partial(make_optimizer, name=name, weight_decay=0.1, fused=fused)
    weights = {}
    for factor, rate in ((0.25, 0.02), (1.0, 0.02), (1.0, 0.005)):
        model = Layers()
        optimizer = make(model, learning_rate=1.0, body_parameters=3, body_factor=factor)
        assert len(optimizer.param_groups) == (1 if factor == 1 else 2)
        set_learning_rate(optimizer, rate)
        train(optimizer, trainable(model), first_seed=1)
        weights[factor, rate] = [value.detach() for value in trainable(model)]
    expected = weights[1.0, 0.005][:3] + weights[1.0, 0.02][3:]
    assert len(expected) > 4
    for value, reference in zip(weights[0.25, 0.02], expected, strict=True):
        assert torch.equal(value, reference)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_compiler(monkeypatch, STEP_KERNELS, native_steps_work.cache_clear):
        yield


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(("name", "warnings"), [("adam", 0), ("lamb", 1), ("sgd", 0)])
def test_without_a_compiler_lamb_is_plain_with_one_warning(
    name: str, warnings: int, capfd: pytest.CaptureFixture[str]
) -> None:
    model, other = Layers(), Layers()
    make: Make = partial(make_optimizer, name=name, learning_rate=0.02)
    optimizer = make(model)
    assert_close(train_model(optimizer, model), train_model(make(other, fused=False), other))
    make(other)
    errors = capfd.readouterr().err
    assert errors.count("\n") == errors.count("no-such-compiler") == warnings


@pytest.fixture(params=["plain", *usable_instruction_sets()])
def make_lamb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeLamb:
    """LAMB in each of its forms."""
    if request.param == "plain":
        return partial(Lamb, fused=False)
    monkeypatch.setattr(STEP_KERNELS, "instruction_set", request.param)
    return Lamb


def make_parameters() -> list[nn.Parameter]:
    """Return weights of many scales, those of convolutions in channels_last memory."""
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for place, shape in enumerate(SHAPES):
        values = torch.randn(shape, generator=generator) * 10.0 ** (place % 3 - 1)
        if len(shape) == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        parameters.append(nn.Parameter(values))
    return parameters


def algorithm_2(weight: Array, gradients: list[Array], *, decay: float, adapt: bool) -> Array:
    """Compute the paper's formulas in float64."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for t, gradient in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        update = r + decay * weight
        x, u = np.sqrt((weight**2).sum()), np.sqrt((update**2).sum())
        weight = weight - RATE * (x / u if adapt and x > 0 and u > 0 else 1.0) * update
    return weight


def expected_weights(parameters: list[nn.Parameter], *, decay: float) -> list[Tensor]:
    """Return the weights after `STEPS` steps by the paper's formulas."""
    steps = [random_gradients(parameters, seed=100 + step) for step in range(STEPS)]
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


def assert_close_by_scale(weights: list[Tensor], expected: list[Tensor]) -> None:
    for weight, reference in zip(weights, expected, strict=True):
        scale = max(float(reference.abs().max()), STEPS * RATE)  # each step rounds
        torch.testing.assert_close(
            weight.double(), reference.double(), rtol=1e-5, atol=4e-6 * scale
        )


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_lambs_steps_are_the_papers(make_lamb: MakeLamb, decay: float) -> None:
    parameters = make_parameters()
    expected = expected_weights(parameters, decay=decay)
    optimizer = make_lamb(parameters, lr=RATE, weight_decay=decay)
    assert_close_by_scale(train(optimizer, parameters), expected)


def test_lambs_averages_are_adams_in_float64(make_lamb: MakeLamb) -> None:
    parameters = make_parameters()
    exact = [nn.Parameter(parameter.detach().double()) for parameter in parameters]
    optimizers = [make_lamb(parameters, lr=RATE), Adam(exact, lr=RATE, eps=1e-6)]
    for step in range(STEPS):
        for parameter, twin, gradient in zip(
            parameters, exact, random_gradients(parameters, seed=step), strict=True
        ):
            parameter.grad, twin.grad = gradient, gradient.double()
        for optimizer in optimizers:
            optimizer.step()
    for parameter, twin in zip(parameters, exact, strict=True):
        states = [
            optimizer.state[p] for optimizer, p in zip(optimizers, (parameter, twin), strict=True)
        ]
        for name in ("exp_avg", "exp_avg_sq"):
            error = (states[0][name] - states[1][name]).norm() / states[1][name].norm()
            assert error < 1e-6


def test_lamb_takes_plain_steps_for_a_layer_of_zeros(make_lamb: MakeLamb) -> None:
    weight = nn.Parameter(torch.zeros(40, 3))
    weight.grad = torch.linspace(-1, 1, 120).reshape(40, 3).sign()
    make_lamb([weight], lr=RATE).step()
    # The first step is the gradient's sign.
    torch.testing.assert_close(weight.detach(), -RATE * weight.grad)


def test_lamb_leaves_weights_without_gradient_or_decay(make_lamb: MakeLamb) -> None:
    weight, unused = nn.Parameter(torch.randn(40, 3)), nn.Parameter(torch.randn(7, 3))
    before = [weight.detach().clone(), unused.detach().clone()]
    optimizer = make_lamb([weight, unused], lr=RATE)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert_equal([weight, unused], before)
    assert unused not in optimizer.state


def test_lamb_counts_the_steps_of_each_parameter(make_lamb: MakeLamb) -> None:
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


@pytest.mark.parametrize("name", ["adam", "sgd", "lamb"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_and_state_may_have_another_layout(
    name: str, layout: torch.memory_format
) -> None:
    values = torch.randn(6, 5, 4, 3)
    gradients = [torch.randn(6, 5, 4, 3) for _ in range(3)]
    results = []
    for other in (torch.contiguous_format, torch.channels_last):
        model = nn.Conv2d(5, 6, (4, 3), bias=False)
        weight = model.weight = nn.Parameter(values.clone(memory_format=layout))
        optimizer = make_optimizer(model, name=name, learning_rate=RATE, momentum=0.9)
        for gradient in gradients:
            weight.grad = gradient.clone(memory_format=other)
            optimizer.step()
            state = optimizer.state[weight]
            slots = [slot for slot in state if state[slot].dim() > 0]
            assert slots and all(state[slot].stride() == weight.stride() for slot in slots)
            state |= {slot: state[slot].clone(memory_format=other) for slot in slots}
        results.append([weight.detach()])
    assert_equal(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lamb_updates_weights_of_other_types_and_with_gaps(
    make_lamb: MakeLamb, dtype: torch.dtype
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


@pytest.mark.usefixtures("instruction_set", "threads_restored")
def test_threads_do_not_change_lambs_steps() -> None:
    results = []
    for threads in (1, 2, 3):
        parameters = make_parameters()
        torch.set_num_threads(threads)
        results.append(train(Lamb(parameters, lr=RATE, weight_decay=DECAY), parameters))
    assert_equal(*results)


def test_lambs_state_dict_loads_into_the_other_form() -> None:
    results = []
    for forms in ((True, False), (False, True), (False, False)):
        parameters = make_parameters()
        optimizer, other = (
            Lamb(parameters, lr=RATE, weight_decay=DECAY, fused=fused) for fused in forms
        )
        train(optimizer, parameters)
        state, groups = optimizer.state_dict()["state"], other.state_dict()["param_groups"]
        other.load_state_dict({"state": state, "param_groups": groups})
        results.append(train(other, parameters, first_seed=100 + STEPS))
    assert_close_by_scale(results[0], results[2])
    assert_close_by_scale(results[1], results[2])


def parameters_with_gradients(*, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Return parameters with gradients, but for the last one; the first is in channels_last."""
    shapes = ((8, 4, 3, 3), (8,), (), (5, 7), (2,))
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    generator = torch.Generator().manual_seed(5)
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
    weight = parameters[0]
    assert weight.grad is not None
    weight.grad = weight.grad.contiguous(memory_format=torch.channels_last)
    return parameters


def list_gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("longest", [0.5, 1e6])
def test_clipping_is_torchs(longest: float) -> None:
    ours, theirs = parameters_with_gradients(), parameters_with_gradients()
    norm = gradient_norm(ours)
    clip_gradients(ours, norm=norm, longest=longest)
    assert norm == pytest.approx(clip_grad_norm_(theirs, longest).item(), rel=1e-6)
    for gradient, other in zip(list_gradients(ours), list_gradients(theirs), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=0)
    assert gradient_norm(ours) == pytest.approx(min(norm, longest), rel=1e-5)


@pytest.mark.usefixtures("instruction_set", "threads_restored")
def test_the_norm_is_exact_for_any_number_of_threads() -> None:
    # More values than a thread takes at a time, and a remainder.
    parameter = nn.Parameter(torch.zeros(100_003))
    parameter.grad = torch.randn(100_003, generator=torch.Generator().manual_seed(6))
    norms = set()
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        norms.add(gradient_norm([parameter, *parameters_with_gradients()]))
    [norm] = norms
    gradients = [parameter.grad, *list_gradients(parameters_with_gradients())]
    squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-7)


def test_without_a_largest_norm_gradients_are_not_clipped() -> None:
    parameters = parameters_with_gradients()
    clip_gradients(parameters, norm=1e30, longest=None)
    assert_equal(list_gradients(parameters), list_gradients(parameters_with_gradients()))


def test_the_norm_of_bf16_gradients_is_not_rounded() -> None:
    rounded = parameters_with_gradients(dtype=torch.bfloat16)
    squares = sum(float(gradient.double().square().sum()) for gradient in list_gradients(rounded))
    assert gradient_norm(rounded) == pytest.approx(math.sqrt(squares), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_a_value_whose_square_is_not_finite_makes_the_norm_so(value: float) -> None:
    parameters = parameters_with_gradients()
    list_gradients(parameters)[0][7, 3, 2, 2] = value
    assert not math.isfinite(gradient_norm(parameters))
    assert gradient_norm([nn.Parameter(torch.zeros(3))]) == 0  # without gradients
