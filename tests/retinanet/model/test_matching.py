import pytest
import torch
from torchvision.models.detection._utils import Matcher
from torchvision.ops import box_iou

from retinanet.model.anchors import anchors_for
from retinanet.model.matching import (
    BACKGROUND,
    BOXES_AT_ONCE,
    IGNORED,
    anchor_shapes,
    assign_targets,
    match_anchors,
    nearby_anchors,
)

FEATURE_SIZES = [(16, 20), (8, 10), (4, 5), (2, 3), (1, 2)]


def random_boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * torch.tensor([140.0, 110.0])
    sizes = torch.rand(count, 2, generator=generator) * 90 + 2
    return torch.cat((corners, corners + sizes), dim=1)


def test_thresholds_worked_out_by_hand() -> None:
    # The box is 10 wide and 10 high; anchors cover its left part, so that IoU is width / 10.
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    widths = [10.0, 5.0, 4.999, 4.0, 3.999, 1.0]
    anchors = torch.tensor([[0.0, 0.0, width, 10.0] for width in widths])
    matches = match_anchors(anchors, box)
    assert matches.dtype == torch.int64
    assert matches.tolist() == [0, 0, IGNORED, IGNORED, BACKGROUND, BACKGROUND]


def test_matches_are_torchvisions() -> None:
    anchors = torch.cat(anchors_for((128, 160), FEATURE_SIZES))
    matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)
    seen = set()
    for seed, count in enumerate([1, 3, 17, BOXES_AT_ONCE, 2 * BOXES_AT_ONCE + 5]):
        boxes = random_boxes(count, seed)
        boxes[-1] = boxes[0]  # of two equal boxes the first one counts, far apart in the list too
        matches = match_anchors(anchors, boxes)
        assert torch.equal(matches, matcher(box_iou(boxes, anchors)))
        seen |= set(matches.clamp(max=0).tolist())
    assert seen == {0, BACKGROUND, IGNORED}


def boxes_of_all_kinds(anchors: torch.Tensor, seed: int) -> torch.Tensor:
    """Tiny to huge, long and thin, at the edges, and some that equal anchors or lie between."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(30, 2, generator=generator).mul(7).exp()
    corners = torch.rand(30, 2, generator=generator) * torch.tensor([800.0, 600.0]) - 20
    some = anchors[torch.randint(len(anchors), (12,), generator=generator)]
    between = some[:4] + torch.tensor([8.0, 0.0, 8.0, 0.0])  # as near to two anchors
    thin = torch.tensor([[3.0, 3.0, 3.001, 600.0], [100.25, 100.0, 100.251, 100.001]])
    whole = torch.tensor([[0.0, 0.0, 800.0, 640.0]])
    # If only the largest anchors reach, and a few of float32's last digits beyond.
    largest_square = anchors[-4, 2:].repeat(2)
    corner = largest_square[None] + torch.tensor([-100.0, -100.0, 50.0, 50.0])
    right = float(anchors[:, 2].max())
    edge = torch.tensor([[right - 2**-12, 300.0, right + 2**-11, 310.0]])
    random = torch.cat((corners, corners + sizes), dim=1)
    boxes = torch.cat((random, some, between, thin, whole, corner, edge))
    return boxes[torch.randperm(len(boxes), generator=generator)]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 8))]
)
def test_assignment_is_torchvisions_matcher_over_all_anchors(seed: int) -> None:
    anchors = anchors_for((640, 800), [(80, 100), (40, 50), (20, 25), (10, 13), (5, 7)])
    all_anchors = torch.cat(anchors)
    many = boxes_of_all_kinds(all_anchors, seed)
    targets = [
        {"boxes": boxes, "labels": torch.arange(len(boxes))} for boxes in (many, many[:1], many[:7])
    ]
    assignment = assign_targets(anchors, targets)
    matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)
    expected = torch.stack([matcher(box_iou(target["boxes"], all_anchors)) for target in targets])
    assert torch.equal(torch.cat(assignment.classes, dim=1), expected)  # a box's label: its index


def test_boxes_that_touch_no_anchor_change_nothing() -> None:
    anchors = anchors_for((128, 160), FEATURE_SIZES)
    outside = torch.tensor([[100.0, 100.0, 100.0, 140.0], [5000.0, 5000.0, 5100.0, 5100.0]])
    some = random_boxes(6, seed=8)
    targets = [
        {"boxes": boxes, "labels": torch.arange(len(boxes))}
        for boxes in (some, torch.cat((some, outside)), some[:0])
    ]
    alone, both, none = torch.cat(assign_targets(anchors, targets).classes, dim=1)
    assert torch.equal(alone, both) and (alone >= 0).any() and (none == BACKGROUND).all()


def test_assignment_holds_labels_and_boxes_of_each_level() -> None:
    anchors = anchors_for((128, 160), FEATURE_SIZES)
    targets = [
        {"boxes": random_boxes(6, seed=8), "labels": torch.tensor([4, 0, 2, 3, 1, 4])},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
        {"boxes": random_boxes(2, seed=9), "labels": torch.tensor([1, 0])},
    ]
    assignment = assign_targets(anchors, targets)
    matches = [match_anchors(torch.cat(anchors), target["boxes"]) for target in targets]
    expected_classes = torch.stack(
        [
            torch.tensor([t["labels"][m].item() if m >= 0 else m for m in match.tolist()])
            for t, match in zip(targets, matches, strict=True)
        ]
    )
    assert torch.equal(torch.cat(assignment.classes, dim=1), expected_classes)
    assert assignment.num_foreground.tolist() == [int((m >= 0).sum()) for m in matches]
    assert assignment.num_foreground[1] == 0
    offset = 0
    for level, classes in enumerate(assignment.classes):
        image, anchor = (classes >= 0).nonzero(as_tuple=True)
        boxes = [
            targets[i]["boxes"][matches[i][offset + a]]
            for i, a in zip(image.tolist(), anchor.tolist(), strict=True)
        ]
        expected = torch.stack(boxes) if boxes else torch.zeros(0, 4)
        assert torch.equal(assignment.boxes[level], expected)
        offset += classes.shape[1]


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
    indices = nearby_anchors(anchor_shapes(anchors), box[None], iou=0.9)
    assert indices.tolist() == [square]


def test_few_anchors_are_near_a_box() -> None:
    boxes = torch.tensor([[100.0, 100.0, 140.0, 140.0], [50.0, 60.0, 700.0, 650.0]])
    indices = nearby_anchors(anchor_shapes(ANCHORS), boxes, iou=0.4)
    assert 10 < len(indices) < 400  # of 120,087
    assert torch.equal(indices, indices.unique())
