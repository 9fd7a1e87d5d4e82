import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.models import resnext50_32x4d
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from retinanet.model.retinanet import HeadOutputs, RetinaNet

NUM_CLASSES = 5


def fresh_model(norm: str = "frozen", seed: int = 0) -> RetinaNet:
    torch.manual_seed(seed)
    return RetinaNet(num_classes=NUM_CLASSES, norm=norm).eval()


def answers(model: RetinaNet) -> HeadOutputs:
    torch.manual_seed(7)
    with torch.no_grad():
        outputs: HeadOutputs = model(torch.randn(1, 3, 64, 64))
    return outputs


def assert_same_answers(model: RetinaNet, other: RetinaNet) -> None:
    ours, theirs = answers(model), answers(other)
    for level, expected in zip(
        ours.cls_logits + ours.bbox_regression,
        theirs.cls_logits + theirs.bbox_regression,
        strict=True,
    ):
        assert torch.equal(level, expected)


def old_spelling(key: str) -> str:
    """As older torchvision releases spell it; written out, not computed."""
    for block in range(3):
        for kind in ("inner", "layer"):
            key = key.replace(f"{kind}_blocks.{block}.0.", f"{kind}_blocks.{block}.")
    for tower in ("classification_head", "regression_head"):
        for new, old in (("0.0", "0"), ("1.0", "2"), ("2.0", "4"), ("3.0", "6")):
            key = key.replace(f"{tower}.conv.{new}.", f"{tower}.conv.{old}.")
    return key


@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_state_dict_keys_and_shapes_are_torchvisions(norm: str) -> None:
    model = fresh_model(norm)
    norm_layer = type(model.backbone.body.bn1)
    body = resnext50_32x4d(weights=None, norm_layer=norm_layer)
    backbone = _resnet_fpn_extractor(
        body, 3, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256)
    )
    reference = TorchvisionRetinaNet(backbone, NUM_CLASSES)
    ours = {key: value.shape for key, value in model.state_dict().items()}
    assert ours == {key: value.shape for key, value in reference.state_dict().items()}
    trainable = {name: p.requires_grad for name, p in model.named_parameters()}
    assert trainable == {name: p.requires_grad for name, p in reference.named_parameters()}


@pytest.mark.parametrize(
    "spelling",
    [
        old_spelling,
        lambda key: f"module.{key}",
        lambda key: f"module.{old_spelling(key)}",
        lambda key: key,
    ],
    ids=["old", "module", "old module", "today's"],
)
def test_every_spelling_loads_strictly_and_answers_the_same(spelling: Callable[[str], str]) -> None:
    model, other = fresh_model(seed=1), fresh_model(seed=2)
    renamed = {spelling(key): value for key, value in model.state_dict().items()}
    given = list(renamed)
    other.load_state_dict(renamed)
    assert_same_answers(other, model)
    assert list(renamed) == given, "the caller's dictionary was changed"


def test_old_spellings_differ_from_todays_in_28_names() -> None:
    keys = list(fresh_model().state_dict())
    assert sum(old_spelling(key) != key for key in keys) == 28


def test_loading_stays_strict() -> None:
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
    wrong_classes = RetinaNet(num_classes=NUM_CLASSES + 1).state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch.*cls_logits"):
        model.load_state_dict(wrong_classes)


def test_a_copied_and_a_wrapped_model_take_old_spellings_too() -> None:
    model = fresh_model(seed=1)
    old = {old_spelling(key): value for key, value in model.state_dict().items()}
    other = copy.deepcopy(fresh_model(seed=2))
    other.load_state_dict(old)
    assert_same_answers(other, model)
    inner = fresh_model(seed=3)
    wrapper = torch.nn.Sequential(inner)
    wrapper.load_state_dict({f"0.{key}": value for key, value in old.items()})
    assert_same_answers(inner, model)


@pytest.mark.parametrize("saved_metadata", [True, False])
@pytest.mark.parametrize(("norm", "other_norm"), [("frozen", "batch"), ("batch", "frozen")])
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
    for ours, expected in zip(answers(other).cls_logits, answers(model).cls_logits, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_batched_equals_single() -> None:
    model = fresh_model()
    torch.manual_seed(3)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        together: HeadOutputs = model(images)
        alone = [model(image.unsqueeze(0)) for image in images]
    assert together.feature_sizes == [(8, 12), (4, 6), (2, 3), (1, 2), (1, 1)]
    for level in range(5):
        logits = torch.cat([one.cls_logits[level] for one in alone])
        deltas = torch.cat([one.bbox_regression[level] for one in alone])
        torch.testing.assert_close(together.cls_logits[level], logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.bbox_regression[level], deltas, rtol=1e-4, atol=1e-5)


def test_a_fresh_model_gives_foreground_probability_of_one_percent() -> None:
    with torch.no_grad():
        model = fresh_model("batch").train()
        outputs: HeadOutputs = model(torch.randn(2, 3, 64, 64))
    for level in outputs.cls_logits:
        assert level.sigmoid().sub(0.01).abs().max() < 0.003
