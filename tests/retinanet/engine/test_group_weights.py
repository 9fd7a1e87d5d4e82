"""The weights that compute groups share: steps as a plain optimizer's, and who waits for whom."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.gradient_sync import LINE, SharedMemory
from retinanet.engine.optimizers import make_optimizer
from retinanet.training.async_groups.weights import SLOTS, GroupWeights, memory_of_weights
from tests.retinanet.engine.test_optimizer import Layers, trainable

RATES = (0.02, 0.05, 0.01)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adam", "weight_decay": 0.1},
    {"name": "adam", "beta1": 0.4},
    {"name": "lamb", "weight_decay": 0.1},
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
]
BY_NAME = [OPTIMIZERS[0], OPTIMIZERS[2], OPTIMIZERS[4]]


def plain(model: nn.Module, settings: dict[str, Any]) -> Optimizer:
    return make_optimizer(model, learning_rate=0.5, **settings)  # steps have rates of their own


def views_of(
    model: nn.Module, settings: dict[str, Any], *, count: int = 1, timeout_s: float = 20
) -> list[GroupWeights]:
    """The weights as so many groups see them, as yet zeros."""
    parameters, name = trainable(model), settings["name"]
    memory = memory_of_weights(parameters, optimizer=name)
    views = [
        GroupWeights(
            memory.place,
            parameters,
            optimizer=name,
            make=partial(plain, settings=settings),
            timeout_s=timeout_s,
        )
        for _ in range(count)
    ]
    memory.close()  # all have mapped it
    return views


def gradients_of(model: nn.Module, *, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [
        torch.empty_like(one).copy_(torch.randn(one.shape, generator=generator) * 10.0**-place)
        for place, one in enumerate(trainable(model))
    ]


def take_step(optimizer: Optimizer, model: nn.Module, *, step: int) -> None:
    """The plain optimizer's."""
    for one, gradient in zip(trainable(model), gradients_of(model, step=step), strict=True):
        one.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = RATES[step % len(RATES)]
    optimizer.step()


def take_common_step(view: GroupWeights, model: nn.Module, *, step: int) -> int:
    with view.held():
        rate = RATES[step % len(RATES)]
        staleness = view.step(gradients_of(model, step=step), learning_rate=rate)
        view.copy_to(trainable(model))
    return staleness


def assert_same(model: nn.Module, optimizer: Optimizer, other: nn.Module, its: Optimizer) -> None:
    """Weights and the state that the second has, bit for bit."""
    for found, expected in zip(trainable(model), trainable(other), strict=True):
        assert torch.equal(found, expected)
        kept = {name: one for name, one in its.state[expected].items() if one is not None}
        for slot, value in kept.items():
            assert torch.equal(optimizer.state[found][slot], value), slot
            assert optimizer.state[found][slot].stride() == value.stride()


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
def test_steps_of_groups_in_turn_are_the_plain_optimizers_bit_for_bit(
    settings: dict[str, Any],
) -> None:
    """Weights are in channels_last memory, and groups see each other's optimizer state."""
    model, other = Layers(), Layers()
    optimizer, its = plain(model, settings), plain(other, settings)
    views = views_of(model, settings, count=2)
    views[0].fill(trainable(model), optimizer)
    for step in range(5):
        take_common_step(views[step % 2], model, step=step)
        take_step(its, other, step=step)
    views[0].take_back(trainable(model), optimizer)
    assert_same(model, optimizer, other, its)


@pytest.mark.parametrize("settings", BY_NAME, ids=str)
def test_a_state_that_is_there_goes_on_in_groups_and_afterwards_without(
    settings: dict[str, Any],
) -> None:
    model, other = Layers(), Layers()
    optimizer, its = plain(model, settings), plain(other, settings)
    for step in range(3):
        take_step(optimizer, model, step=step)
    [view] = views_of(model, settings)
    view.fill(trainable(model), optimizer)
    for step in range(3, 6):
        take_common_step(view, model, step=step)
    view.take_back(trainable(model), optimizer)
    for step in range(6, 8):
        take_step(optimizer, model, step=step)
    for step in range(8):
        take_step(its, other, step=step)
    assert_same(model, optimizer, other, its)


