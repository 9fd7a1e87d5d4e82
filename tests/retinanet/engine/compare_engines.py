"""Compares steps of the torch engine and of IPEX from the same weights; prints JSON.

`test_ipex_engine.py` runs this in a process of its own, because IPEX changes torch as a whole.
"""

import json
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD

from common.machine import fastest_precision
from data.dataset import Batch
from retinanet.engine.engines import PreparedTraining, prepare_training
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.checkpoint import optimizer_tensors
from retinanet.training.loop import accumulate_gradients, batch_losses, optimizer_step
from tests.retinanet.engine.layers import trainable

SIZE = 96
"""At 64 oneDNN gives wrong BF16 gradients: P7 is made of a map one pixel wide."""
RATE = 1e3
"""A step of plain descent at this rate shows the gradient as a difference of weights."""


OPTIMIZERS = ["adam", "lamb", "sgd"]


class Case(NamedTuple):
    """The trained model and its precision."""

    norm: str
    num_classes: int
    precision: str


CASES = [Case("frozen", 4, "float32"), Case("batch", 4, "float32")]
if fastest_precision() == "bf16":
    # An odd number of outputs goes another way in the head.
    CASES += [Case("frozen", 4, "bf16"), Case("frozen", 3, "bf16")]


def make_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    targets = [
        {"boxes": torch.tensor([[8.0, 9.0, 44.0, 45.0]]), "labels": torch.tensor([label])}
        for label in (0, 2)
    ]
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    return Batch(pixels, targets, [1, 2], [(SIZE, SIZE)] * 2)


def make_model(case: Case) -> RetinaNet:
    torch.manual_seed(0)
    layers = 3 if case.norm == "frozen" else 5
    model = RetinaNet(num_classes=case.num_classes, norm=case.norm, trainable_layers=layers)
    for name, tensor in model.state_dict().items():
        if name.endswith("bn3.weight"):
            tensor.fill_(0.1)  # keeps random blocks from doubling what goes through them
    return model.to(memory_format=torch.channels_last)


def gradients(engine: str, case: Case) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return losses, and the gradients of what trains under the names of `state_dict`."""
    model = make_model(case)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = {name for name, value in model.named_parameters() if value.requires_grad}
    optimizer = SGD(trainable(model), lr=RATE)
    prepared = prepare_training(model, optimizer, engine=engine, precision=case.precision)
    prepared.model.train()
    [terms] = accumulate_gradients(prepared, [make_batch()])
    optimizer_step(prepared.optimizer, learning_rate=RATE)
    after = prepared.model.state_dict()
    assert list(after) == list(before)
    for name, value in after.items():
        assert (value.dtype, value.shape) == (before[name].dtype, before[name].shape), name
    return terms.losses, {name: (before[name] - after[name]) / RATE for name in names}


def moments(engine: str, case: Case, *, name: str) -> dict[str, Tensor]:
    """Return an optimizer's state, as in a checkpoint, after two steps that hardly move weights."""
    model = make_model(case)
    optimizer = make_optimizer(
        model, name=name, learning_rate=1e-7, momentum=0.9, fused=engine != "ipex"
    )
    prepared = prepare_training(model, optimizer, engine=engine, precision=case.precision)
    prepared.model.train()
    for _ in range(2):
        accumulate_gradients(prepared, [make_batch()])
        optimizer_step(prepared.optimizer, learning_rate=1e-7)
    return optimizer_tensors(prepared.model, prepared.optimizer)


def distance(values: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return each tensor's error, relative to its norm or a hundredth of the norm of all."""
    assert values.keys() == expected.keys()
    least = whole(expected)["all"].norm() / 100
    return {
        name: float((values[name] - value).norm() / value.norm().maximum(least))
        for name, value in expected.items()
    }


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"all": torch.cat([tensors[name].flatten() for name in sorted(tensors)])}


def only(state: dict[str, Tensor], slot: str) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if key.endswith(f"/{slot}")}


def losses_before_and_after_evaluating(case: Case) -> list[float]:
    """IPEX's network uses other weights in evaluation mode; training is not affected."""
    model = make_model(case)
    optimizer = SGD(trainable(model), lr=0.0)
    prepared: PreparedTraining = prepare_training(
        model, optimizer, engine="ipex", precision=case.precision
    )
    losses = []
    for training in (True, False, True):
        prepared.model.train(training)
        with torch.inference_mode(mode=not training):
            losses.append(
                sum(loss.item() for loss in batch_losses(prepared, make_batch()).values())
            )
    return losses


def main() -> None:
    exactly = {case._replace(precision="float32") for case in CASES}
    by_torch = {case: gradients("torch", case) for case in {*CASES, *exactly}}
    moments_by_torch = {name: moments("torch", CASES[1], name=name) for name in OPTIMIZERS}
    assert "intel_extension_for_pytorch" not in sys.modules
    report: dict[str, Any] = {}
    for case in CASES:
        losses, by_ipex = gradients("ipex", case)
        torch_losses, expected = by_torch[case]
        _, exact = by_torch[case._replace(precision="float32")]
        report["-".join(map(str, case))] = {
            "losses": losses,
            "torch_losses": torch_losses,
            "gradients": distance(by_ipex, expected),
            "from_float32": distance(whole(by_ipex), whole(exact))["all"],
            "torch_from_float32": distance(whole(expected), whole(exact))["all"],
        }
    for name, expected in moments_by_torch.items():
        by_ipex = moments("ipex", CASES[1], name=name)
        report[name] = {
            key: error
            for slot in {key.rpartition("/")[2] for key in expected}
            for key, error in distance(only(by_ipex, slot), only(expected, slot)).items()
        }
    report["evaluating"] = losses_before_and_after_evaluating(
        Case("frozen", 4, fastest_precision())
    )
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
