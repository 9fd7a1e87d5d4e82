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
    StepResult,
    accumulate_gradients,
    batch_losses,
    train_one_epoch,
)
from retinanet.training.train_state import seed_everything
from tests.retinanet.training.tiny_steps import make_batch, parameters_that_train, prepared


def joined(*batches: Batch) -> Batch:
    return Batch(
        torch.cat([batch.images for batch in batches]),
        [target for batch in batches for target in batch.targets],
        [image_id for batch in batches for image_id in batch.image_ids],
        [size for batch in batches for size in batch.original_sizes],
    )


@pytest.fixture(scope="module")
def frozen_model() -> RetinaNet:
    """Its norms are constants, so that an image's loss does not depend on its batch."""
    torch.manual_seed(0)
    model = RetinaNet(num_classes=3, norm="frozen", trainable_layers=1)
    for name, buffer in model.named_buffers():
        if name.endswith("bn3.weight"):
            buffer.fill_(0.1)  # keeps random blocks from doubling what goes through them
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.fixture(autouse=True)
def no_gradients_left(frozen_model: RetinaNet) -> Iterator[None]:
    yield
    frozen_model.zero_grad(set_to_none=True)


def gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in parameters_that_train(model):
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
    return found


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
            gradient_accumulation=accumulation,
        )
    )


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(other.norm())


def test_accumulated_gradients_are_the_average_of_the_batches(frozen_model: RetinaNet) -> None:
    singles = [make_batch(seed=1), make_batch(seed=2)]
    separate = []
    for batch in singles:
        frozen_model.zero_grad()
        accumulate_gradients(prepared(frozen_model), [batch])
        separate.append(gradients(frozen_model))
    frozen_model.zero_grad()
    first, second = accumulate_gradients(prepared(frozen_model), singles)
    losses = {name: (first.losses[name] + second.losses[name]) / 2 for name in first.losses}
    together = gradients(frozen_model)
    assert_close(together, [(one + other) / 2 for one, other in zip(*separate, strict=True)])
    frozen_model.zero_grad()
    [whole] = accumulate_gradients(prepared(frozen_model), [joined(*singles)])
    assert_close(together, gradients(frozen_model))
    assert losses == pytest.approx(whole.losses, rel=1e-5)


def test_two_batches_of_one_step_as_one_batch_of_two(frozen_model: RetinaNet) -> None:
    singles = [make_batch(seed=seed) for seed in range(4)]
    pairs = [joined(*singles[:2]), joined(*singles[2:])]
    captured: list[list[Tensor]] = []
    # A rate of 0: both ways start from the same weights.
    optimizer = SGD(parameters_that_train(frozen_model), lr=0.0)
    hook = optimizer.register_step_pre_hook(lambda *_: captured.append(gradients(frozen_model)))
    accumulated = train(frozen_model, singles, optimizer=optimizer, accumulation=2)
    large = train(frozen_model, pairs, optimizer=optimizer)
    hook.remove()
    assert [result.step for result in accumulated] == [result.step for result in large] == [1, 2]
    assert [result.images for result in accumulated] == [2, 2]
    for place in range(2):
        assert_close(captured[place], captured[2 + place])
        assert accumulated[place].losses == pytest.approx(large[place].losses, rel=1e-5)


def test_batches_that_fill_no_step_are_not_used(frozen_model: RetinaNet) -> None:
    optimizer = SGD(parameters_that_train(frozen_model), lr=0.0)
    batches = [make_batch(seed=seed) for seed in range(3)]
    results = train(frozen_model, batches, optimizer=optimizer, accumulation=2, first_step=7)
    assert [result.step for result in results] == [8]
    assert train(frozen_model, [], optimizer=optimizer) == []


def test_the_rate_of_every_step_reaches_the_optimizer(frozen_model: RetinaNet) -> None:
    optimizer = SGD(parameters_that_train(frozen_model), lr=123.0)
    used: list[float] = []
    hook = optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    batches = [make_batch(seed=seed) for seed in range(2)]
    results = train(frozen_model, batches, optimizer=optimizer, rate=1e-9, first_step=3)
    hook.remove()
    assert used == [4e-9, 5e-9]  # the rate of a step is asked for with the steps done before
    assert [result.learning_rate for result in results] == used


