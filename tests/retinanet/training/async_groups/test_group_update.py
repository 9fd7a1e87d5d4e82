"""Steps of one group on common weights, beside those of plain training."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.async_groups.groups import GroupUpdate
from retinanet.training.async_groups.weights import GroupWeights, memory_of_weights
from retinanet.training.loop import StepResult, Update, train_one_epoch
from tests.retinanet.training.tiny_steps import make_batch, parameters_that_train, prepared

NAN = 1
STEPS = 3
"""The step, from 0, that brings one."""


def make_model() -> RetinaNet:
    torch.manual_seed(0)
    model = RetinaNet(num_classes=3, norm="batch", trainable_layers=1)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def batches() -> list[Batch]:
    """Of two images each; one has a pixel that is NaN."""
    found = [make_batch(seed=seed, images=2) for seed in range(STEPS)]
    found[NAN] = found[NAN]._replace(images=found[NAN].images.float())
    found[NAN].images[0, 1, 20, 30] = math.nan
    return found


def one_group(model: nn.Module, make: Callable[[nn.Module], Optimizer]) -> GroupUpdate:
    parameters = parameters_that_train(model)
    memory = memory_of_weights(parameters, optimizer="adam")
    weights = GroupWeights(memory.place, parameters, optimizer="adam", make=make, timeout_s=20)
    weights.fill(parameters, make(model))
    memory.close()
    return GroupUpdate(weights, parameters, group=ProcessGroup(), is_in_memory=True)


def train(model: RetinaNet, optimizer: Optimizer, *, update: Update | None) -> list[StepResult]:
    return list(
        train_one_epoch(
            prepared(model, optimizer),
            batches(),
            learning_rate=lambda step: 1e-3 / (step + 1),
            first_step=0,
            max_grad_norm=1.0,
            update=update,
        )
    )


def test_one_group_on_common_weights_is_plain_training_bit_for_bit() -> None:
    """Steps that are not finite included: they leave weights, state and statistics alone."""
    make = partial(make_optimizer, name="adam", learning_rate=0.5)
    model, other = make_model(), make_model()
    optimizer, its = make(model), make(other)
    update = one_group(model, make)
    for parameter in parameters_that_train(model):
        parameter.data.zero_()
    update.begin()  # reads what was put there
    found, expected = train(model, optimizer, update=update), train(other, its, update=None)
    assert update.staleness == 0
    assert len(optimizer.state) == 0  # it took no step itself
    update.take_back(optimizer)
    for one, plain in zip(found, expected, strict=True):
        assert str(one.losses) == str(plain.losses) and one.learning_rate == plain.learning_rate
    assert [bool(one.nonfinite) for one in found] == [number == NAN for number in range(STEPS)]
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    pairs = zip(parameters_that_train(model), parameters_that_train(other), strict=True)
    for own, plain_one in pairs:
        assert own.grad is None
        for slot, value in its.state[plain_one].items():
            assert torch.equal(optimizer.state[own][slot], value), slot
        assert float(optimizer.state[own]["step"]) == STEPS - 1
