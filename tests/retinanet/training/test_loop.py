import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from data.dataset import Batch
from data.transforms import normalize
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import HeadOutputs, RetinaNet
from retinanet.training.loop import (
    StepOptions,
    StepResult,
    batch_losses,
    train_one_epoch,
)
from retinanet.training.train_state import seed_everything
from tests.retinanet.engine.layers import trainable
from tests.retinanet.training.tiny_steps import concatenated, make_batch, make_model, prepared
from tests.support.step_results import step_result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frozen_model() -> RetinaNet:
    """A model with constant norms, so that the loss of an image does not depend on its batch."""
    return make_model(norm="frozen")


@pytest.fixture(autouse=True)
def cleared_gradients(frozen_model: RetinaNet) -> Iterator[None]:
    yield
    frozen_model.zero_grad(set_to_none=True)


@pytest.mark.parametrize(("parallel", "seconds"), [(1, 6.0), (3, 2.0)])
def test_parallel_steps_share_the_seconds(parallel: int, seconds: float) -> None:
    step = step_result(images=12, seconds=6.0, parallel=parallel)
    assert (step.run_seconds, step.images_per_second) == (seconds, 12 / seconds)


def gradients(model: nn.Module) -> list[Tensor]:
    parameters = trainable(model)
    return [value.grad.clone() for value in parameters if value.grad is not None]


def train(
    model: RetinaNet,
    batches: list[Batch],
    *,
    optimizer: Optimizer,
    rate: float = 0.0,
    first_step: int = 0,
    accumulation: int = 1,
) -> list[StepResult]:
    return list(
        train_one_epoch(
            prepared(model, optimizer),
            batches,
            learning_rate=lambda step: rate * (step + 1),
            first_step=first_step,
            options=StepOptions(gradient_accumulation=accumulation),
        )
    )


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected) > 0
    for value, other in zip(actual, expected, strict=True):
        assert float((value - other).norm()) <= 1e-5 * float(other.norm())


def test_two_batches_of_a_step_equal_one_batch_of_two(frozen_model: RetinaNet) -> None:
    singles = [make_batch(seed=seed) for seed in range(4)]
    pairs = [concatenated(*singles[:2]), concatenated(*singles[2:])]
    captured: list[list[Tensor]] = []
    # A rate of 0: both start from the same weights, and so does each step.
    optimizer = SGD(trainable(frozen_model), lr=0.0)
    hook = optimizer.register_step_pre_hook(lambda *_: captured.append(gradients(frozen_model)))
    accumulated = train(frozen_model, singles, optimizer=optimizer, accumulation=2)
    large = train(frozen_model, pairs, optimizer=optimizer)
    hook.remove()
    assert [result.step for result in accumulated] == [result.step for result in large] == [1, 2]
    assert [result.images for result in accumulated] == [2, 2]
    for index in range(2):  # the second step has no gradients of the first
        assert_close(captured[index], captured[2 + index])
        assert accumulated[index].losses == pytest.approx(large[index].losses, rel=1e-5)


def test_images_of_both_orientations_count_alike(frozen_model: RetinaNet) -> None:
    images = [make_batch(seed=seed, size=size) for seed, size in enumerate([LYING, LYING, UPRIGHT])]
    images += [make_batch(seed=3), make_batch(seed=4)]
    batches = [concatenated(*images[:2])._replace(turned=images[2]), concatenated(*images[3:])]
    captured: list[list[Tensor]] = []
    optimizer = SGD(trainable(frozen_model), lr=0.0)
    hook = optimizer.register_step_pre_hook(lambda *_: captured.append(gradients(frozen_model)))
    [result] = train(frozen_model, batches, optimizer=optimizer, accumulation=2)
    alone = [train(frozen_model, [image], optimizer=optimizer)[0].losses for image in images]
    hook.remove()
    assert result.images == 5
    # The mean over batches of the means over their images.
    shares = [1 / 6] * 3 + [1 / 4] * 2
    for name, loss in result.losses.items():
        expected = sum(share * each[name] for share, each in zip(shares, alone, strict=True))
        assert loss == pytest.approx(expected, rel=1e-5)
    first, *singles = captured
    parts = [[share * value for value in each] for share, each in zip(shares, singles, strict=True)]
    assert_close(first, [torch.stack(values).sum(0) for values in zip(*parts, strict=True)])


def test_batches_that_do_not_fill_a_step_are_not_used(frozen_model: RetinaNet) -> None:
    optimizer = SGD(trainable(frozen_model), lr=0.0)
    batches = [make_batch(seed=seed) for seed in range(3)]
    results = train(frozen_model, batches, optimizer=optimizer, accumulation=2, first_step=7)
    assert [result.step for result in results] == [8]
    assert train(frozen_model, [], optimizer=optimizer) == []


