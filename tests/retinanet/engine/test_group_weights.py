"""The weights that compute groups share: a plain optimizer's steps, staleness, and locks."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.gradient_sync import LINE, SharedMemory
from retinanet.engine.optimizers import make_optimizer, set_learning_rate
from retinanet.training.async_groups.weights import SLOTS, GroupWeights, memory_of_weights
from tests.launch.ranks import start_apart
from tests.retinanet.engine.kernels import assert_equal
from tests.retinanet.engine.layers import Layers, random_gradients, trainable

RATES = (0.02, 0.05, 0.01)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adam", "weight_decay": 0.1},
    {"name": "adam", "beta1": 0.4},
    {"name": "lamb", "weight_decay": 0.1},
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1, "body_parameters": 3, "body_factor": 0.25},
]
BY_NAME = [OPTIMIZERS[0], OPTIMIZERS[2], *OPTIMIZERS[4:]]


def plain(model: nn.Module, settings: dict[str, Any]) -> Optimizer:
    return make_optimizer(model, learning_rate=0.5, **settings)  # steps have rates of their own


def make_views(
    model: nn.Module, settings: dict[str, Any], *, count: int = 1, timeout_s: float = 20
) -> list[GroupWeights]:
    """Return views of the shared weights, which are zeros, one for each group."""
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


def take_step(optimizer: Optimizer, model: nn.Module, *, step: int) -> None:
    """Run a step of the plain optimizer."""
    gradients = random_gradients(trainable(model), seed=step)
    for parameter, gradient in zip(trainable(model), gradients, strict=True):
        parameter.grad = gradient
    set_learning_rate(optimizer, RATES[step % len(RATES)])
    optimizer.step()


def take_common_step(view: GroupWeights, model: nn.Module, *, step: int) -> int:
    with view.held():
        rate = RATES[step % len(RATES)]
        staleness = view.step(random_gradients(trainable(model), seed=step), learning_rate=rate)
        view.copy_to(trainable(model))
    return staleness


def assert_same(
    model: nn.Module, optimizer: Optimizer, other: nn.Module, reference: Optimizer
) -> None:
    """Assert equal weights and state, bit for bit; the reference's state is the smaller one."""
    for weight, expected in zip(trainable(model), trainable(other), strict=True):
        assert torch.equal(weight, expected)
        for slot, value in reference.state[expected].items():
            if value is not None:
                assert torch.equal(optimizer.state[weight][slot], value), slot
                assert optimizer.state[weight][slot].stride() == value.stride()


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
def test_alternating_steps_of_groups_equal_the_plain_optimizers(
    settings: dict[str, Any],
) -> None:
    """Weights are in channels_last memory, and groups see each other's optimizer state."""
    model, other = Layers(), Layers()
    optimizer, reference = plain(model, settings), plain(other, settings)
    views = make_views(model, settings, count=2)
    views[0].fill(trainable(model), optimizer)
    for step in range(5):
        take_common_step(views[step % 2], model, step=step)
        take_step(reference, other, step=step)
    views[0].take_back(trainable(model), optimizer)
    assert_same(model, optimizer, other, reference)


@pytest.mark.parametrize("settings", BY_NAME, ids=str)
def test_optimizer_state_continues_in_groups_and_after_them(
    settings: dict[str, Any],
) -> None:
    model, other = Layers(), Layers()
    optimizer, reference = plain(model, settings), plain(other, settings)
    for step in range(3):
        take_step(optimizer, model, step=step)
    [view] = make_views(model, settings)
    view.fill(trainable(model), optimizer)
    for step in range(3, 6):
        take_common_step(view, model, step=step)
    view.take_back(trainable(model), optimizer)
    for step in range(6, 8):
        take_step(optimizer, model, step=step)
    for step in range(8):
        take_step(reference, other, step=step)
    assert_same(model, optimizer, other, reference)


