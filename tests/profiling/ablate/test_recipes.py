"""Recipes of ablations: equal mathematics, and the parts of a step."""

import time
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import sigmoid_focal_loss

from profiling.ablate import network_recipes as networks
from profiling.ablate import training_recipes as training
from profiling.ablate.training_recipes import PhaseStopwatch
from profiling.bench.variant import Subject, Variant, Workload
from profiling.bench.worker_pool import variant_worker
from retinanet.config_sections import ModelConfig
from retinanet.engine.engines import autocast
from retinanet.mlperf.rules import reference_points
from retinanet.model.retinanet import HeadOutputs
from retinanet.training.build import build_model

SMALL = Workload(images=1, image_size=64, classes=5)


@cache
def blocks_gradients(unit: str) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs of the last stage by a unit, and the gradients of its weights."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(), num_classes=1, weights=None)
    stage = model.backbone.body.layer4
    features = torch.rand(2, 1024, 6, 6).contiguous(memory_format=torch.channels_last)
    with autocast("float32"):
        for block in stage:
            features = networks.block_outputs(block, features, unit)
    torch.manual_seed(1)
    features.backward(torch.randn_like(features))
    return features.detach(), [
        weight.grad for weight in stage.parameters() if weight.grad is not None
    ]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["two", "one"])
def test_fused_operators_equal_the_three_operators(unit: str) -> None:
    outputs, gradients = blocks_gradients("three")
    others, other_gradients = blocks_gradients(unit)
    assert outputs.shape == (2, 2048, 3, 3) and (outputs > 0).any() and (outputs == 0).any()
    torch.testing.assert_close(others, outputs, rtol=1e-4, atol=1e-4)
    assert len(gradients) == len(other_gradients) == 10  # three convolutions a block, and one more
    for gradient, other in zip(gradients, other_gradients, strict=True):
        # Only by norm, since values near zero may lie on either side of a ReLU.
        assert (other - gradient).norm() < 0.02 * gradient.norm()


def test_bf16_loss_equals_torchvisions() -> None:
    torch.manual_seed(0)
    logits = [torch.randn(1, 30, 4).bfloat16()]
    classes = [torch.full((1, 30), -1)]
    classes[0][0, 3] = 2
    targets = torch.zeros(1, 30, 4, dtype=torch.bfloat16)
    targets[0, 3, 2] = 1
    expected = sigmoid_focal_loss(logits[0], targets, alpha=0.25, gamma=2.0, reduction="sum")
    loss = training.bf16_loss(logits, classes, torch.ones(1))
    assert loss.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)


def test_bf16_has_a_larger_error_than_float32() -> None:
    exact = training.prepare_loss_precision(SMALL, loss="float32").run()
    rounded = training.prepare_loss_precision(SMALL, loss="bf16").run()
    assert exact["loss error"] < 1e-5 < rounded["loss error"] < 0.05
    # A BF16 number has 8 bits: rounding alone is an error of 2^-9 to 2^-10 on average.
    assert 2**-11 < exact["gradient error"] < 2**-9
    assert 2 * exact["gradient error"] < rounded["gradient error"] < 0.1


class Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def test_backward_pass_is_divided_after_the_loss() -> None:
    weight = torch.ones(3, requires_grad=True)
    stopwatch = PhaseStopwatch()

    def network(images: Tensor) -> HeadOutputs:
        hidden = Sleeping.apply(weight * images, 0.5)
        return HeadOutputs([hidden * 2, hidden * 3], [hidden * 4], [])

    outputs = stopwatch.watching(network)(torch.ones(3))
    losses = [Sleeping.apply(level, 0.03).sum() for level in outputs.cls_logits]
    loss = sum(losses, Sleeping.apply(outputs.bbox_regression[0], 0.04).sum())
    with stopwatch.phase("backward"):
        loss.backward()
    laps = stopwatch.laps()
    assert 0.1 <= laps["loss backward"] < 0.5 <= laps["network backward"]
    assert laps["loss backward"] + laps["network backward"] == pytest.approx(laps["backward"])