def test_what_was_taken_back_is_a_copy_that_later_steps_leave_alone() -> None:
    model, settings = Layers(), OPTIMIZERS[0]
    optimizer = plain(model, settings)
    [view] = views_of(model, settings)
    view.fill(trainable(model), optimizer)
    take_common_step(view, model, step=0)
    view.take_back(trainable(model), optimizer)
    kept = [
        value.clone() for one in trainable(model) for value in (one, *optimizer.state[one].values())
    ]
    another = Layers()
    take_common_step(view, another, step=1)
    values = [value for one in trainable(model) for value in (one, *optimizer.state[one].values())]
    assert all(torch.equal(one, before) for one, before in zip(values, kept, strict=True))


def test_staleness_is_the_number_of_others_steps_since_the_weights_were_read() -> None:
    model, settings = Layers(), OPTIMIZERS[3]
    views = views_of(model, settings, count=3)
    views[0].fill(trainable(model), plain(model, settings))
    for view in views:
        view.copy_to(trainable(model))
    order = [0, 1, 2, 0, 0, 0, 2, 1]
    found = [take_common_step(views[group], model, step=0) for group in order]
    assert found == [0, 1, 2, 2, 0, 0, 3, 5]


@pytest.fixture
def views() -> list[GroupWeights]:
    return views_of(Layers(), OPTIMIZERS[3], count=2, timeout_s=0.2)


def test_groups_keep_each_other_out(views: list[GroupWeights]) -> None:
    with (
        views[0].held(),
        pytest.raises(TimeoutError, match=r"another group has kept the weights for 0\.2 s"),
        views[1].held(),
    ):
        pass
    with views[1].held():  # let go of, also after an error
        pass


def test_who_fails_while_it_holds_the_weights_lets_go(views: list[GroupWeights]) -> None:
    with pytest.raises(LookupError), views[0].held():
        raise LookupError
    with views[1].held():
        pass


@pytest.fixture
def holder(views: list[GroupWeights]) -> Iterator[int]:
    """A process that has taken the lock and does not let go."""
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        lock = os.open(f"/proc/self/fd/{views[0]._lock}", os.O_RDWR)  # of its own, as a rank's
        os.close(views[0]._lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(writes, b".")
        signal.pause()
        os._exit(0)
    assert os.read(reads, 1) == b"."
    yield process
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reads)
    os.close(writes)


def test_a_process_that_is_killed_while_it_holds_the_weights_lets_go(
    views: list[GroupWeights], holder: int
) -> None:
    with pytest.raises(TimeoutError), views[1].held():
        pass
    os.kill(holder, signal.SIGKILL)
    end = time.monotonic() + 10
    while True:
        try:
            with views[1].held():
                return
        except TimeoutError:
            assert time.monotonic() < end


def test_weights_begin_on_lines_of_their_own_and_nothing_is_shared_by_two() -> None:
    for settings in BY_NAME:
        model = Layers()
        [view] = views_of(model, settings)
        tensors = [
            value
            for one in view._weights
            for value in (
                one,
                *(view.optimizer.state[one][name] for name in SLOTS[settings["name"]]),
            )
        ]
        begins = [one.data_ptr() for one in tensors]
        assert {begin % LINE for begin in begins} == {0}
        ends = {one.data_ptr(): one.data_ptr() + 4 * one.numel() for one in tensors}
        ordered = sorted(ends)
        assert all(ends[one] <= other for one, other in pairwise(ordered))
        assert [one.stride() for one in view._weights] == [one.stride() for one in trainable(model)]


def test_memory_of_another_process_of_that_number_is_not_taken_for_the_weights() -> None:
    model = Layers()
    memory = memory_of_weights(trainable(model), optimizer="sgd")
    path, _ = memory.place
    make = partial(plain, settings=OPTIMIZERS[3])
    for place in ((path, bytes(16)), ("/proc/self/fd/9999", bytes(16))):
        with pytest.raises(OSError):
            GroupWeights(place, trainable(model), optimizer="sgd", make=make, timeout_s=1)
    memory.close()


def test_memory_is_zeros_of_the_size_that_is_told() -> None:
    memory = SharedMemory(1000)
    path, name = memory.place
    with open(path, "rb") as file:  # noqa: PTH123
        content = file.read()
    assert content[: len(name)] == name and not any(content[len(name) :]) and len(content) == 1000
    memory.close()
