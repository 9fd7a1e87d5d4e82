from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from common.native import load_library, usable_instruction_sets
from retinanet.engine.optimizers import (
    STEP_KERNELS,
    Lamb,
    OnePassAdam,
    make_optimizer,
    native_steps_work,
)


class Layers(nn.Module):
    """Parameters of odd sizes in channels_last memory, one of many chunks, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.first = nn.Conv2d(3, 17, 3)
        self.second = nn.Conv2d(17, 5, 1)
        self.large = nn.Linear(601, 211)
        self.stem.requires_grad_(False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train(optimizer: Optimizer, model: nn.Module, *, steps: int = 4) -> list[Tensor]:
    """The weights after steps with made-up gradients."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for place, parameter in enumerate(trainable(model)):
            values = torch.randn(parameter.shape, generator=generator) * 10.0**-place
            parameter.grad = torch.empty_like(parameter).copy_(values)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


Make = Callable[..., Optimizer]


@pytest.fixture(params=usable_instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEP_KERNELS, "instruction_set", request.param)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_takes_torchs_steps(weight_decay: float) -> None:
    model, other = Layers(), Layers()
    reference = Adam(trainable(other), lr=0.02, weight_decay=weight_decay, foreach=False)
    fused = make_optimizer(model, name="adam", learning_rate=0.02, weight_decay=weight_decay)
    assert type(fused) is OnePassAdam
    assert_close(train(fused, model), train(reference, other))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_takes_torchs_steps(momentum: float) -> None:
    model, other = Layers(), Layers()
    reference = SGD(trainable(other), lr=0.02, momentum=momentum, weight_decay=0.1, foreach=False)
    fused = make_optimizer(
        model, name="sgd", learning_rate=0.02, momentum=momentum, weight_decay=0.1
    )
    assert fused.param_groups[0]["fused"]
    assert_close(train(fused, model), train(reference, other))


@pytest.mark.parametrize("name", ["adam", "sgd", "lamb"])
def test_plain_form_takes_the_same_steps_tensor_by_tensor(name: str) -> None:
    model, other = Layers(), Layers()
    make: Make = partial(make_optimizer, name=name, learning_rate=0.02, weight_decay=0.1)
    plain = make(other, fused=False)
    group = plain.param_groups[0]
    assert not group["fused"] and not group.get("foreach", False)
    assert type(plain) in (Adam, SGD, Lamb)
    assert_close(train(make(model), model), train(plain, other))


@pytest.mark.parametrize("name", ["adam", "sgd", "lamb"])
@pytest.mark.parametrize("fused", [True, False])
def test_frozen_parameters_are_left_out_and_settings_arrive(name: str, fused: bool) -> None:
    model = Layers()
    optimizer = make_optimizer(
        model, name=name, learning_rate=0.5, momentum=0.7, weight_decay=0.25, fused=fused
    )
    (group,) = optimizer.param_groups
    assert all(one is other for one, other in zip(group["params"], trainable(model), strict=True))
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    assert group.get("momentum", 0.7) == 0.7


def test_adams_threads_do_not_change_a_bit() -> None:
    threads = torch.get_num_threads()
    ends = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            model = Layers()
            ends.append(train(make_optimizer(model, name="adam", learning_rate=0.02), model))
    finally:
        torch.set_num_threads(threads)
    for one, other in pairwise(ends):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_a_gradient_in_another_layout_is_taken_for_what_it_is() -> None:
    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = Layers()
        optimizer = make_optimizer(model, name="adam", learning_rate=0.02)
        torch.manual_seed(3)
        for _ in range(2):
            values = torch.randn(17, 3, 3, 3)
            model.first.weight.grad = values.contiguous(memory_format=layout)
            optimizer.step()
        ends.append(model.first.weight.detach())
    assert torch.equal(*ends)


def test_adams_state_is_torchs() -> None:
    model, other = Layers(), Layers()
    fused = make_optimizer(model, name="adam", learning_rate=0.02)
    reference = Adam(trainable(other), lr=0.02, foreach=False)
    train(fused, model)
    other.load_state_dict(model.state_dict())
    state, groups = deepcopy(fused.state_dict()["state"]), reference.state_dict()["param_groups"]
    reference.load_state_dict({"state": state, "param_groups": groups})
    assert_close(train(fused, model), train(reference, other))


def test_adam_leaves_other_number_formats_to_torch() -> None:
    model, other = Layers().double(), Layers().double()
    fused = make_optimizer(model, name="adam", learning_rate=0.02)
    reference = Adam(trainable(other), lr=0.02, foreach=False)
    assert_close(train(fused, model), train(reference, other))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(STEP_KERNELS, "_loaded", {})
    caches = (load_library.cache_clear, native_steps_work.cache_clear)
    for clear in caches:
        clear()
    yield
    for clear in caches:
        clear()


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("name", "kind"), [("adam", Adam), ("lamb", Lamb), ("sgd", SGD)])
def test_without_a_compiler_it_goes_on_and_says_so_in_one_line(
    name: str, kind: type[Optimizer], capfd: pytest.CaptureFixture[str]
) -> None:
    model, other = Layers(), Layers()
    make: Make = partial(make_optimizer, name=name, learning_rate=0.02)
    optimizer = make(model)
    assert type(optimizer) is kind
    assert_close(train(optimizer, model), train(make(other, fused=False), other))
    make(other)  # told once
    errors = capfd.readouterr().err
    assert errors.count("\n") == (0 if name == "sgd" else 1)
    assert name == "sgd" or "no-such-compiler" in errors
