import pytest
import torch

from retinanet.config_file import SHIPPED, load_config
from retinanet.model.postprocess import postprocess
from retinanet.training.build import build_model

SHIPPED_NAMES = sorted(path.name for path in SHIPPED.glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_every_shipped_config_builds_a_model_that_detects(name: str) -> None:
    settings = load_config(name).model
    num_classes = settings.num_classes or 264
    model = build_model(settings, num_classes=num_classes, weights=None).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        outputs = model(images)
    assert [logits.shape[2] for logits in outputs.cls_logits] == [num_classes] * 5
    anchors = model.anchors((64, 64), outputs.feature_sizes)
    [found] = postprocess(outputs, anchors, (64, 64), score_threshold=0.0)
    assert 0 < len(found.boxes) <= 300 and found.labels.max() < num_classes


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_every_shipped_config_trains_the_stages_that_it_says(name: str) -> None:
    settings = load_config(name).model
    model = build_model(settings, num_classes=2, weights=None)
    stages = ["layer4", "layer3", "layer2", "layer1", "conv1"]
    trained = {
        stage
        for stage in stages
        if any(one.requires_grad for one in model.backbone.body.get_submodule(stage).parameters())
    }
    assert trained == set(stages[: settings.trainable_layers])
    names = {type(module).__name__ for module in model.modules()}
    assert ("BatchNorm2d" in names) == (settings.norm == "batch")
    assert ("FrozenBatchNorm2d" in names) == (settings.norm == "frozen")


def test_weights_are_channels_last() -> None:
    model = build_model(load_config("demo").model, num_classes=2, weights=None)
    weight = model.backbone.body.layer1[0].conv2.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
