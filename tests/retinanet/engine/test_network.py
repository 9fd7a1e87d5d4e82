"""The fast forward pass gives the model's own numbers, gradients included."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from common.machine import cpu_flags
from retinanet.engine.engines import autocast
from retinanet.engine.folded_forward import FoldedForward
from retinanet.model.retinanet import HeadOutputs, RetinaNet


def make_model(*, norm: str, trainable_layers: int, num_classes: int = 5) -> RetinaNet:
    """Weights and norm statistics that keep activations of order one and tell channels apart."""
    torch.manual_seed(3)
    model = RetinaNet(num_classes=num_classes, norm=norm, trainable_layers=trainable_layers)
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
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 64, 96, generator=torch.Generator().manual_seed(5))


def weighted_sum(outputs: HeadOutputs) -> Tensor:
    """A scalar in which every output counts differently."""
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


def distance(value: Tensor, reference: Tensor) -> float:
    """Root mean square of the difference, relative to the reference's."""
    return ((value - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize(
    ("norm", "trainable_layers"),
    [*(("frozen", layers) for layers in range(6)), ("batch", 3)],
)
def test_outputs_and_gradients_are_the_models(norm: str, trainable_layers: int) -> None:
    # In float64: rounding in float32 moves values over ReLU's corner, and gradients with them.
    model = make_model(norm=norm, trainable_layers=trainable_layers).train().double()
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    wanted = model(images().double())
    wanted_gradients = gradients(model, wanted)
    model.load_state_dict(statistics, strict=False)
    outputs = FoldedForward(model, precision="float32")(images().double())
    assert outputs.feature_sizes == wanted.feature_sizes
    for output, reference in zip(
        [*outputs.cls_logits, *outputs.bbox_regression],
        [*wanted.cls_logits, *wanted.bbox_regression],
        strict=True,
    ):
        assert distance(output, reference) < 1e-12
    found = gradients(model, outputs)
    assert found.keys() == wanted_gradients.keys()
    for name, reference in wanted_gradients.items():
        assert distance(found[name], reference) < 1e-11, name


HAS_BF16 = "avx512_bf16" in cpu_flags()


def test_bf16_is_as_close_to_float32_as_autocast() -> None:
    # Without the processor's BF16 oneDNN has other kernels, which round at other places: 1.12.
    assert gradient_errors_over_autocasts("onednn") <= (1.05 if HAS_BF16 else 1.2)


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no AVX-512 BF16")
def test_winograds_bf16_is_about_as_close_to_float32_as_autocast() -> None:
    assert gradient_errors_over_autocasts("winograd") <= 1.25


def test_tiles_bf16_is_about_as_close_to_float32_as_autocast(own_tiles: None) -> None:
    assert gradient_errors_over_autocasts("auto") <= 1.25


def test_bf16_norms_that_train_are_as_close_to_float32_as_autocasts() -> None:
    assert gradient_errors_over_autocasts("onednn", norm="batch") <= 1.1


def gradient_errors_over_autocasts(convolutions: str, *, norm: str = "frozen") -> float:
    """Median over the parameters of the gradient's error, over that of the model in autocast."""
    model = make_model(norm=norm, trainable_layers=3).train()
    reference = gradients(model, model(images()))
    with autocast("bf16"):
        outputs = model(images())
    of_autocast = gradients(model, outputs)
    forward = FoldedForward(model, precision="bf16", convolutions=convolutions)
    found = gradients(model, forward(images()))
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    errors = [distance(found[name], reference[name]) for name in reference]
    autocast_errors = [distance(of_autocast[name], reference[name]) for name in reference]
    return median(errors) / median(autocast_errors)


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_evaluation_gives_the_models_outputs(norm: str) -> None:
    model = make_model(norm=norm, trainable_layers=5).eval()
    with torch.inference_mode():
        wanted = model(images())
        outputs = FoldedForward(model, precision="float32")(images())
    assert distance(outputs.cls_logits[0], wanted.cls_logits[0]) < 1e-5


def test_training_and_inference_give_equal_numbers_in_bf16() -> None:
    model = make_model(norm="frozen", trainable_layers=3)
    forward = FoldedForward(model, precision="bf16", convolutions="onednn")
    trained = forward(images())
    with torch.inference_mode():
        inferred = forward(images())
    for one, other in zip(trained.cls_logits, inferred.cls_logits, strict=True):
        assert torch.equal(one, other)


def test_a_block_whose_norms_train_may_follow_one_whose_norms_do_not() -> None:
    model = make_model(norm="batch", trainable_layers=5).train().double()
    for layer in (model.backbone.body.layer1, model.backbone.body.layer3):
        layer.eval()
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    wanted = gradients(model, model(images().double()))
    model.load_state_dict(statistics, strict=False)
    found = gradients(model, FoldedForward(model, precision="float32")(images().double()))
    for name, reference in wanted.items():
        if "bn" not in name and "downsample.1" not in name:  # constant norms get none
            assert distance(found[name], reference) < 1e-11, name


def test_nan_in_images_reaches_the_outputs() -> None:
    model = make_model(norm="frozen", trainable_layers=3).train()
    poisoned = images()
    poisoned[0, 0, 5, 5] = float("nan")
    outputs = FoldedForward(model, precision="bf16")(poisoned)
    assert any(maps.isnan().any() for maps in outputs.cls_logits)


def test_frozen_layers_get_no_graph_and_no_gradient() -> None:
    model = make_model(norm="frozen", trainable_layers=0).train()
    outputs = FoldedForward(model, precision="float32")(images())
    found = gradients(model, outputs)
    assert found
    assert not [name for name in found if name.startswith("backbone.body")]


def test_new_weights_of_frozen_layers_are_seen() -> None:
    model = make_model(norm="frozen", trainable_layers=3).eval()
    forward = FoldedForward(model, precision="float32")
    with torch.inference_mode():
        before = forward(images()).cls_logits[0]
    other = make_model(norm="frozen", trainable_layers=3)
    other.backbone.body.conv1.weight.data.mul_(0.5)
    model.load_state_dict(other.state_dict())
    with torch.inference_mode():
        after = forward(images()).cls_logits[0]
        wanted = model(images()).cls_logits[0]
    assert distance(after, before) > 1e-3
    assert distance(after, wanted) < 1e-5


def test_training_follows_an_evaluation_in_inference_mode() -> None:
    model = make_model(norm="frozen", trainable_layers=3)
    forward = FoldedForward(model, precision="bf16")
    with torch.inference_mode():
        forward(images())
    assert gradients(model.train(), forward(images()))


def test_odd_channels_do_not_read_past_the_gradient() -> None:
    """91 classes × 9 anchors: NaN left in freed memory must not come back in the gradients."""
    model = make_model(norm="frozen", trainable_layers=0, num_classes=91).train()
    forward = FoldedForward(model, precision="bf16")
    for _ in range(3):
        poison = [
            torch.full((2, 91 * 9, side, side), float("nan")).bfloat16() for side in range(1, 13)
        ]
        del poison
        found = gradients(model, forward(images()))
        assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_what_is_put_around_modules_is_around_each_that_computes_and_changes_nothing(
    norm: str,
) -> None:
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
    found = forward(images())
    names = {module: name for name, module in model.named_modules()}
    convolutions = {one for one in model.modules() if isinstance(one, nn.Conv2d)}
    assert {names[one] for one in convolutions - called} <= {names[one] for one in around}
    assert not called & set(around)  # those that are called have hooks for it
    assert len(set(around)) == len(around)
    assert around[0] is model.backbone.body and model.head in around
    for one, other in zip(found.cls_logits, expected.cls_logits, strict=True):
        assert torch.equal(one, other)
