"""The fast forward pass against the model's own, gradients included."""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from common.machine import cpu_flags
from retinanet.config_types import DEFAULT_ARCHITECTURE, Architecture
from retinanet.engine.engines import autocast
from retinanet.engine.folded_forward import FoldedForward, RunningStatistics
from retinanet.model.retinanet import HeadOutputs, RetinaNet
from tests.retinanet.engine.kernels import assert_equal, distance

RESNET_V2 = Architecture("resnet50", "v2")


def make_model(
    *,
    norm: str,
    trainable_layers: int,
    num_classes: int = 5,
    architecture: Architecture = DEFAULT_ARCHITECTURE,
) -> RetinaNet:
    """Return weights and norm statistics with activations of order one and different channels."""
    torch.manual_seed(3)
    model = RetinaNet(
        num_classes=num_classes,
        norm=norm,
        trainable_layers=trainable_layers,
        architecture=architecture,
    )
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d | nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.3, 1.0)
            module.bias.data.normal_(std=0.1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            if "cls_logits" in name or "bbox_reg" in name:
                parameter.data.mul_(0.3)
    return model.to(memory_format=torch.channels_last)


def images(count: int = 2, *, width: int = 96) -> Tensor:
    return torch.randn(count, 3, 64, width, generator=torch.Generator().manual_seed(5))


def weighted_sum(outputs: HeadOutputs) -> Tensor:
    """Return a sum in which every output has a different weight."""
    generator = torch.Generator().manual_seed(7)
    parts = [*outputs.cls_logits, *outputs.bbox_regression]
    terms = [
        (
            part.to(torch.promote_types(part.dtype, torch.float32))
            * torch.randn(part.shape, generator=generator)
        ).sum()
        for part in parts
    ]
    return torch.stack(terms).sum()


def gradients(model: RetinaNet, outputs: HeadOutputs) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    weighted_sum(outputs).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


HAS_BF16 = "avx512_bf16" in cpu_flags()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "trainable_layers", "architecture"),
    [
        ("frozen", 0, DEFAULT_ARCHITECTURE),
        ("frozen", 3, DEFAULT_ARCHITECTURE),
        ("batch", 3, DEFAULT_ARCHITECTURE),
        ("frozen", 3, RESNET_V2),
        pytest.param("batch", 5, RESNET_V2, marks=pytest.mark.exhaustive),
        pytest.param("frozen", 0, RESNET_V2, marks=pytest.mark.exhaustive),
        *(
            pytest.param("frozen", layers, DEFAULT_ARCHITECTURE, marks=pytest.mark.exhaustive)
            for layers in (1, 2, 4, 5)
        ),
    ],
)
def test_outputs_and_gradients_are_the_models(
    norm: str, trainable_layers: int, architecture: Architecture
) -> None:
    # In float64: rounding in float32 moves values over ReLU's corner, and gradients with them.
    model = make_model(norm=norm, trainable_layers=trainable_layers, architecture=architecture)
    model = model.train().double()
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = model(images().double())
    expected_gradients = gradients(model, expected)
    model.load_state_dict(statistics, strict=False)
    outputs = FoldedForward(model, precision="float32")(images().double())
    assert outputs.feature_sizes == expected.feature_sizes
    for output, reference in zip(
        [*outputs.cls_logits, *outputs.bbox_regression],
        [*expected.cls_logits, *expected.bbox_regression],
        strict=True,
    ):
        assert distance(output, reference) < 1e-12
    folded_gradients = gradients(model, outputs)
    assert folded_gradients.keys() == expected_gradients.keys()  # none of frozen layers
    for name, reference in expected_gradients.items():
        assert distance(folded_gradients[name], reference) < 1e-11, name


class Errors(NamedTuple):
    """Gradients of images in float32, and the median error of those under autocast."""

    images: Tensor
    reference: dict[str, Tensor]
    autocast_median: float


