"""The whole detector against torchvision's, with the same weights, images and boxes."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.ops import FrozenBatchNorm2d

from retinanet.loss.detection import detection_loss
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import RetinaNet
from tests.support.torchvision_models import torchvision_retinanet

pytestmark = pytest.mark.slow

NUM_CLASSES = 5
HEIGHT, WIDTH = 128, 160

NO_BOXES = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
BOXES = [
    {
        "boxes": torch.tensor(
            [[3.0, 5.0, 70.5, 90.25], [60.0, 8.0, 158.0, 120.0], [20.0, 100.0, 29.0, 113.0]]
        ),
        "labels": torch.tensor([1, 4, 0]),
    },
    {"boxes": torch.tensor([[10.0, 12.0, 150.0, 60.0]]), "labels": torch.tensor([2])},
]


class Pair(NamedTuple):
    """Our model and torchvision's, with equal weights."""

    ours: RetinaNet
    reference: TorchvisionRetinaNet


def torchvision_model() -> TorchvisionRetinaNet:
    # Identity in place of torchvision's resizing and normalization.
    return torchvision_retinanet(
        NUM_CLASSES,
        norm=FrozenBatchNorm2d,
        min_size=HEIGHT,
        max_size=WIDTH,
        image_mean=[0.0, 0.0, 0.0],
        image_std=[1.0, 1.0, 1.0],
    )


@pytest.fixture(scope="module")
def pair() -> Pair:
    torch.manual_seed(0)
    ours, reference = RetinaNet(num_classes=NUM_CLASSES), torchvision_model()
    state = ours.state_dict()
    for key, value in state.items():
        if ".bn" in key or "downsample.1" in key:  # frozen norms other than the identity
            if key.endswith("running_mean") or key.endswith("bias"):
                value.normal_(std=0.2)
            else:
                value.uniform_(0.4, 1.2)
    # Fresh heads would give 0.01 everywhere and boxes equal to anchors.
    for key, value in state.items():
        if key.startswith("head.") and key.endswith("weight"):
            value.normal_(std=0.04 if ".conv." in key else 0.01)
    state["head.regression_head.bbox_reg.weight"].mul_(0.1)
    state["head.classification_head.cls_logits.bias"].fill_(-2.5)
    reference.load_state_dict(state, strict=True)
    return Pair(ours, reference)


@pytest.fixture(scope="module")
def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, HEIGHT, WIDTH)


@pytest.mark.parametrize(
    "targets",
    [
        BOXES,
        [NO_BOXES, NO_BOXES],
        pytest.param([BOXES[0], NO_BOXES], marks=pytest.mark.exhaustive),
    ],
)
def test_losses_and_every_gradient_are_torchvisions(
    pair: Pair, images: Tensor, targets: list[dict[str, Tensor]]
) -> None:
    pair.ours.train().zero_grad()
    pair.reference.train().zero_grad()
    outputs = pair.ours(images)
    anchors = pair.ours.anchors((HEIGHT, WIDTH), outputs.feature_sizes)
    losses = detection_loss(outputs, anchors, targets)
    expected = pair.reference(list(images), targets)
    assert set(losses) == set(expected)
    for name in losses:
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-5, atol=0)
    sum(losses.values(), torch.zeros(())).backward()
    sum(expected.values(), torch.zeros(())).backward()
    reference = dict(pair.reference.named_parameters())
    compared = 0
    for name, parameter in pair.ours.named_parameters():
        gradient, wanted = parameter.grad, reference[name].grad
        assert (gradient is None) == (wanted is None), name
        if gradient is None or wanted is None:
            continue
        assert (gradient - wanted).norm() <= 1e-4 * wanted.norm(), name
        compared += bool(wanted.any())
    if any(len(target["boxes"]) for target in targets):
        assert compared == sum(p.requires_grad for p in pair.ours.parameters())


def detections_of_both(
    pair: Pair, images: Tensor, detections_per_image: int
) -> tuple[list[Detections], list[dict[str, Tensor]]]:
    pair.ours.eval()
    pair.reference.eval()
    pair.reference.detections_per_img = detections_per_image
    with torch.no_grad():
        outputs = pair.ours(images)
        anchors = pair.ours.anchors((HEIGHT, WIDTH), outputs.feature_sizes)
        ours = postprocess(
            outputs, anchors, (HEIGHT, WIDTH), detections_per_image=detections_per_image
        )
        above = (outputs.cls_logits[0].sigmoid() > 0.05).flatten(1).sum(dim=1)
        assert above.gt(1000).all(), "the limit of candidates must bite"
        assert above.lt(outputs.cls_logits[0][0].numel()).all(), "the threshold must bite"
        return ours, pair.reference(list(images))


@pytest.mark.parametrize(("detections_per_image", "limit_bites"), [(300, True), (5000, False)])
def test_detections_are_torchvisions(
    pair: Pair, images: Tensor, detections_per_image: int, limit_bites: bool
) -> None:
    ours, reference = detections_of_both(pair, images, detections_per_image)
    for detections, expected in zip(ours, reference, strict=True):
        assert (len(detections.scores) == detections_per_image) == limit_bites
        assert 100 < len(detections.scores) < 2000, "suppression must bite"
        assert len(detections.labels.unique()) > 1
        assert torch.equal(detections.labels, expected["labels"])
        torch.testing.assert_close(detections.scores, expected["scores"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(detections.boxes, expected["boxes"], rtol=1e-5, atol=1e-3)
