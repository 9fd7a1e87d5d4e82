"""torchvision's detectors of COCO's classes: equal to torchvision's own, and a start of a training.

The published files are not at hand: files of the same form with random weights take their places in
torch's cache, and their hashes those of the published ones.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.detection import (
    RetinaNet,
    RetinaNet_ResNet50_FPN_Weights,
    retinanet_resnet50_fpn,
    retinanet_resnet50_fpn_v2,
)

from data.annotations import UNNAMED
from retinanet.__main__ import main
from retinanet.config_file import load_config
from retinanet.config_sections import ModelConfig
from retinanet.config_types import COCO_DETECTORS, Architecture
from retinanet.engine.folded_forward import FoldedForward
from retinanet.loss.detection import detection_loss
from retinanet.model.postprocess import postprocess
from retinanet.model.retinanet import RetinaNet as OurRetinaNet
from retinanet.preflight.run import check_weights
from retinanet.training.build import build_model, starting_weights
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.detector_weights import (
    SourceDetector,
    load_detector,
    match_classes,
    read_detector,
)
from retinanet.training.published import PUBLISHED
from tests.launch.ranks import TrainHere
from tests.support.commands import RunHere, error_message
from tests.support.training_runs import ONE_STEP

pytestmark = pytest.mark.slow

V1, V2 = "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2"
FILES = {
    V1: "retinanet_resnet50_fpn_coco-eeacb38b.pth",
    V2: "retinanet_resnet50_fpn_v2_coco-5905b1c5.pth",
}
COCO_NAMES = RetinaNet_ResNet50_FPN_Weights.COCO_V1.meta["categories"]


def torchvision_model(name: str) -> RetinaNet:
    """Return torchvision's model with weights that give detections, as it is made for its file."""
    torch.manual_seed(0)
    make = {V1: retinanet_resnet50_fpn, V2: retinanet_resnet50_fpn_v2}[name]
    # Identity in place of torchvision's normalization; `min_size` is set for each picture.
    model = make(weights=None, weights_backbone=None, image_mean=[0.0] * 3, image_std=[1.0] * 3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(std=0.2)
            # Small ones, for which an epsilon matters.
            module.running_var.uniform_(0.4, 1.2)[:3] = 1e-4
            module.weight.data.uniform_(0.4, 1.0)[:3] = 1e-2
            module.bias.data.normal_(std=0.2)
            if name == V1:
                module.eps = 0.0  # `overwrite_eps` does so where torchvision loads this file
        elif isinstance(module, nn.GroupNorm):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(std=0.2)
    model.eval()
    model.head.classification_head.cls_logits.bias.data.fill_(-4.5)
    with torch.no_grad():
        outputs = model.head(list(model.backbone(picture(96, 160)).values()))
        model.head.classification_head.cls_logits.weight *= 0.7 / outputs["cls_logits"].std()
        model.head.regression_head.bbox_reg.weight *= 0.2 / outputs["bbox_regression"].std()
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, RetinaNet]:
    return {name: torchvision_model(name) for name in FILES}


