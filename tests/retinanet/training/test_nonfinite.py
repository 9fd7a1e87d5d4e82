"""Steps that are not finite: model and optimizer must not change, whatever the cause."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, cast

import pytest
import torch
from torch import Tensor

from data.annotations import Annotations
from data.dataset import Batch
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.optimizers import gradient_norm, make_optimizer
from retinanet.loss.focal import FORMS
from retinanet.model.retinanet import HeadOutputs, RetinaNet, by_anchor
from retinanet.training.loop import StepOptions, StepResult, accumulate_gradients, train_one_epoch
from retinanet.training.nonfinite import NonFiniteGuard, NonFiniteStep, TensorNames
from tests.retinanet.training.tiny_steps import make_batch, make_model, prepared

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def model() -> RetinaNet:
    """A model in which some norms train, and have running statistics."""
    return make_model()


@pytest.fixture(scope="module")
def training(model: RetinaNet) -> PreparedTraining:
    """The model with an optimizer that has taken a step."""
    training = prepared(model, make_optimizer(model, name="adam", learning_rate=1e-6))
    assert not steps(training, [make_batch(seed=1)])[0].nonfinite
    return training


@contextmanager
def changed_weights(model: RetinaNet, change: Callable[[RetinaNet], None]) -> Iterator[None]:
    """Change the weights of the model temporarily."""
    before = copies(model.state_dict())
    with torch.no_grad():
        change(model)
    yield
    model.load_state_dict(before)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def steps(
    training: PreparedTraining, batches: list[Batch], *, accumulation: int = 1
) -> list[StepResult]:
    return list(
        train_one_epoch(
            training,
            batches,
            learning_rate=lambda _: 1e-6,
            first_step=16,
            options=StepOptions(gradient_accumulation=accumulation),
        )
    )


def with_nan(batch: Batch) -> Batch:
    """Return the batch as floats, with one NaN."""
    images = batch.images.float()
    images[0, 1, 20, 30] = math.nan
    return batch._replace(images=images)


def training_state(training: PreparedTraining) -> dict[str, Tensor]:
    """Return what a step changes: weights, running statistics, the optimizer's averages."""
    state = copies(training.model.state_dict())
    for index, slots in training.optimizer.state_dict()["state"].items():
        state |= copies({f"optimizer {index} {slot}": value for slot, value in slots.items()})
    return state