def test_learning_rate_of_every_step_reaches_the_optimizer(frozen_model: RetinaNet) -> None:
    optimizer = SGD(trainable(frozen_model), lr=123.0)
    used: list[float] = []
    hook = optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    batches = [make_batch(seed=seed) for seed in range(2)]
    results = train(frozen_model, batches, optimizer=optimizer, rate=1e-9, first_step=3)
    hook.remove()
    assert used == [4e-9, 5e-9]  # a function of the completed steps
    assert [result.learning_rate for result in results] == used


LYING, UPRIGHT = (64, 96), (96, 64)


class RecordingProfiler:
    """A `StepProfiler` that records the events of steps and phases."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def notes(self, steps: range) -> list[str]:
        return []

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        self.events.append(f"{number}")
        yield
        self.events.append(f"end of {number}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.events.append(name)
        yield
        self.events.append("end")


def test_profiler_gets_the_phases_of_each_step(frozen_model: RetinaNet) -> None:
    optimizer = SGD(trainable(frozen_model), lr=0.0)
    profiler = RecordingProfiler()
    steps = train_one_epoch(
        prepared(frozen_model, optimizer),
        [make_batch(seed=seed) for seed in range(4)],
        learning_rate=lambda _: 0.0,
        first_step=6,
        options=StepOptions(gradient_accumulation=2),
        profiler=profiler,
    )
    one_batch = ["forward", "end", "loss", "end", "backward", "end"]
    phases = ["data", "end", *one_batch, *one_batch, "optimizer", "end"]
    next(steps)
    assert profiler.events == [
        "7",
        *phases,
        "end of 7",
    ]  # it has ended before the caller gets the result
    next(steps)
    assert profiler.events[len(phases) + 2 :] == ["8", *phases, "end of 8"]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32)]
)
def test_losses_are_float32_in_every_precision(
    frozen_model: RetinaNet, precision: str, dtype: torch.dtype
) -> None:
    batch, training = make_batch(seed=1), prepared(frozen_model, precision=precision)
    outputs = training.forward(normalize(batch.images))
    assert {maps.dtype for maps in (*outputs.cls_logits, *outputs.bbox_regression)} == {dtype}
    losses = batch_losses(training, batch)
    assert {value.dtype for value in losses.values()} == {torch.float32}
    reference = batch_losses(prepared(frozen_model), batch)
    for name, value in losses.items():
        assert value.item() == pytest.approx(reference[name].item(), rel=0.05)


PINNED = [(1.129722, 0.7914876), (1.129064, 0.7620866), (1.126060, 0.7616414)]
"""Losses of classes and boxes. With a small rate other kernels stay within the tolerance."""


def losses_of_a_tiny_run() -> list[tuple[float, float]]:
    """Return the losses of three steps of a new model with trainable norms, as in the demo."""
    seed_everything(3)
    model = RetinaNet(num_classes=3, norm="batch", trainable_layers=5)
    model = model.to(memory_format=torch.channels_last)
    batches = [make_batch(seed=seed, images=2) for seed in range(3)]
    optimizer = make_optimizer(model, name="adam", learning_rate=1e-5)
    results = train(model, batches, optimizer=optimizer, rate=1e-5)
    return [
        (result.losses["classification"], result.losses["bbox_regression"]) for result in results
    ]


@pytest.mark.usefixtures("one_thread")
def test_seeded_run_has_reproducible_losses() -> None:
    first = losses_of_a_tiny_run()
    assert losses_of_a_tiny_run() == first  # bit for bit
    assert first == [pytest.approx(pair, rel=1e-3) for pair in PINNED]


@pytest.mark.whole_machine
def test_main_thread_is_bound_while_computing_but_not_while_loading(
    frozen_model: RetinaNet,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    cpus_of: dict[str, set[int]] = {}

    def load() -> Iterator[Batch]:
        cpus_of["loading"] = os.sched_getaffinity(0)
        yield make_batch(seed=1)

    optimizer = SGD(trainable(frozen_model), lr=0.0)
    engine = prepared(frozen_model, optimizer)

    def forward(images: Tensor) -> HeadOutputs:
        cpus_of["forward"] = os.sched_getaffinity(0)
        return engine.forward(images)

    weight = trainable(frozen_model)[0]
    hooks = [
        weight.register_hook(lambda _: cpus_of.update(backward=os.sched_getaffinity(0))),
        optimizer.register_step_pre_hook(
            lambda *_: cpus_of.update(optimizer=os.sched_getaffinity(0))
        ),
    ]
    [_] = train_one_epoch(
        PreparedTraining(frozen_model, optimizer, forward),
        load(),
        learning_rate=lambda _: 0.0,
        first_step=0,
        options=StepOptions(main_cpus=(cpus[0],)),
    )
    for hook in hooks:
        hook.remove()
    bound = {cpus[0]}
    assert cpus_of == {
        "loading": set(cpus),
        "forward": bound,
        "backward": bound,
        "optimizer": bound,
    }
    assert os.sched_getaffinity(0) == set(cpus)
