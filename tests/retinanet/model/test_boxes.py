import math

import torch
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.transform import resize_boxes as torchvision_resize_boxes
from torchvision.ops import clip_boxes_to_image

from retinanet.model.anchors import clip_boxes, decode_boxes, encode_boxes, resize_boxes


def random_boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 80
    sizes = torch.rand(count, 2, generator=generator) * 60 + 1
    return torch.cat((corners, corners + sizes), dim=1)


def test_deltas_worked_out_by_hand() -> None:
    anchor = torch.tensor([[0.0, 0.0, 10.0, 20.0]])  # centre (5, 10), size (10, 20)
    box = torch.tensor([[0.0, 10.0, 20.0, 20.0]])  # centre (10, 15), size (20, 10)
    deltas = torch.tensor([[0.5, 0.25, math.log(2), -math.log(2)]])
    torch.testing.assert_close(encode_boxes(box, anchor), deltas)
    torch.testing.assert_close(decode_boxes(deltas, anchor), box)


def test_an_anchor_is_its_own_box_at_zero_deltas() -> None:
    anchors = random_boxes(20, seed=1)
    assert torch.equal(encode_boxes(anchors, anchors), torch.zeros(20, 4))
    torch.testing.assert_close(decode_boxes(torch.zeros(20, 4), anchors), anchors)


def test_decode_undoes_encode() -> None:
    boxes, anchors = random_boxes(200, seed=2), random_boxes(200, seed=3)
    decoded = decode_boxes(encode_boxes(boxes, anchors), anchors)
    torch.testing.assert_close(decoded, boxes, rtol=1e-5, atol=1e-4)


def test_encode_and_decode_equal_torchvisions_coder() -> None:
    coder = BoxCoder(weights=(1.0, 1.0, 1.0, 1.0))
    boxes, anchors = random_boxes(200, seed=4), random_boxes(200, seed=5)
    torch.testing.assert_close(encode_boxes(boxes, anchors), coder.encode_single(boxes, anchors))
    deltas = torch.randn(200, 4, generator=torch.Generator().manual_seed(6)) * 4
    torch.testing.assert_close(decode_boxes(deltas, anchors), coder.decode_single(deltas, anchors))


def test_huge_size_deltas_are_capped() -> None:
    anchor = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    decoded = decode_boxes(torch.tensor([[0.0, 0.0, 1e4, 1e4]]), anchor)
    torch.testing.assert_close(decoded, torch.tensor([[-492.0, -492.0, 508.0, 508.0]]))


def test_no_boxes_make_no_boxes() -> None:
    empty = torch.zeros(0, 4)
    assert encode_boxes(empty, empty).shape == (0, 4)
    assert decode_boxes(empty, empty).shape == (0, 4)
    assert clip_boxes(empty, (10, 20)).shape == (0, 4)
    assert resize_boxes(empty, (10, 20), (20, 20)).shape == (0, 4)


def test_clip_moves_boxes_inside_height_and_width() -> None:
    boxes = torch.tensor([[-5.0, -6.0, 70.0, 80.0], [3.0, 4.0, 5.0, 6.0]])
    clipped = clip_boxes(boxes, (40, 60))
    assert clipped.tolist() == [[0.0, 0.0, 60.0, 40.0], [3.0, 4.0, 5.0, 6.0]]
    assert torch.equal(clipped, clip_boxes_to_image(boxes, (40, 60)))


def test_resize_scales_x_by_width_and_y_by_height() -> None:
    boxes = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    resized = resize_boxes(boxes, (10, 20), (30, 10))
    assert resized.tolist() == [[0.5, 6.0, 1.5, 12.0]]
    many = random_boxes(50, seed=7)
    torch.testing.assert_close(
        resize_boxes(many, (427, 640), (320, 320)),
        torchvision_resize_boxes(many, (427, 640), (320, 320)),
    )
