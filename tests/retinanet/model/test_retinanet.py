import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.retinanet import RetinaNetHead as TorchvisionHead

from retinanet.model.retinanet import HeadOutputs, RetinaNet, RetinaNetHead
from tests.retinanet.engine.kernels import assert_equal
from tests.support.torchvision_models import old_spelling, torchvision_retinanet

NUM_CLASSES = 5


def fresh_model(norm: str = "frozen", seed: int = 0) -> RetinaNet:
    torch.manual_seed(seed)
    return RetinaNet(num_classes=NUM_CLASSES, norm=norm).eval()


def run_model(model: RetinaNet) -> HeadOutputs:
    torch.manual_seed(7)
    with torch.no_grad():
        outputs: HeadOutputs = model(torch.randn(1, 3, 64, 64))
    return outputs


def assert_equal_outputs(model: RetinaNet, other: RetinaNet) -> None:
    outputs, expected = run_model(model), run_model(other)
    assert_equal(outputs.cls_logits, expected.cls_logits)
    assert_equal(outputs.bbox_regression, expected.bbox_regression)


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_state_dict_keys_and_shapes_are_torchvisions(norm: str) -> None:
    with torch.device("meta"):  # names and shapes, no numbers
        model = fresh_model(norm)
        reference = torchvision_retinanet(NUM_CLASSES, norm=type(model.backbone.body.bn1))
    ours = {key: value.shape for key, value in model.state_dict().items()}
    if norm == "frozen":
        assert sum(old_spelling(key) != key for key in ours) == 28
    assert ours == {key: value.shape for key, value in reference.state_dict().items()}
    trainable = {name: p.requires_grad for name, p in model.named_parameters()}
    assert trainable == {name: p.requires_grad for name, p in reference.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(old_spelling, marks=pytest.mark.exhaustive),
        pytest.param(lambda key: f"module.{key}", marks=pytest.mark.exhaustive),
        lambda key: f"module.{old_spelling(key)}",
        lambda key: key,
    ],
    ids=["old", "module", "old module", "today's"],
)
def test_every_spelling_loads_strictly_with_equal_outputs(spelling: Callable[[str], str]) -> None:
    model, other = fresh_model(seed=1), fresh_model(seed=2)
    renamed = {spelling(key): value for key, value in model.state_dict().items()}
    given = list(renamed)
    other.load_state_dict(renamed)
    assert_equal_outputs(other, model)
    assert list(renamed) == given, "the caller's dictionary was changed"


def test_loading_stays_strict() -> None:
    with torch.device("meta"):
        model = fresh_model()
    state = model.state_dict()
    missing = {k: v for k, v in state.items() if k != "head.regression_head.conv.1.0.bias"}
    with pytest.raises(RuntimeError, match=r"Missing key.*conv.1.0.bias"):
        model.load_state_dict(missing)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*extra.weight"):
        model.load_state_dict({**state, "extra.weight": torch.zeros(1)})
    twice = {**state, "head.regression_head.conv.2.bias": torch.zeros(256)}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*conv.2.bias"):
        model.load_state_dict(twice)
    with torch.device("meta"):
        wrong_classes = RetinaNet(num_classes=NUM_CLASSES + 1).state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch.*cls_logits"):
        model.load_state_dict(wrong_classes)