class Told:
    """`Phases` that keep what they are told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def notes(self, steps: range) -> list[str]:
        return []

    @contextmanager
    def step(self, number: int, prepared: PreparedTraining) -> Iterator[None]:
        self.words.append(f"{number}")
        yield
        self.words.append(f"end of {number}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.words.append(name)
        yield
        self.words.append("end")


def test_each_step_tells_of_its_phases_and_of_nothing_between(frozen_model: RetinaNet) -> None:
    optimizer = SGD(parameters_that_train(frozen_model), lr=0.0)
    told = Told()
    steps = train_one_epoch(
        prepared(frozen_model, optimizer),
        [make_batch(seed=seed) for seed in range(4)],
        learning_rate=lambda _: 0.0,
        first_step=6,
        gradient_accumulation=2,
        profiler=told,
    )
    one_batch = ["forward", "end", "loss", "end", "backward", "end"]
    phases = ["data", "end", *one_batch, *one_batch, "optimizer", "end"]
    next(steps)
    assert told.words == ["7", *phases, "end of 7"]  # ended before others hear of the step
    next(steps)
    assert told.words[len(phases) + 2 :] == ["8", *phases, "end of 8"]


def test_gradients_do_not_pile_up_over_steps(frozen_model: RetinaNet) -> None:
    optimizer = SGD(parameters_that_train(frozen_model), lr=0.0)
    captured: list[list[Tensor]] = []
    hook = optimizer.register_step_pre_hook(lambda *_: captured.append(gradients(frozen_model)))
    train(frozen_model, [make_batch(seed=1)] * 2, optimizer=optimizer)
    hook.remove()
    assert_close(captured[1], captured[0])


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_losses_are_float32_in_every_precision(frozen_model: RetinaNet, precision: str) -> None:
    images = make_batch(seed=1, images=2)
    losses = batch_losses(prepared(frozen_model, precision=precision), images)
    assert {value.dtype for value in losses.values()} == {torch.float32}
    reference = batch_losses(prepared(frozen_model), images)
    for name, value in losses.items():
        assert value.item() == pytest.approx(reference[name].item(), rel=0.05)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32)]
)
def test_the_model_itself_runs_in_its_precision(
    frozen_model: RetinaNet, precision: str, dtype: torch.dtype
) -> None:
    images = normalize(make_batch(seed=1).images)
    outputs = prepared(frozen_model, precision=precision).forward(images)
    assert {maps.dtype for maps in (*outputs.cls_logits, *outputs.bbox_regression)} == {dtype}


PINNED = [(1.129722, 0.7914876), (1.129064, 0.7620866), (1.126060, 0.7616414)]
"""Classification and boxes. A small rate keeps other machines' kernels within the tolerance."""


def losses_of_a_tiny_run() -> list[tuple[float, float]]:
    """Three steps of a whole fresh model with trainable norms, as the demo trains."""
    seed_everything(3)
    model = RetinaNet(num_classes=3, norm="batch", trainable_layers=5)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = [make_batch(seed=seed, images=2) for seed in range(3)]
    optimizer = make_optimizer(model, name="adam", learning_rate=1e-5)
    results = train(model, batches, optimizer=optimizer, rate=1e-5)
    return [
        (result.losses["classification"], result.losses["bbox_regression"]) for result in results
    ]


def test_a_seeded_tiny_run_has_these_losses_every_time() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = losses_of_a_tiny_run()
        assert losses_of_a_tiny_run() == first  # bit for bit
    finally:
        torch.set_num_threads(threads)
    assert first == [pytest.approx(pair, rel=1e-3) for pair in PINNED]


@pytest.mark.whole_machine
def test_the_main_thread_keeps_to_its_core_while_it_computes_but_not_while_it_loads(
    frozen_model: RetinaNet,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    seen: dict[str, set[int]] = {}

    def loaded() -> Iterator[Batch]:
        seen["loading"] = os.sched_getaffinity(0)
        yield make_batch(seed=1)

    optimizer = SGD(parameters_that_train(frozen_model), lr=0.0)
    engine = prepared(frozen_model, optimizer)

    def forward(images: Tensor) -> HeadOutputs:
        seen["forward"] = os.sched_getaffinity(0)
        return engine.forward(images)

    weight = parameters_that_train(frozen_model)[0]
    hooks = [
        weight.register_hook(lambda _: seen.update(backward=os.sched_getaffinity(0))),
        optimizer.register_step_pre_hook(lambda *_: seen.update(optimizer=os.sched_getaffinity(0))),
    ]
    [_] = train_one_epoch(
        PreparedTraining(frozen_model, optimizer, forward),
        loaded(),
        learning_rate=lambda _: 0.0,
        first_step=0,
        main_cpus=(cpus[0],),
    )
    for hook in hooks:
        hook.remove()
    bound = {cpus[0]}
    assert seen == {"loading": set(cpus), "forward": bound, "backward": bound, "optimizer": bound}
    assert os.sched_getaffinity(0) == set(cpus)
