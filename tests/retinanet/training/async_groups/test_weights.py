"""Steps of one group on shared weights, compared with plain training."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.async_groups.groups import GroupOptimizer
from retinanet.training.async_groups.weights import GroupWeights, memory_of_weights
from retinanet.training.loop import StepOptions, StepResult, train_one_epoch
from tests.retinanet.engine.layers import trainable
from tests.retinanet.training.tiny_steps import make_batch, make_model, prepared

Make = Callable[[nn.Module], Optimizer]
STEPS = 3
NAN = 1  # The step, counted from 0, with a NaN in its images


def batches() -> list[Batch]:
    """Return batches of two images; one pixel of one of them is NaN."""
    batches = [make_batch(seed=seed, images=2) for seed in range(STEPS)]
    batches[NAN] = batches[NAN]._replace(images=batches[NAN].images.float())
    batches[NAN].images[0, 1, 20, 30] = math.nan
    return batches


def one_group(model: nn.Module, optimizer: Optimizer, make: Make) -> GroupOptimizer:
    parameters = trainable(model)
    memory = memory_of_weights(parameters, optimizer="adam")
    weights = GroupWeights(memory.place, parameters, optimizer="adam", make=make, timeout_s=20)
    weights.fill(parameters, make(model))
    memory.close()
    return GroupOptimizer(weights, optimizer, group=ProcessGroup(), is_in_memory=True)


def train(model: RetinaNet, optimizer: Optimizer) -> list[StepResult]:
    return list(
        train_one_epoch(
            prepared(model, optimizer),
            batches(),
            learning_rate=lambda step: 1e-3 / (step + 1),
            first_step=0,
            options=StepOptions(max_grad_norm=1.0),
        )
    )


@pytest.mark.slow
def test_one_group_on_shared_weights_equals_plain_training_bit_for_bit() -> None:
    """Includes a step that is not finite, which leaves weights, state and statistics untouched."""
    make = partial(make_optimizer, name="adam", learning_rate=0.5)
    model, plain = make_model(), make_model()
    optimizer, plain_optimizer = make(model), make(plain)
    shared = one_group(model, optimizer, make)
    for parameter in trainable(model):
        parameter.data.zero_()
    shared.begin()  # reads the shared weights
    results = train(model, shared)
    expected = train(plain, plain_optimizer)
    assert shared.staleness == 0
    assert len(optimizer.state) == 0  # it took no step itself
    shared.take_back(optimizer)
    for result, other in zip(results, expected, strict=True):
        assert str(result.losses) == str(other.losses)
        assert result.learning_rate == other.learning_rate
    assert [bool(result.nonfinite) for result in results] == [step == NAN for step in range(STEPS)]
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    pairs = zip(trainable(model), trainable(plain), strict=True)
    for parameter, other_parameter in pairs:
        assert parameter.grad is None
        for slot, value in plain_optimizer.state[other_parameter].items():
            assert torch.equal(optimizer.state[parameter][slot], value), slot
        assert float(optimizer.state[parameter]["step"]) == STEPS - 1
