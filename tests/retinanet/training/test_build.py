from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torchvision.models import resnext50_32x4d

from common.errors import InputError
from retinanet.config_file import SHIPPED, load_config
from retinanet.config_sections import ModelConfig
from retinanet.model.postprocess import postprocess
from retinanet.model.retinanet import RetinaNet
from retinanet.preflight.run import check_backbone
from retinanet.training.build import (
    build_model,
    dropped_parts,
    notes_on_backbone,
    read_backbone_weights,
    require_trainable_start,
    starting_weights,
)
from retinanet.training.published import published_name
from tests.support.commands import error_message


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in SHIPPED.glob("*.yaml")))
def test_shipped_config_builds_a_detector_that_trains_the_configured_stages(name: str) -> None:
    settings = load_config(name).model
    num_classes = settings.num_classes or 264
    model = build_model(settings, num_classes=num_classes, weights=None)
    body = model.backbone.body
    stages = ["layer4", "layer3", "layer2", "layer1", "conv1"]
    trained = {
        stage
        for stage in stages
        if any(weight.requires_grad for weight in body.get_submodule(stage).parameters())
    }
    assert trained == set(stages[: settings.trainable_layers])
    types = {type(module).__name__ for module in model.modules()}
    assert ("BatchNorm2d" in types) == (settings.norm == "batch")
    assert ("FrozenBatchNorm2d" in types) == (settings.norm == "frozen")
    assert body.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        outputs = model.eval()(torch.rand(1, 3, 64, 64))
    assert [logits.shape[2] for logits in outputs.cls_logits] == [num_classes] * 5
    anchors = model.anchors((64, 64), outputs.feature_sizes)
    [detections] = postprocess(outputs, anchors, (64, 64), score_threshold=0.0)
    assert 0 < len(detections.boxes) <= 300 and detections.labels.max() < num_classes


@pytest.mark.slow
def test_weights_of_a_file_reach_the_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state_dict = dict(resnext50_32x4d(weights=None).state_dict())
    assert dropped_parts(state_dict) == ""
    file = tmp_path / "a.safetensors"
    save_file(state_dict, file)
    settings = ModelConfig(pretrained_backbone=str(file))
    model = build_model(settings, num_classes=3, weights=starting_weights(settings))
    file.unlink()  # 100 MB
    body = model.backbone.body.state_dict()
    assert body.keys() < state_dict.keys()
    assert all(torch.equal(body[name], state_dict[name]) for name in body)
    assert body["layer4.2.conv3.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_dropped_parts_of_a_whole_detector_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "detector.safetensors"
    save_file(RetinaNet(num_classes=2).state_dict(), file)
    settings = ModelConfig(pretrained_backbone=str(file))
    check = check_backbone(settings)
    assert check.level == "ok" and "backbone.fpn (16)" in check.detail
    [note] = notes_on_backbone(str(file), starting_weights(settings))
    for part in (str(file), "backbone.fpn (16)", "classification_head (10)"):
        assert part in note


def build_error(settings: ModelConfig) -> str:
    """Return the one-line error of building a model from a file."""
    message = error_message(
        lambda: build_model(settings, num_classes=3, weights=starting_weights(settings))
    )
    assert message.startswith(f"model.pretrained_backbone: {settings.pretrained_backbone}")
    return message


WHOLE = save({"a": torch.zeros(1000)})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"", "cannot be read"),
        (b"PK\x03\x04 cut", "cannot be read"),
        (b"hello" * 9, "cannot be read"),
        (WHOLE[: len(WHOLE) // 2], "cannot be read"),
        (save({"bn1.bias": torch.tensor([0, torch.nan])}), "bn1.bias contains a value that is not"),
        (save({"conv1.weight": torch.zeros(64, 3, 7, 7)}), "key bn1.weight is missing"),
    ],
)
def test_unusable_weights_are_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    if content is not None:
        file.write_bytes(content)
    assert problem in build_error(ModelConfig(pretrained_backbone=str(file)))


def test_random_weights_need_no_file() -> None:
    assert starting_weights(ModelConfig(norm="batch", trainable_layers=5)) is None


@pytest.mark.parametrize(
    ("norm", "trainable_layers", "field"),
    [
        ("frozen", 5, "model.norm: frozen"),
        ("batch", 3, "model.trainable_layers: 3"),
        ("frozen", 0, "model.trainable_layers: 0"),
    ],
)
def test_frozen_random_weights_are_refused(norm: str, trainable_layers: int, field: str) -> None:
    options = {"norm": norm, "trainable_layers": trainable_layers}
    message = error_message(require_trainable_start, None, **options)
    assert message.startswith(field)
    assert "model.pretrained_backbone" in message
    assert "model.norm=batch model.trainable_layers=5" in message
    require_trainable_start("a file", norm=norm, trainable_layers=trainable_layers)


def test_unknown_file_in_torchs_cache_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published_name(b"") is None and published_name(b"resnext50_32x4d-7cdf4587") is None
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / "resnext50_32x4d-7cdf4587.pth"
    file.parent.mkdir(parents=True)
    torch.save({"a": torch.zeros(3)}, file)
    with pytest.raises(InputError, match="hash differs") as caught:
        read_backbone_weights("torchvision", backbone="resnext50_32x4d")
    assert str(file) in str(caught.value) and file.exists()


def test_failed_download_names_url_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a proxy that refuses connections
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    message = error_message(read_backbone_weights, "torchvision", backbone="resnext50_32x4d")
    assert "could not be downloaded" in message and f"copy it to {tmp_path}" in message
    assert "download.pytorch.org" in message