@pytest.fixture(scope="module")
def cache(
    models: Mapping[str, RetinaNet], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """torch's cache with both files."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(home))
        for name, file in FILES.items():
            torch.save(models[name].state_dict(), folder / file)
            digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
            patch.setitem(PUBLISHED, file, digest)
        yield folder
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def detectors(cache: Path) -> dict[str, SourceDetector]:
    return {name: read_detector(name) for name in FILES}


def our_model(detector: SourceDetector) -> OurRetinaNet:
    """Return our model with all weights, those of outputs without a class included."""
    name = next(n for n, kind in COCO_DETECTORS.items() if kind == detector.architecture)
    model = build_model(ModelConfig(weights=name), num_classes=91, weights=None)
    model.load_state_dict(dict(detector.tensors))
    return model


def picture(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height + width)
    return torch.randn(1, 3, height, width, generator=generator)


@pytest.mark.parametrize("size", [(96, 160), (192, 64)])
@pytest.mark.parametrize("name", FILES)
def test_losses_and_detections_are_torchvisions(
    name: str,
    size: tuple[int, int],
    models: Mapping[str, RetinaNet],
    detectors: Mapping[str, SourceDetector],
) -> None:
    reference, ours = models[name], our_model(detectors[name])
    reference.transform.min_size, reference.transform.max_size = (min(size),), max(size)
    images = picture(*size)
    forward = FoldedForward(ours, precision="float32")
    with torch.no_grad():
        [expected] = reference.eval()(list(images))
        outputs = forward(images)
    anchors = ours.anchors(size, outputs.feature_sizes)
    [found] = postprocess(outputs, anchors, size)
    assert len(found.scores) > 20 and len(found.labels.unique()) > 1
    assert torch.equal(found.labels, expected["labels"])
    torch.testing.assert_close(found.scores, expected["scores"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.boxes, expected["boxes"], rtol=1e-4, atol=1e-2)
    boxes = torch.tensor([[3.0, 5.0, 50.5, 60.25], [20.0, 10.0, 29.0, 90.0]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 90])}]
    reference.train()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # constant, as frozen norms are
    expected_losses = reference(list(images), targets)
    losses = detection_loss(forward(images), anchors, targets, box_loss=ours.variant.box_loss)
    for key, loss in losses.items():
        torch.testing.assert_close(loss, expected_losses[key], rtol=1e-4, atol=0)
    # Rounding moves values over ReLU's corner, and gradients with them.
    for model, values in ((ours, losses), (reference, expected_losses)):
        model.zero_grad()
        sum(values.values(), torch.zeros(())).backward()
    wanted = dict(reference.named_parameters())
    for key, parameter in ours.named_parameters():
        if parameter.requires_grad:
            gradient, other = parameter.grad, wanted[key].grad
            assert gradient is not None and other is not None
            assert (gradient - other).norm() <= 1e-2 * other.norm(), key


def test_classes_have_coco_names_at_their_outputs(
    detectors: Mapping[str, SourceDetector],
) -> None:
    for name, (box_map, architecture) in {
        V1: (0.364, Architecture("resnet50", "v1")),
        V2: (0.415, Architecture("resnet50", "v2")),
    }.items():
        detector = detectors[name]
        assert (detector.map, detector.architecture) == (box_map, architecture)
        assert detector.names[0] == UNNAMED and len(detector.names) == 91
        assert list(detector.names[1:]) == COCO_NAMES[1:]
        match = match_classes(["Dog", "toothbrush", "crab"], detector.names)
        assert match.outputs == (18, 90, None)


@pytest.mark.parametrize("by_name", [True, False])
def test_published_file_is_converted_without_names_or_trust(
    by_name: bool, cache: Path, tmp_path: Path, run_here: RunHere
) -> None:
    name = V2 if by_name else V1
    given = name if by_name else cache / FILES[name]
    done = run_here(main, "convert", "--detector", given, "--out", tmp_path / "coco")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert f"torchvision's {FILES[name]}, by its hash" in done.stdout
    assert "91 outputs per anchor, 80 of them with a name" in done.stdout
    checkpoint = read_checkpoint(tmp_path / "coco")
    description = checkpoint.model
    assert description.architecture == COCO_DETECTORS[name] and description.resize == "letterbox"
    assert description.classes["names"][18] == "dog"
    assert description.classes["category_ids"] == list(range(91))
    tensors = checkpoint.build_model().state_dict()
    detector = read_detector(name)
    assert all(torch.equal(tensors[key], value) for key, value in detector.tensors.items())


def test_other_file_of_this_kind_needs_trust_and_names(
    models: Mapping[str, RetinaNet],
    detectors: Mapping[str, SourceDetector],
    tmp_path: Path,
    run_here: RunHere,
) -> None:
    file = tmp_path / FILES[V1]  # the name does not matter
    torch.save({**models[V1].state_dict(), "head.regression_head.bbox_reg.bias": torch.ones(36)},
               file)  # fmt: skip
    arguments = ("convert", "--detector", file, "--out", tmp_path / "made")
    done = run_here(main, *arguments)
    assert done.returncode == 2 and "give --trust" in done.stderr
    done = run_here(main, *arguments, "--trust")
    assert done.returncode == 2 and "needs --classes FILE" in done.stderr
    assert not (tmp_path / "made").exists()
    (tmp_path / "names").write_text("\n".join(COCO_NAMES))
    named = (*arguments, "--trust", "--classes", tmp_path / "names", "--norm-epsilon", "0")
    done = run_here(main, *named)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    checkpoint = read_checkpoint(tmp_path / "made")
    assert checkpoint.model.resize == "square"
    assert checkpoint.model.classes["names"] == list(detectors[V1].names)
    assert checkpoint.model.classes["category_ids"] == list(range(91))
    # As for the published file, whose norms are the same.
    key = "backbone.body.bn1.weight"
    tensor = checkpoint.tensors("model.safetensors")[key]
    assert torch.equal(tensor, detectors[V1].tensors[key])
    assert not torch.equal(tensor, models[V1].state_dict()[key])


def test_file_that_is_not_the_published_one_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    config = load_config("demo.yaml", [f"model.weights={V2}"])
    finding = check_weights(config)
    assert finding.level == "warning" and FILES[V2] in finding.detail
    file = tmp_path / "hub" / "checkpoints" / FILES[V2]
    file.parent.mkdir(parents=True)
    file.write_bytes(b"another")
    finding = check_weights(config)
    assert finding.level == "failure" and "its hash differs" in finding.detail
    assert error_message(read_detector, V2).startswith("model.weights: torchvision: ")


def test_backbone_of_imagenet_is_that_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / "resnet50-0676ba61.pth"
    file.parent.mkdir(parents=True)
    network = resnet50(weights=None)
    torch.save(network.state_dict(), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(PUBLISHED, file.name, digest)
    settings = ModelConfig(pretrained_backbone="torchvision", backbone="resnet50")
    model = build_model(settings, num_classes=2, weights=starting_weights(settings))
    assert torch.equal(model.backbone.body.layer4[2].conv3.weight, network.layer4[2].conv3.weight)
    other = ModelConfig(pretrained_backbone="torchvision", backbone="resnet101")
    weights = starting_weights(settings)
    message = error_message(build_model, other, num_classes=2, weights=weights)
    assert "layer3.6.conv1.weight is missing" in message and "model.backbone" in message


def test_run_starts_from_it_with_other_classes_and_keeps_its_architecture(
    detectors: Mapping[str, SourceDetector], tmp_path: Path, train_here: TrainHere
) -> None:
    settings = (*ONE_STEP, f"run.root={tmp_path}")
    start = (*settings, "model.weights=torchvision")
    done = train_here("--config", "demo.yaml", *start)
    assert (done.code, done.errors) == (0, ""), done.errors
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert any("RetinaNet-ResNet50 v2" in line for line in lines)
    assert any(FILES[V2] in line and line.endswith("mAP 0.415") for line in lines), lines
    assert "classes kept 2 of 6: Bus (as bus), Umbrella (as umbrella)" in lines
    run = tmp_path / "tuned"
    checkpoint = read_checkpoint(run)
    assert checkpoint.model.architecture == Architecture("resnet50", "v2")
    card = (checkpoint.folder / "MODEL_CARD.md").read_text()
    assert "- resnet50" in card and "RetinaNet-ResNet50 v2" in card
    trained, given = checkpoint.tensors("model.safetensors"), detectors[V2].tensors
    body = [name for name in given if name.startswith("backbone.body.")]
    assert len(body) == 265 and all(torch.equal(trained[name], given[name]) for name in body)

    other = train_here("--config", "demo.yaml", *settings, "--resume")
    assert other.code == 2 and other.errors.count("\n") == 1
    assert "model.backbone was resnet50, is now resnext50_32x4d" in other.errors

    again = (*settings, f"model.weights={run}", "run.name=again")
    refused = train_here("--config", "demo.yaml", *again)
    assert refused.code == 2 and refused.errors.count("\n") == 1
    assert "needs model.backbone=resnet50 model.variant=v2" in refused.errors


def test_detector_of_another_architecture_is_refused(
    detectors: Mapping[str, SourceDetector],
) -> None:
    model = build_model(ModelConfig(backbone="resnet50"), num_classes=3, weights=None)
    match = match_classes(["dog", "cat", "crab"], detectors[V2].names)
    message = error_message(load_detector, model, detectors[V2], match)
    assert "needs model.backbone=resnet50 model.variant=v2" in message
    assert "has model.backbone=resnet50 model.variant=v1" in message
