import pytest
import torch

from retinanet.model.anchors import anchors_for
from retinanet.model.matching import anchor_shapes, nearby_anchors

GEOMETRIES = [
    ((128, 160), [(16, 20), (8, 10), (4, 5), (2, 3), (1, 2)]),
    ((160, 32), [(20, 4), (10, 2), (5, 1), (3, 1), (2, 1)]),
    ((16, 16), [(2, 2), (1, 1), (1, 1), (1, 1), (1, 1)]),
]
IMAGE_SIZE = (800, 800)
ANCHORS = anchors_for(IMAGE_SIZE, [(100, 100), (50, 50), (25, 25), (13, 13), (7, 7)])


@pytest.mark.parametrize(("image_size", "feature_sizes"), GEOMETRIES)
def test_grids_rebuild_every_anchor(
    image_size: tuple[int, int], feature_sizes: list[tuple[int, int]]
) -> None:
    anchors = anchors_for(image_size, feature_sizes)
    shapes = anchor_shapes(anchors)
    rebuilt = torch.full((sum(map(len, anchors)), 4), torch.nan)
    for center, size, step, last, first in zip(*shapes, strict=True):
        columns = int(last[0]) + 1
        for row in range(int(last[1]) + 1):
            for column in range(columns):
                place = center + step * torch.tensor([column, row])
                corners = torch.cat((place - size / 2, place + size / 2))
                rebuilt[first + 9 * (row * columns + column)] = corners.float()
    assert torch.equal(rebuilt, torch.cat(anchors))


def test_neighbours_of_a_box_worked_out_by_hand() -> None:
    # P3's square of 32, moved by 1: beside it, those that overlap at least as much as 30 of 32
    # pixels in one direction would have to lie less than 2 pixels away; steps are 8.
    anchors = anchors_for((64, 64), [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)])
    square = 9 * (4 * 8 + 3) + 3
    box = anchors[0][square] + torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = nearby_anchors(anchor_shapes(anchors), box[None], iou=0.9)
    assert found.tolist() == [square]


def test_few_anchors_are_looked_at() -> None:
    boxes = torch.tensor([[100.0, 100.0, 140.0, 140.0], [50.0, 60.0, 700.0, 650.0]])
    found = nearby_anchors(anchor_shapes(ANCHORS), boxes, iou=0.4)
    assert 10 < len(found) < 400  # of 120,087
    assert torch.equal(found, found.unique())


@pytest.mark.parametrize(
    "box",
    [
        [100.0, 100.0, 100.0, 140.0],  # no area
        [5000.0, 5000.0, 5100.0, 5100.0],  # touches nothing
    ],
)
def test_a_box_that_overlaps_nothing_finds_nothing(box: list[float]) -> None:
    assert len(nearby_anchors(anchor_shapes(ANCHORS), torch.tensor([box]), iou=0.4)) == 0


def test_no_boxes_find_nothing() -> None:
    found = nearby_anchors(anchor_shapes(ANCHORS), torch.zeros(0, 4), iou=0.4)
    assert found.shape == (0,)
    assert found.dtype == torch.int64