def gradient_errors(actual: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Return the median over the parameters of the gradient's error.

    P6 and P7 are a pixel wide here: there oneDNN, which autocast calls, leaves parts of the
    weight's gradient unwritten, NaN by chance.
    """
    names = (name for name in reference if "extra_blocks" not in name)
    return median(distance(actual[name], reference[name]) for name in names)


@functools.cache
def errors_of_autocast(norm: str, architecture: Architecture, *, emulated: bool) -> Errors:
    given = images(1, width=64) if emulated else images()  # plain C++ is slow
    model = make_model(norm=norm, trainable_layers=3, architecture=architecture).train()
    reference = gradients(model, model(given))
    with autocast("bf16"):
        outputs = model(given)
    return Errors(given, reference, gradient_errors(gradients(model, outputs), reference))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("convolutions", "norm", "architecture", "allowed"),
    [
        # Without the processor's BF16 oneDNN has other kernels, which round at other places: 1.12.
        ("onednn", "frozen", DEFAULT_ARCHITECTURE, 1.05 if HAS_BF16 else 1.2),
        ("onednn", "batch", DEFAULT_ARCHITECTURE, 1.1),
        ("auto", "frozen", DEFAULT_ARCHITECTURE, 1.25),
        ("auto", "frozen", RESNET_V2, 1.25),
        *(
            pytest.param(
                "winograd", "frozen", architecture, 1.25,
                marks=pytest.mark.skipif(not HAS_BF16, reason="the processor has no AVX-512 BF16"),
            )
            for architecture in (DEFAULT_ARCHITECTURE, RESNET_V2)
        ),
    ],
)  # fmt: skip
def test_bf16_gradients_are_about_as_exact_as_under_autocast(
    request: pytest.FixtureRequest,
    convolutions: str,
    norm: str,
    architecture: Architecture,
    allowed: float,
) -> None:
    errors = errors_of_autocast(norm, architecture, emulated=convolutions == "auto")
    if convolutions == "auto":
        request.getfixturevalue("emulated_amx")
    model = make_model(norm=norm, trainable_layers=3, architecture=architecture).train()
    forward = FoldedForward(model, precision="bf16", convolutions=convolutions)
    folded = gradients(model, forward(errors.images))
    assert {gradient.dtype for gradient in folded.values()} == {torch.float32}
    assert gradient_errors(folded, errors.reference) <= allowed * errors.autocast_median


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_evaluation_gives_the_models_outputs_also_with_new_weights(norm: str) -> None:
    model = make_model(norm=norm, trainable_layers=3).eval()
    forward = FoldedForward(model, precision="float32")
    results = []
    for _ in range(2):
        with torch.inference_mode():
            results.append(forward(images()).cls_logits[0])
            assert distance(results[-1], model(images()).cls_logits[0]) < 1e-5
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["backbone.body.conv1.weight"] *= 0.5  # of a frozen layer, folded before
        model.load_state_dict(state)
    assert distance(results[1], results[0]) > 1e-3


@pytest.mark.slow
def test_training_after_inference_gives_equal_numbers_in_bf16_and_passes_nan() -> None:
    model = make_model(norm="frozen", trainable_layers=3)
    forward = FoldedForward(model, precision="bf16", convolutions="onednn")
    with torch.inference_mode():
        inferred = forward(images())
    trained = forward(images())
    assert gradients(model, trained)
    assert_equal(trained.cls_logits, inferred.cls_logits)
    poisoned = images()
    poisoned[0, 0, 5, 5] = math.nan
    assert any(maps.isnan().any() for maps in forward(poisoned).cls_logits)


@pytest.mark.slow
def test_a_block_whose_norms_train_may_follow_one_whose_norms_do_not() -> None:
    model = make_model(norm="batch", trainable_layers=5).train().double()
    for layer in (model.backbone.body.layer1, model.backbone.body.layer3):
        layer.eval()
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = gradients(model, model(images().double()))
    model.load_state_dict(statistics, strict=False)
    folded = gradients(model, FoldedForward(model, precision="float32")(images().double()))
    for name, reference in expected.items():
        if "bn" not in name and "downsample.1" not in name:  # constant norms get none
            assert distance(folded[name], reference) < 1e-11, name


@pytest.mark.slow
def test_odd_channels_do_not_read_past_the_gradient() -> None:
    """91 classes × 9 anchors: NaN in freed memory must not reach the gradients."""
    model = make_model(norm="frozen", trainable_layers=0, num_classes=91).train()
    forward = FoldedForward(model, precision="bf16")
    for _ in range(2):
        poison = [
            torch.full((2, 91 * 9, side, side), float("nan")).bfloat16() for side in range(1, 13)
        ]
        del poison
        folded = gradients(model, forward(images()))
        assert all(gradient.isfinite().all() for gradient in folded.values())


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frozen", pytest.param("batch", marks=pytest.mark.exhaustive)])
def test_contexts_surround_every_module_that_computes_and_change_nothing(norm: str) -> None:
    model = make_model(norm=norm, trainable_layers=5)
    forward = FoldedForward(model, precision="float32")
    called: set[nn.Module] = set()
    around: list[nn.Module] = []
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: called.add(module))
    expected = forward(images())

    @contextmanager
    def note(module: nn.Module) -> Iterator[None]:
        around.append(module)
        yield

    forward.around = note
    outputs = forward(images())
    names = {module: name for name, module in model.named_modules()}
    convolutions = {module for module in model.modules() if isinstance(module, nn.Conv2d)}
    assert {names[m] for m in convolutions - called} <= {names[m] for m in around}
    assert not called & set(around)  # those that are called have hooks for it
    assert len(set(around)) == len(around)
    assert around[0] is model.backbone.body and model.head in around
    assert_equal(outputs.cls_logits, expected.cls_logits)


def test_running_statistics_are_restored() -> None:
    torch.manual_seed(0)
    trained, constant = nn.BatchNorm2d(4), nn.BatchNorm2d(4).eval()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), trained, constant)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    statistics = RunningStatistics(model)
    statistics.keep()
    model(torch.randn(2, 3, 5, 5) + math.nan)
    assert trained.running_mean is not None and trained.running_mean.isnan().all()
    assert trained.num_batches_tracked == 1
    statistics.put_back()
    assert_equal(list(model.state_dict().values()), list(before.values()))