@pytest.mark.slow
def test_all_options_of_a_step_have_the_same_loss_and_all_phases() -> None:
    variants: list[dict[str, Any]] = [
        {"engine": "plain"},
        {"engine": "torch"},
        {
            "engine": "plain",
            "layout": "channels_first",
            "focal_form": "reference",
            "trains_frozen": True,
        },
    ]
    losses = []
    for options in variants:
        run = training.prepare_training_step(SMALL, precision="float32", **options).run
        first = run()
        begin = time.perf_counter()
        second = run()
        seconds = time.perf_counter() - begin
        phases = [second[name] for name in ("forward", "loss", "backward", "optimizer")]
        assert all(phases)
        if len(options) == 1:
            assert 0.5 * seconds < sum(phases) <= seconds
        losses.append([first["loss value"], second["loss value"]])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)
    classes = training.prepare_training_step(SMALL, engine="plain", precision="float32", classes=9)
    assert classes.run()["loss value"] != losses[0][0]


@pytest.mark.slow
def test_transformer_has_the_size_of_bert_base() -> None:
    subject = Subject(
        model="transformer", batch=1, image_size=224, precision="float32", device="cpu"
    )
    timed = networks.transformer(subject)
    network, _ = timed.network.children()
    assert isinstance(network, nn.Sequential)
    count = sum(weight.numel() for weight in network[1].parameters())
    assert count == 85_054_464  # those of the released weights
    loss = timed.loss(timed.forward())
    assert loss.item() == pytest.approx(0.69, abs=0.7)


@pytest.mark.slow
def test_primitives_of_a_step_add_up() -> None:
    prepared = networks.prepare_networks(
        SMALL, model="retinanet", precision="float32", batch=1, watches=True
    )
    seconds_by_part = prepared.run()
    parts = {name: s for name, s in seconds_by_part.items() if name.startswith("primitive: ")}
    assert {f"primitive: convolution {way}" for way in
            ("forward", "backward data", "backward weights")} <= set(parts)  # fmt: skip
    assert all(seconds >= 0 for seconds in parts.values())
    assert parts["primitive: elsewhere"] > 0
    assert seconds_by_part["step"] == pytest.approx(
        seconds_by_part["forward"] + seconds_by_part["backward"]
    )


def test_convergence_points_are_the_published_ones() -> None:
    epochs = training.prepare_convergence_points(SMALL).run()
    points = reference_points("5.1.0")
    assert len(epochs) == 3 * len(points)
    for point in points:
        low, middle, high = (
            epochs[f"{prefix}epochs at {point.batch_size:05}"] for prefix in ("least ", "", "most ")
        )
        assert low <= middle == point.mean_epochs <= high


@pytest.mark.exhaustive
def test_short_trainings_differ_by_the_loss_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRAIN": 24, "HELD_OUT": 8}.items():
        monkeypatch.setattr(training, name, value)
    workload = Workload(images=1, image_size=64)
    options = {"precision": "float32", "steps": 6}
    curves = [
        training.prepare_short_training(workload, loss=loss, **options).run()  # type: ignore[arg-type]
        for loss in ("float32", "bf16")
    ]
    assert curves[0] != curves[1]
    assert [key for key in curves[0] if " at " in key] == [
        f"held-out loss at {step:05}" for step in range(1, 7)
    ]
    # After one step from the same weights on the same images the difference is small.
    first = "held-out loss at 00001"
    assert curves[1][first] == pytest.approx(curves[0][first], rel=0.05)


def operators(recipe: str, **options: str | bool) -> tuple[dict[str, float], str]:
    """Return the details of a run, and the operators of the next one.

    IPEX changes torch for the whole process, so the recipe runs in a process of its own.
    """
    variant = Variant(
        name="ipex", about="", recipe=f"profiling.ablate.recipes.{recipe}", options=dict(options)
    )
    worker = variant_worker(variant, SMALL)
    try:
        details = worker.run().details
        return details, " ".join(worker.ask("operators")["operators"])
    finally:
        worker.close()


@pytest.mark.ipex
def test_ipex_has_the_same_loss_with_either_norm() -> None:
    options = {"engine": "ipex", "precision": "float32"}
    ours, our_names = operators("training_step", **options, norm="own")
    theirs, their_names = operators("training_step", **options, norm="torchvision")
    assert theirs["loss value"] == pytest.approx(ours["loss value"], rel=1e-3)
    norm = "torch_ipex::frozen_batch_norm"
    assert norm in our_names and norm not in their_names


@pytest.mark.ipex
@pytest.mark.parametrize("fused", [True, False])
def test_only_fused_lamb_uses_the_kernel_of_ipex(fused: bool) -> None:
    _, names = operators("ipex_lamb", fused=fused)
    assert ("torch_ipex::lamb_fused_step" in names) is fused