def test_weights_taken_back_are_a_copy() -> None:
    model, settings = Layers(), OPTIMIZERS[0]
    optimizer = plain(model, settings)
    [view] = make_views(model, settings)
    view.fill(trainable(model), optimizer)
    take_common_step(view, model, step=0)
    view.take_back(trainable(model), optimizer)

    def values() -> list[Tensor]:
        return [v for p in trainable(model) for v in (p, *optimizer.state[p].values())]

    before = [value.clone() for value in values()]
    take_common_step(view, Layers(), step=1)
    assert_equal(values(), before)


def test_staleness_counts_steps_of_others_since_the_weights_were_read() -> None:
    model, settings = Layers(), OPTIMIZERS[3]
    views = make_views(model, settings, count=3)
    views[0].fill(trainable(model), plain(model, settings))
    for view in views:
        view.copy_to(trainable(model))
    order = [0, 1, 2, 0, 0, 0, 2, 1]
    stalenesses = [take_common_step(views[group], model, step=0) for group in order]
    assert stalenesses == [0, 1, 2, 2, 0, 0, 3, 5]


@pytest.fixture
def views() -> list[GroupWeights]:
    return make_views(Layers(), OPTIMIZERS[3], count=2, timeout_s=0.2)


def test_the_weights_are_locked(views: list[GroupWeights]) -> None:
    with (
        views[0].held(),
        pytest.raises(TimeoutError, match=r"0\.2 s"),
        views[1].held(),
    ):
        pass
    with views[1].held():
        pass


def test_an_error_releases_the_lock(views: list[GroupWeights]) -> None:
    with pytest.raises(LookupError), views[0].held():
        raise LookupError
    with views[1].held():
        pass


@pytest.fixture
def holder(views: list[GroupWeights]) -> Iterator[int]:
    """A process that holds the lock."""
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


def test_a_killed_process_releases_the_lock(views: list[GroupWeights], holder: int) -> None:
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


def test_tensors_begin_on_cache_lines_and_do_not_overlap() -> None:
    for settings in BY_NAME:
        model = Layers()
        [view] = make_views(model, settings)
        state, slots = view.optimizer.state, SLOTS[settings["name"]]
        tensors = [
            tensor for weight in view._weights
            for tensor in (weight, *(state[weight][slot] for slot in slots))
        ]  # fmt: skip
        spans = sorted((t.data_ptr(), t.data_ptr() + 4 * t.numel()) for t in tensors)
        assert {begin % LINE for begin, _ in spans} == {0}
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert [w.stride() for w in view._weights] == [w.stride() for w in trainable(model)]


def test_memory_of_another_process_is_refused() -> None:
    model = Layers()
    memory = memory_of_weights(trainable(model), optimizer="sgd")
    path, _ = memory.place
    make = partial(plain, settings=OPTIMIZERS[3])
    for place in ((path, bytes(16).hex()), ("/proc/self/fd/9999", bytes(16).hex())):
        with pytest.raises(OSError):
            GroupWeights(place, trainable(model), optimizer="sgd", make=make, timeout_s=1)
    memory.close()


def test_shared_memory_is_zeros_behind_its_name() -> None:
    memory = SharedMemory(1000)
    path, name = memory.place[0], bytes.fromhex(memory.place[1])
    with open(path, "rb") as file:  # noqa: PTH123
        content = file.read()
    assert content[: len(name)] == name and not any(content[len(name) :]) and len(content) == 1000
    memory.close()


@pytest.mark.whole_machine
def test_steps_taken_by_another_rank_equal_the_plain_optimizers(tmp_path: Path) -> None:
    program = Path(__file__).with_name("serving_ranks.py")
    for job in start_apart(2, str(program), str(tmp_path)):
        _, errors = job.communicate(timeout=90)
        assert job.returncode == 0, errors
    server = torch.load(tmp_path / "rank0.pt", weights_only=False)
    served, plain, stalenesses = torch.load(tmp_path / "rank1.pt", weights_only=False)
    assert stalenesses == [0, 0, 0, 0]
    assert_equal(served, plain, server)