@pytest.mark.slow
def test_copied_and_wrapped_models_load_old_spellings_too() -> None:
    model = fresh_model(seed=1)
    old = {old_spelling(key): value for key, value in model.state_dict().items()}
    other = copy.deepcopy(fresh_model(seed=2))
    other.load_state_dict(old)
    assert_equal_outputs(other, model)
    inner = fresh_model(seed=3)
    wrapper = torch.nn.Sequential(inner)
    wrapper.load_state_dict({f"0.{key}": value for key, value in old.items()})
    assert_equal_outputs(inner, model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "other_norm", "saved_metadata"),
    [("frozen", "batch", True), ("batch", "frozen", False)],
)
def test_checkpoints_of_the_two_norms_are_interchangeable(
    norm: str, other_norm: str, saved_metadata: bool
) -> None:
    model, other = fresh_model(norm, seed=1), fresh_model(other_norm, seed=2)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if ".bn" in key and "num_batches" not in key:
                value.uniform_(0.5, 1.5)
    state: dict[str, Tensor] = model.state_dict()
    other.load_state_dict(state if saved_metadata else dict(state))
    for ours, expected in zip(
        run_model(other).cls_logits, run_model(model).cls_logits, strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_batched_equals_single() -> None:
    model = fresh_model()
    torch.manual_seed(3)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        together: HeadOutputs = model(images)
        alone = [model(image.unsqueeze(0)) for image in images]
    assert together.feature_sizes == [(8, 12), (4, 6), (2, 3), (1, 2), (1, 1)]
    for level in range(5):
        logits = torch.cat([single.cls_logits[level] for single in alone])
        deltas = torch.cat([single.bbox_regression[level] for single in alone])
        torch.testing.assert_close(together.cls_logits[level], logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.bbox_regression[level], deltas, rtol=1e-4, atol=1e-5)


CHANNELS = 8


def small_head(num_classes: int = 3) -> RetinaNetHead:
    torch.manual_seed(0)
    return RetinaNetHead(channels=CHANNELS, num_anchors=9, num_classes=num_classes)


def features() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, CHANNELS, 4, 5), torch.randn(2, CHANNELS, 2, 3)]


def test_outputs_are_torchvisions_level_by_level() -> None:
    head, reference = small_head(), TorchvisionHead(CHANNELS, 9, 3)
    reference.load_state_dict(head.state_dict())
    outputs, expected = head(features()), reference(features())
    assert [tuple(level.shape) for level in outputs.cls_logits] == [(2, 180, 3), (2, 54, 3)]
    assert outputs.feature_sizes == [(4, 5), (2, 3)]
    torch.testing.assert_close(torch.cat(outputs.cls_logits, dim=1), expected["cls_logits"])
    deltas = torch.cat(outputs.bbox_regression, dim=1)
    torch.testing.assert_close(deltas, expected["bbox_regression"])


def test_a_fresh_head_gives_every_anchor_foreground_probability_of_one_percent() -> None:
    torch.manual_seed(0)
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=3)
    images = [torch.randn(2, 256, 4, 5), torch.randn(2, 256, 1, 1)]
    for logits in head(images).cls_logits:
        probabilities = logits.sigmoid()
        torch.testing.assert_close(
            probabilities, torch.full_like(probabilities, 0.01), rtol=0.1, atol=0
        )


def test_fresh_weights_are_normal_and_biases_zero() -> None:
    torch.manual_seed(0)
    head = RetinaNetHead(channels=64, num_anchors=9, num_classes=3)
    for name, parameter in head.named_parameters():
        if name.endswith("weight"):
            assert abs(float(parameter.detach().std()) - 0.01) < 0.001, name
        elif "cls_logits" not in name:
            assert parameter.eq(0).all(), name


def test_outputs_in_channels_last_share_the_convolutions_memory() -> None:
    head = small_head(num_classes=4)  # an even number of channels, see padded_to_even
    maps: list[Tensor] = []
    for layer in (head.classification_head.cls_logits, head.regression_head.bbox_reg):
        layer.register_forward_hook(lambda _module, _inputs, output: maps.append(output))
    images = [level.to(memory_format=torch.channels_last) for level in features()]
    outputs = head(images)
    views = [*outputs.cls_logits, *outputs.bbox_regression]
    assert [view.data_ptr() for view in views] == [output.data_ptr() for output in maps]


@pytest.mark.parametrize("num_classes", [91, 6])
def test_bf16_gradients_ignore_what_follows_the_logits_in_memory(num_classes: int) -> None:
    """oneDNN's kernel for an odd channel count reads past the gradient: see padded_to_even."""
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=num_classes)
    level = torch.randn(1, 256, 5, 5).to(memory_format=torch.channels_last)
    level.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        [logits] = head([level]).cls_logits
    # The gradient that backward is given: a part of a buffer that goes on with NaN.
    buffer = torch.full((logits.numel() + 64,), torch.nan, dtype=logits.dtype)
    buffer[: logits.numel()] = 1.0
    logits.backward(buffer[: logits.numel()].view_as(logits))
    assert level.grad is not None
    assert level.grad.isfinite().all()


def test_an_odd_number_of_logits_is_computed_exactly() -> None:
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=91)
    level = torch.randn(1, 256, 5, 5)
    with torch.no_grad():
        plain = head([level]).cls_logits[0]
    torch.testing.assert_close(head([level]).cls_logits[0], plain)