def assert_same_bits(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert torch.equal(bits(value), bits(expected[name])), name


def bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor: NaN is not equal to itself."""
    return tensor.view(torch.int32) if tensor.is_floating_point() else tensor


def set_nan_weight(model: RetinaNet) -> None:
    weight = model.get_parameter("backbone.body.layer4.1.conv2.weight")
    weight[5, 1, 0, 2] = math.nan


def set_infinite_loss(model: RetinaNet) -> None:
    """Set four deltas to 3e38: their sum is infinite, the gradient of each is 1."""
    model.get_parameter("head.regression_head.bbox_reg.bias").fill_(3e38)


def set_infinite_gradient(model: RetinaNet) -> None:
    """Set weights that cancel out: logits are small, the gradient of their input is infinite."""
    head = "head.classification_head"
    model.get_parameter(f"{head}.conv.3.0.weight").zero_()
    model.get_parameter(f"{head}.conv.3.0.bias").fill_(1e-36)
    weight = model.get_parameter(f"{head}.cls_logits.weight")
    weight[:, 0::2], weight[:, 1::2] = 3e38, -3e38


def assert_changes_nothing(training: PreparedTraining, batches: list[Batch]) -> StepResult:
    before = training_state(training)
    [result] = steps(training, batches, accumulation=len(batches))
    assert_same_bits(training_state(training), before)
    assert result.step == 17 and not math.isfinite(result.gradient_norm)
    assert all(parameter.grad is None for parameter in training.model.parameters())
    return result


def test_infinite_loss_leaves_weights_untouched(
    training: PreparedTraining, model: RetinaNet
) -> None:
    with changed_weights(model, set_infinite_loss):
        result = assert_changes_nothing(training, [make_batch(seed=4)])
    assert result.losses["bbox_regression"] == math.inf
    assert math.isfinite(result.losses["classification"])
    assert result.nonfinite[0].weights.count == 0


def test_infinite_gradients_of_a_finite_loss_leave_weights_untouched(
    training: PreparedTraining, model: RetinaNet
) -> None:
    with changed_weights(model, set_infinite_gradient):
        result = assert_changes_nothing(training, [make_batch(seed=4)])
    [record] = result.nonfinite
    assert math.isfinite(result.loss) and record.batches[0].is_finite
    assert record.gradients.first == ("head.classification_head.conv.3.0.bias",)
    assert record.gradients.count == 1


def test_nan_weight_leaves_other_weights_untouched(
    training: PreparedTraining, model: RetinaNet
) -> None:
    with changed_weights(model, set_nan_weight):
        result = assert_changes_nothing(training, [make_batch(seed=4)])
    [record] = result.nonfinite
    assert record.weights == TensorNames(count=1, first=("backbone.body.layer4.1.conv2.weight",))
    assert record.statistics.count == 0


def test_nan_pixel_in_one_of_two_batches_leaves_weights_untouched(
    training: PreparedTraining,
) -> None:
    batches = [with_nan(make_batch(seed=4)), make_batch(seed=5)]
    [record] = assert_changes_nothing(training, batches).nonfinite
    assert [batch.is_finite for batch in record.batches] == [False, True]
    assert [batch.image_ids for batch in record.batches] == [(40,), (50,)]
    assert record.weights.count == record.statistics.count == 0


def test_training_continues_as_if_the_skipped_batch_did_not_exist(model: RetinaNet) -> None:
    first, broken, second = make_batch(seed=4), with_nan(make_batch(seed=9)), make_batch(seed=5)
    states, taken = [], []
    for batches in ([first, broken, second], [first, second]):
        with changed_weights(model, lambda _: None):
            training = prepared(model, make_optimizer(model, name="adam", learning_rate=1e-6))
            taken += [(result.step, bool(result.nonfinite)) for result in steps(training, batches)]
            states.append(training_state(training))
    assert taken == [(17, False), (18, True), (19, False), (17, False), (18, False)]
    assert_same_bits(*states)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_infinite_loss_with_finite_gradients_makes_the_norm_nan(
    model: RetinaNet, form: str, precision: str
) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    sides = (8, 4, 2, 1, 1)

    def biases(name: str, *, values: int) -> list[Tensor]:
        bias = model.get_parameter(f"head.{name}.bias").to(dtype)
        return [by_anchor(bias.view(1, -1, 1, 1).expand(1, -1, n, n), values) for n in sides]

    def forward(images: Tensor) -> HeadOutputs:
        """Return the biases of the heads: only the loss matters here."""
        return HeadOutputs(
            cls_logits=biases("classification_head.cls_logits", values=3),
            bbox_regression=biases("regression_head.bbox_reg", values=4),
            feature_sizes=[(side, side) for side in sides],
        )

    head = replace(prepared(model), forward=forward)
    with changed_weights(model, set_infinite_loss):
        [terms] = accumulate_gradients(head, [make_batch(seed=4)], focal_form=form)
    norm = gradient_norm(model.parameters())
    model.zero_grad(set_to_none=True)
    assert terms.losses["bbox_regression"] == math.inf
    assert math.isfinite(terms.losses["classification"])
    assert math.isnan(norm)


def step_record(*, weights: int = 0, statistics: int = 0) -> NonFiniteStep:
    none = TensorNames(count=0, first=())
    return NonFiniteStep(
        batches=(),
        gradients=none,
        weights=TensorNames(count=weights, first=()),
        statistics=TensorNames(count=statistics, first=()),
    )


def make_guard(action: Literal["stop", "skip"], *, limit: int, skipped: int = 0) -> NonFiniteGuard:
    """Return a guard for steps without images."""
    guard = NonFiniteGuard(action, limit=limit, annotations=cast(Annotations, None))
    guard.skipped = skipped
    return guard


def check(guard: NonFiniteGuard, *ranks: NonFiniteStep) -> str | None:
    """Return the advice after a step of these ranks."""
    report = guard.check(17, ranks, gradient_norm=math.nan, learning_rate=1e-6)
    assert report is not None and report.content["skipped_steps"] == guard.skipped
    return report.advice


@pytest.mark.parametrize(
    ("guard", "ranks", "advised"),
    [
        (make_guard("stop", limit=5), [step_record()], "training.on_nonfinite=skip"),
        (make_guard("skip", limit=5), [step_record(), step_record(weights=3)], "an earlier check"),
        (make_guard("skip", limit=5), [step_record(), step_record(statistics=1)], "earlier check"),
    ],
)
def test_run_stops_unless_it_may_skip_and_weights_are_finite(
    guard: NonFiniteGuard, ranks: list[NonFiniteStep], advised: str
) -> None:
    advice = check(guard, *ranks)
    assert advice is not None and advised in advice and guard.skipped == 0


def test_limit_of_skipped_steps_counts_those_before_a_resume() -> None:
    run = make_guard("skip", limit=2, skipped=1)  # one of them before a resume
    assert check(run, step_record()) is None
    assert run.skipped == 2
    advice = check(run, step_record())
    assert advice is not None and "training.nonfinite_limit=2" in advice


def test_step_skipped_by_other_ranks_is_counted_beyond_the_limit() -> None:
    run = make_guard("skip", limit=0)
    report = run.check(
        3, [step_record()], gradient_norm=math.nan, learning_rate=1e-6, is_decided=True
    )
    assert report is not None and report.advice is None and run.skipped == 1
