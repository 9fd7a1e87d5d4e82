"""The average of the weights: its values, in a checkpoint, and in steps that are not finite."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from data.dataset import Batch
from launch.process_group import ProcessGroup
from retinanet.engine.optimizers import make_optimizer
from retinanet.training.checkpoint import Checkpoint, Contents, read_checkpoint, write_checkpoint
from retinanet.training.checkpointer import gathered
from retinanet.training.ema import WeightAverage, averaged_tensors
from retinanet.training.loop import train_one_epoch
from retinanet.training.train_state import load_rank_state_dict, rank_state_dict
from tests.retinanet.engine.layers import random_gradients, trainable
from tests.retinanet.training.tiny_steps import make_batch, make_model, prepared
from tests.support.commands import error_message
from tests.support.states import MODEL, STATE

FINAL = 10_000  # Steps after which the decay no longer rises


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    frozen = nn.Conv2d(3, 2, 1).requires_grad_(requires_grad=False)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), frozen)
    return model.to(memory_format=torch.channels_last)


def change(model: nn.Module, *, seed: int) -> None:
    """Change all that a training step changes."""
    with torch.no_grad():
        gradients = random_gradients(trainable(model), seed=seed)
        for value, gradient in zip(trainable(model), gradients, strict=True):
            value.add_(gradient)
        for name, statistic in model.named_buffers():
            if "running" in name:
                statistic.add_(seed)


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys() and actual
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []


def test_average_is_the_weighted_sum_of_the_weights() -> None:
    weight = nn.Linear(1, 1, bias=False)
    nn.init.constant_(weight.weight, 4.0)
    average = WeightAverage(weight, decay=0.2)
    for step, value in enumerate((1.0, 6.0, -2.0)):
        nn.init.constant_(weight.weight, value)
        average.update(step)
    # Decays 1/10, 2/11 and 0.2, which is below 3/12.
    first = 0.1 * 4 + 0.9 * 1
    second = 2 / 11 * first + 9 / 11 * 6
    assert average.tensors["weight"].item() == pytest.approx(0.2 * second + 0.8 * -2)


def test_average_equals_torchs_averaged_model() -> None:
    model = small_model()
    average = WeightAverage(model, decay=0.9)
    averaging = get_ema_multi_avg_fn(0.9)
    reference = AveragedModel(model, multi_avg_fn=averaging, use_buffers=True)
    reference.update_parameters(model)  # the first call copies
    for seed in range(1, 5):
        change(model, seed=seed)
        average.update(FINAL)
        reference.update_parameters(model)
    expected = reference.module.state_dict()
    names = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert average.tensors.keys() == names and average.norms.keys() == {
        name for name in names if "running" in name
    }
    assert_equal(dict(average.tensors), {name: expected[name] for name in average.tensors})
    weight = average.tensors["0.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_averages_are_in_the_model_for_a_while() -> None:
    model = small_model()
    average = WeightAverage(model, decay=0.9)
    change(model, seed=1)
    average.update(FINAL)
    before, averages = copies(model.state_dict()), copies(dict(average.tensors))
    with average.in_model():
        assert_equal(averaged_tensors(model), averages)
    assert_equal(model.state_dict(), before)
    with pytest.raises(ZeroDivisionError), average.in_model():
        raise ZeroDivisionError
    assert_equal(model.state_dict(), before)
    assert_equal(dict(average.tensors), averages)


def test_ranks_statistics_and_their_averages_are_restored() -> None:
    model = small_model()
    average = WeightAverage(model, decay=0.9)
    change(model, seed=1)
    average.update(FINAL)
    state = rank_state_dict(model, with_statistics=True, averages=average.norms)
    expected, averages = copies(averaged_tensors(model)), copies(dict(average.norms))
    for other_seed in (2, 3):
        change(model, seed=other_seed)
        average.update(FINAL)
    load_rank_state_dict(state, model, average.norms)
    assert_equal(dict(average.norms), averages)
    for name in average.norms:
        assert torch.equal(averaged_tensors(model)[name], expected[name])
    load_rank_state_dict(state, model)  # of a run that no longer averages


def steps(batches: list[Batch]) -> tuple[WeightAverage, list[dict[str, Tensor]]]:
    """Train, and return the average and the weights after each step."""
    model = make_model()
    training = prepared(model, make_optimizer(model, name="sgd", learning_rate=1e-2))
    average, weights = WeightAverage(model, decay=0.9), []
    for result in train_one_epoch(
        training, batches, learning_rate=lambda _: 1e-2, first_step=0, average=average
    ):
        assert bool(result.nonfinite) == (result.step == 2)
        weights.append(copies(averaged_tensors(model)))
    return average, weights


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_steps_update_the_average_and_nonfinite_ones_leave_it_untouched() -> None:
    batches = [make_batch(seed=seed) for seed in range(3)]
    images = batches[1].images.float()
    images[0, 1, 20, 30] = math.nan
    batches[1] = batches[1]._replace(images=images)
    average, weights = steps(batches)
    model = make_model()
    expected = WeightAverage(model, decay=0.9)
    for step, values in ((0, weights[0]), (2, weights[2])):
        for name, value in averaged_tensors(model).items():
            value.copy_(values[name])
        expected.update(step)
    assert_equal(dict(average.tensors), dict(expected.tensors))
    assert not torch.equal(
        average.tensors["head.classification_head.cls_logits.bias"],
        weights[2]["head.classification_head.cls_logits.bias"],
    )


CLASSES = {"category_ids": [1, 2, 3], "names": ["a", "b", "c"]}
DESCRIPTION = replace(MODEL, num_classes=3, norm="batch", trainable_layers=1, classes=CLASSES)


@pytest.mark.slow
def test_checkpoint_has_averages_for_users_and_weights_for_the_training(tmp_path: Path) -> None:
    model = make_model()
    optimizer = make_optimizer(model, name="adam", learning_rate=1e-3)
    average = WeightAverage(model, decay=0.9)
    change(model, seed=1)
    average.update(FINAL)
    contents = gathered(
        ProcessGroup(), model, optimizer, replace(STATE, model=DESCRIPTION), average
    )
    assert contents is not None
    write_checkpoint(tmp_path / "step-000001", contents)
    checkpoint = read_checkpoint(tmp_path / "step-000001")
    checkpoint.require_complete()
    weights, averages = copies(averaged_tensors(model)), dict(average.tensors)
    # What evaluate, predict and export build.
    assert_equal(averaged_tensors(checkpoint.build_model()), averages)

    resumed = make_model()
    change(resumed, seed=2)
    restored = WeightAverage(resumed, decay=0.9)
    other = make_optimizer(resumed, name="adam", learning_rate=1e-3)
    checkpoint.load_training_state(resumed, other, restored)
    assert_equal(averaged_tensors(resumed), weights)
    assert_equal(dict(restored.tensors), averages)
    assert_equal(resumed.state_dict(), model.state_dict())
    # A run that no longer averages goes on from the weights of the training, too.
    resumed = make_model()
    other = make_optimizer(resumed, name="adam", learning_rate=1e-3)
    checkpoint.load_training_state(resumed, other)
    assert_equal(resumed.state_dict(), model.state_dict())
    assert_weights_of_another_model_are_refused(checkpoint, contents)


def assert_weights_of_another_model_are_refused(checkpoint: Checkpoint, contents: Contents) -> None:
    """Assert that raw weights with a missing, unknown or misshapen tensor are refused."""
    raw = dict(contents.parts["raw.safetensors"])
    name = "head.classification_head.cls_logits.bias"
    for changed, part in (
        ({key: value for key, value in raw.items() if key != name}, f"{name} is missing"),
        ({**raw, "extra": raw[name].clone()}, "extra does not train in the configured model"),
        ({**raw, name: raw[name][:1].clone()}, f"{name} has the shape [1] of another model"),
    ):
        folder = checkpoint.folder.with_name("step-000002")
        write_checkpoint(folder, Contents({"raw.safetensors": changed}, contents.state))
        message = error_message(read_checkpoint(folder).load_raw_weights, make_model())
        assert message.startswith(f"{folder / 'raw.safetensors'}: ") and part in message
