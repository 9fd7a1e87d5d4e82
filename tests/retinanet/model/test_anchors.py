import pytest
import torch
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import clip_boxes_to_image

from retinanet.model.anchors import (
    anchors_for,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    feature_sizes_of,
)
from retinanet.model.retinanet import RetinaNet

GEOMETRIES = [
    ((128, 128), [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]),
    ((800, 800), [(100, 100), (50, 50), (25, 25), (13, 13), (7, 7)]),
    ((97, 161), [(13, 21), (7, 11), (4, 6), (2, 3), (1, 2)]),
]


def test_feature_sizes_are_those_of_the_network() -> None:
    with torch.device("meta"):
        model = RetinaNet(num_classes=2)
        for image_size in ((64, 64), (96, 96), (160, 160), (608, 800), (1056, 96), (800, 800)):
            images = torch.empty(1, 3, *image_size)
            assert model(images).feature_sizes == feature_sizes_of(image_size)


@pytest.mark.parametrize(("image_size", "feature_sizes"), GEOMETRIES)
def test_anchors_are_torchvisions_numbers(
    image_size: tuple[int, int], feature_sizes: list[tuple[int, int]]
) -> None:
    sizes = tuple(
        (s, int(s * 2 ** (1 / 3)), int(s * 2 ** (2 / 3))) for s in (32, 64, 128, 256, 512)
    )
    generator = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5)
    images = ImageList(torch.zeros(1, 3, *image_size), [image_size])
    expected = generator(images, [torch.zeros(1, 1, *size) for size in feature_sizes])[0]
    anchors = anchors_for(image_size, feature_sizes)
    assert [len(level) for level in anchors] == [9 * h * w for h, w in feature_sizes]
    assert all(level.dtype == torch.float32 for level in anchors)
    assert torch.equal(torch.cat(anchors), expected)


def test_a_missing_level_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match="P3 to P7"):
        anchors_for((64, 64), [(8, 8)] * 4)


@pytest.mark.slow
def test_the_model_caches_anchors_outside_its_state() -> None:
    model = RetinaNet(num_classes=2)
    first_geometry, second_geometry = GEOMETRIES[0], GEOMETRIES[2]
    with torch.inference_mode():
        first = model.anchors(*first_geometry)
    assert not first[0].is_inference()
    assert model.anchors(*first_geometry) is first
    second = model.anchors(*second_geometry)
    assert torch.equal(second[0], anchors_for(*second_geometry)[0])
    assert torch.equal(model.anchors(*first_geometry)[0], first[0])
    assert not any("anchor" in key for key in model.state_dict())


def random_boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 80
    sizes = torch.rand(count, 2, generator=generator) * 60 + 1
    return torch.cat((corners, corners + sizes), dim=1)


def test_encode_and_decode_equal_torchvisions_coder() -> None:
    coder = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
    boxes, anchors = random_boxes(200, seed=4), random_boxes(200, seed=5)
    torch.testing.assert_close(encode_boxes(boxes, anchors), coder.encode_single(boxes, anchors))
    deltas = torch.randn(200, 4, generator=torch.Generator().manual_seed(6)) * 4
    torch.testing.assert_close(decode_boxes(deltas, anchors), coder.decode_single(deltas, anchors))


def test_clip_moves_boxes_inside_height_and_width() -> None:
    boxes = torch.tensor([[-5.0, -6.0, 70.0, 80.0], [3.0, 4.0, 5.0, 6.0]])
    clipped = clip_boxes(boxes, (40, 60))
    assert clipped.tolist() == [[0.0, 0.0, 60.0, 40.0], [3.0, 4.0, 5.0, 6.0]]
    assert torch.equal(clipped, clip_boxes_to_image(boxes, (40, 60)))
