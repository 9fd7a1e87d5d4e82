import pytest
import torch
from torch import nn
from torchvision.models import resnext50_32x4d
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor

from common.errors import InputError
from retinanet.model.backbone import Body, load_pretrained_backbone
from retinanet.model.retinanet import BackboneWithFPN


@pytest.fixture(scope="module")
def classifier_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(resnext50_32x4d(weights=None).state_dict())


@pytest.mark.parametrize("trainable_layers", range(6))
def test_trainable_parameters_are_torchvisions(trainable_layers: int) -> None:
    with torch.device("meta"):  # names only, no numbers
        network = resnext50_32x4d(weights=None)
        reference = _resnet_fpn_extractor(network, trainable_layers, returned_layers=[2, 3, 4])
        body = Body("resnext50_32x4d", norm="batch", trainable_layers=trainable_layers)
    expected = {name: p.requires_grad for name, p in reference.body.named_parameters()}
    assert {name: p.requires_grad for name, p in body.named_parameters()} == expected


@pytest.mark.slow
def test_features_have_strides_8_to_128() -> None:
    backbone = BackboneWithFPN(Body("resnext50_32x4d", norm="frozen", trainable_layers=3))
    shapes = [tuple(level.shape) for level in backbone(torch.zeros(1, 3, 64, 96))]
    assert shapes == [(1, 256, *s) for s in [(8, 12), (4, 6), (2, 3), (1, 2), (1, 1)]]


@pytest.mark.slow
def test_frozen_layers_get_no_gradients_and_their_statistics_do_not_move() -> None:
    torch.manual_seed(0)
    backbone = BackboneWithFPN(Body("resnext50_32x4d", norm="batch", trainable_layers=3))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone.eval().train()
    features = backbone(torch.randn(2, 3, 64, 64))
    torch.stack([level.square().mean() for level in features]).sum().backward()
    frozen = ("conv1", "bn1", "layer1")
    for name, parameter in backbone.body.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen), name
    for name, value in backbone.body.state_dict().items():
        if "running" in name or "num_batches" in name:
            still = torch.equal(value, before[f"body.{name}"])
            assert still == name.startswith(frozen), name


def test_train_mode_applies_to_norms_of_trainable_layers_only() -> None:
    body = Body("resnext50_32x4d", norm="batch", trainable_layers=2)
    norms = {n: m for n, m in body.named_modules() if isinstance(m, nn.BatchNorm2d)}
    body.train()
    training = {name for name, norm in norms.items() if norm.training}
    assert training == {name for name in norms if name.startswith(("layer3", "layer4"))}
    body.eval()
    assert not any(norm.training for norm in norms.values())


@pytest.mark.parametrize("norm", ["frozen", "batch"])
@pytest.mark.parametrize("prefix", ["", "backbone.body."])
def test_pretrained_weights_load_completely(
    classifier_weights: dict[str, torch.Tensor], norm: str, prefix: str
) -> None:
    weights = {prefix + key: value for key, value in classifier_weights.items()}
    if prefix:
        weights = {key: value for key, value in weights.items() if ".fc." not in key}
        weights["head.regression_head.bbox_reg.bias"] = torch.zeros(36)
    body = Body("resnext50_32x4d", norm=norm, trainable_layers=3)
    load_pretrained_backbone(body, weights)
    for key, value in body.state_dict().items():
        assert torch.equal(value, classifier_weights[key]), key


def test_pretrained_weights_without_counters_load_into_batch_norms(
    classifier_weights: dict[str, torch.Tensor],
) -> None:
    weights = {k: v for k, v in classifier_weights.items() if "num_batches" not in k}
    body = Body("resnext50_32x4d", norm="batch", trainable_layers=3)
    load_pretrained_backbone(body, weights)
    assert torch.equal(body.state_dict()["layer4.2.bn3.weight"], weights["layer4.2.bn3.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer1.0.conv1.weight": None}, "key layer1.0.conv1.weight is missing"),
        ({"layer9.weight": torch.zeros(1)}, "unknown key layer9.weight"),
        ({"conv1.weight": torch.zeros(2, 3)}, r"key conv1.weight: shape \[64, 3, 7, 7\] expected"),
    ],
)
def test_wrong_weights_are_an_error_with_the_key_and_change_nothing(
    classifier_weights: dict[str, torch.Tensor],
    change: dict[str, torch.Tensor | None],
    message: str,
) -> None:
    weights = {k: v for k, v in {**classifier_weights, **change}.items() if v is not None}
    body = Body("resnext50_32x4d", norm="frozen", trainable_layers=3)
    before = {name: value.clone() for name, value in body.state_dict().items()}
    with pytest.raises(InputError, match=f"weights.pth: {message}") as raised:
        load_pretrained_backbone(body, weights, source="weights.pth")
    assert "\n" not in str(raised.value)
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"model\.norm: expected one of frozen, batch"):
        Body("resnext50_32x4d", norm="group", trainable_layers=3)
    with pytest.raises(InputError, match=r"model\.trainable_layers: expected 0 to 5, got 6"):
        Body("resnext50_32x4d", norm="frozen", trainable_layers=6)
