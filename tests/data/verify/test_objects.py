"""Boxes that no anchor matches, the proposed image size, and the picture of a data set."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torchvision.ops import box_iou

from common.charts import new_figure
from common.errors import InputError
from data.annotations import ImageSize, Resize, TrainingRules
from data.coco_json import Entries, entries_of_index
from data.findings import Findings
from data.verify import objects
from data.verify.annotations import check_boxes
from data.verify.chart import draw_boxes_per_image, draw_ranks
from data.verify.objects import (
    MARGIN,
    AnchorRule,
    describe_objects,
    format_proposal,
    propose_size,
)
from retinanet.model.anchors import anchors_for, feature_sizes_of
from retinanet.verify_command import anchor_rule
from tests.data.formats.written import random_annotations
from tests.data.verify.small_set import Content, small_content, verify, write_splits

SIZE = 256


@pytest.fixture(scope="module")
def rule() -> AnchorRule:
    return anchor_rule()


def boxes_of_all_kinds(count: int, *, image_size: int, seed: int = 0) -> NDArray[np.float64]:
    """Return boxes of all sizes and shapes inside the square."""
    random = np.random.default_rng(seed)
    sides = np.exp(random.uniform(np.log(2), np.log(image_size), (count, 2)))
    corners = random.random((count, 2)) * (image_size - sides)
    return np.concatenate([corners, corners + sides], axis=1)


@pytest.mark.parametrize("image_size", [96, 256, 608])
def test_best_iou_is_that_of_all_anchors(rule: AnchorRule, image_size: int) -> None:
    boxes = boxes_of_all_kinds(400, image_size=image_size)
    anchors = torch.cat(anchors_for((image_size,) * 2, feature_sizes_of((image_size,) * 2)))
    expected = box_iou(torch.from_numpy(boxes), anchors.double()).amax(dim=1)
    np.testing.assert_allclose(
        rule.best_ious(boxes, (image_size, image_size)), expected.numpy(), rtol=1e-6
    )


@pytest.mark.parametrize("resize", ["square", "letterbox"])
def test_boxes_of_turned_images_are_compared_with_turned_anchors(
    rule: AnchorRule, resize: Resize
) -> None:
    boxes, rules = boxes_of_all_kinds(50, image_size=100), TrainingRules(image_size=(96, 160))
    upright = entries_with(boxes, sides=(100, 150))  # width and height
    found = describe_objects(upright, rule, replace(rules, resize=resize))
    scales = (96 / 100, 160 / 150) if resize == "square" else (96 / 100, 96 / 100)
    anchors = torch.cat(anchors_for((160, 96), feature_sizes_of((160, 96))))
    scaled = torch.from_numpy(boxes * np.tile(scales, 2))
    expected = box_iou(scaled, anchors.double()).amax(dim=1)
    np.testing.assert_allclose(found.best_ious, expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(640, 480)] * 18 + [(640, 427), (480, 640)], (480, 640)),  # width and height
        ([(480, 640)] * 20, (640, 480)),
        ([(1920, 1080)] * 19 + [(500, 500)], (384, 640)),
        ([(500, 500)] * 5 + [(640, 480)] * 15, 640),
    ],
)
def test_letterbox_gets_the_shape_of_the_images(
    shapes: list[tuple[int, int]], expected: ImageSize
) -> None:
    entries = entries_with(np.tile([0.0, 0, 9, 9], (len(shapes), 1)), sides=(1, 1))
    entries.widths, entries.heights = np.array(shapes, dtype=np.int32).T
    entries.image_of_box = np.arange(len(shapes), dtype=np.int32)
    better = AnchorRule(
        lambda boxes, size: np.full(len(boxes), max(size) >= 640, dtype=np.float32),
        *(0.5, 32.0, 800.0, 2.0),
    )
    proposal = propose_size(entries, better, TrainingRules(image_size=800, resize="letterbox"))
    assert proposal.image_size == expected
    pixels = 640**2 if isinstance(expected, int) else expected[0] * expected[1]
    assert proposal.relative_time(proposal.image_size) == pixels / 800**2
    lines = format_proposal(
        proposal, describe_objects(entries, better, TrainingRules(image_size=800))
    )
    written = str(expected).translate({ord("("): "[", ord(")"): "]", ord(" "): None})
    assert any(f"proposed: data.image_size={written} (a step takes 0." in line for line in lines)
    squares = propose_size(entries, better, TrainingRules(image_size=800))
    assert squares.image_size == 640


def test_rule_has_the_detectors_smallest_and_largest_anchors(rule: AnchorRule) -> None:
    anchors = torch.cat(anchors_for((SIZE,) * 2, feature_sizes_of((SIZE, SIZE))))
    sides = anchors[:, 2:] - anchors[:, :2]
    assert rule.iou == 0.5
    assert rule.smallest == pytest.approx(float(sides.prod(dim=1).sqrt().min()))
    assert rule.largest == pytest.approx(float(sides.prod(dim=1).sqrt().max()))
    assert rule.ratio == pytest.approx(float((sides[:, 0] / sides[:, 1]).max()))


def no_overlap(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float32]:
    return np.zeros(len(boxes), dtype=np.float32)


side = st.floats(1, 2000)


@given(box=st.tuples(side, side), anchor=st.tuples(side, side), iou=st.floats(0.2, 0.9))
def test_no_anchor_matches_a_box_beyond_the_most_elongated(
    box: tuple[float, float], anchor: tuple[float, float], iou: float
) -> None:
    ratio = max(anchor[0] / anchor[1], anchor[1] / anchor[0])
    limit = AnchorRule(no_overlap, iou, 1, 1, ratio).most_elongated
    if max(box[0] / box[1], box[1] / box[0]) > limit * (1 + 1e-9):
        inner = min(box[0], anchor[0]) * min(box[1], anchor[1])
        assert inner / (box[0] * box[1] + anchor[0] * anchor[1] - inner) <= iou + 1e-9


def test_most_elongated_box_is_matched_by_an_anchor_that_sticks_out_equally() -> None:
    assert AnchorRule(no_overlap, 0.5, 1, 1, 2.0).most_elongated == 4.5
    box, anchor = (4.5, 1.0), (3.0, 1.5)  # ratios 4.5 and 2; each sticks out by a factor of 1.5
    inner = 3.0 * 1.0
    assert inner / (box[0] * box[1] + anchor[0] * anchor[1] - inner) == pytest.approx(0.5)


def entries_with(boxes: NDArray[np.float64], *, sides: tuple[int, int]) -> Entries:
    """Return one image with such boxes."""
    count = len(boxes)
    made = random_annotations(images=1, boxes=count, size=sides)
    return entries_of_index(replace(made, boxes=boxes))


def test_boxes_are_counted_by_the_reason(rule: AnchorRule) -> None:
    at_anchor = [64 - 16, 64 - 16, 64 + 16, 64 + 16]
    small, elongated = [9, 9, 19, 19], [0, 50, 200, 60]
    entries = entries_with(np.array([at_anchor, small, elongated], float), sides=(SIZE, SIZE))
    counts = describe_objects(entries, rule, TrainingRules(image_size=SIZE)).counts(rule)
    expected = {"boxes": 3, "below_iou": 2, "elongated": 1, "small": 1, "large": 0, "between": 0}
    assert counts == expected | {"without_overlap": 0}
    # The same at four times the size: the small box is as large as an anchor.
    counts = describe_objects(entries, rule, TrainingRules(image_size=4 * SIZE)).counts(rule)
    assert (counts["below_iou"], counts["elongated"], counts["small"]) == (1, 1, 0)
    counts = describe_objects(
        entries_with(np.array([[0.0, 0, SIZE, SIZE]]), sides=(SIZE, SIZE)),
        rule,
        TrainingRules(image_size=1600),
    ).counts(rule)
    assert counts["large"] == counts["below_iou"] == 1


@pytest.mark.parametrize(("resize", "elongated"), [("square", 1), ("letterbox", 0)])
def test_shapes_are_those_on_the_networks_square(
    rule: AnchorRule, resize: Resize, elongated: int
) -> None:
    # A square box of a photo six times as wide as high.
    entries = entries_with(np.array([[0.0, 0, 90, 90]]), sides=(600, 100))
    found = describe_objects(entries, rule, TrainingRules(image_size=600, resize=resize))
    assert found.counts(rule)["elongated"] == elongated
    assert found.ratios.tolist() == pytest.approx([1 / 6 if elongated else 1.0])


def test_crowds_and_boxes_that_training_leaves_out_do_not_count(
    rule: AnchorRule,
) -> None:
    made = random_annotations(images=4, boxes=20)
    made.box_is_crowd[3] = True
    made.boxes[5, 2] = made.boxes[5, 0]
    entries = entries_of_index(made)
    check_boxes(entries, Findings(), TrainingRules(image_size=SIZE))
    assert len(describe_objects(entries, rule, TrainingRules(image_size=SIZE)).sizes) == 18


def fake_rule(is_low: Callable[[NDArray[np.float64], int], NDArray[np.bool_]]) -> AnchorRule:
    """Return anchors that match boxes as a function says."""
    return AnchorRule(
        lambda boxes, size: np.where(is_low(boxes, size[0]), 0.0, 1.0).astype(np.float32),
        *(0.5, 32.0, 800.0, 2.0),
    )


def test_proposed_size_is_the_smallest_nearly_as_good_as_the_best() -> None:
    # Boxes of 1 to 100 pixels at 1600, matched from 20 pixels on.
    sides = np.arange(1, 101)
    boxes = np.stack([np.zeros(100), np.zeros(100), sides, sides], axis=1).astype(float)
    entries = entries_with(boxes, sides=(1600, 1600))
    low = fake_rule(lambda boxes, size: boxes[:, 2] < 20)
    proposal = propose_size(entries, low, TrainingRules(image_size=800))
    assert proposal.shares[1600] == pytest.approx(0.19)
    assert proposal.best == 1600
    # One more of the hundred boxes may lack an anchor: that of 20 pixels.
    assert proposal.image_size == 1536 and proposal.shares[1536] == pytest.approx(0.2)
    assert proposal.relative_time(1536) == pytest.approx(1.92**2)
    sizes = [size for size, _, _ in proposal.rows()]
    assert sizes == sorted(sizes) and {800, 1536, 1600} <= set(sizes)


@pytest.mark.parametrize(("current", "best"), [(32, 32), (64, 160), (128, 352), (3200, 1600)])
def test_proposed_size_has_a_price_that_can_be_paid(current: int, best: int) -> None:
    boxes = np.array([[0, 0, 9, 9]], dtype=float)
    entries = entries_with(boxes, sides=(1600, 1600))
    never = fake_rule(lambda boxes, size: np.full(len(boxes), size < best))
    proposal = propose_size(entries, never, TrainingRules(image_size=current))
    assert proposal.image_size == best and proposal.relative_time(best) <= 8
    described = describe_objects(entries, never, TrainingRules(image_size=current))
    line = next(line for line in format_proposal(proposal, described) if "proposed: " in line)
    price = f" (a step takes {(best / current) ** 2:.2g} times as long)" if best != current else ""
    assert f"data.image_size={best}{price}, the smallest" in line


def test_ticks_of_counts_are_whole_numbers() -> None:
    entries = entries_with(np.array([[0, 0, 9, 9]], dtype=float), sides=(100, 100))
    entries.class_counts = np.array([[1], [0], [1]])
    for draw in (draw_boxes_per_image, draw_ranks):
        axes = new_figure(height=4).subplots()
        draw(axes, {"train": entries})
        ticks = axes.get_xticks()
        assert (ticks == np.round(ticks)).all(), draw.__name__


def test_sample_of_many_boxes_is_near_all_of_them(
    rule: AnchorRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = boxes_of_all_kinds(4000, image_size=1000)
    entries = entries_with(boxes, sides=(1000, 1000))
    monkeypatch.setattr(objects, "SIZES", (256, 512))
    whole = propose_size(entries, rule, TrainingRules(image_size=256))
    monkeypatch.setattr(objects, "SAMPLE", 1000)
    sampled = propose_size(entries, rule, TrainingRules(image_size=256))
    assert (whole.sampled, sampled.sampled) == (4000, 1000)
    for size in (256, 512):
        # Four deviations of a share of 1000.
        assert sampled.shares[size] == pytest.approx(whole.shares[size], abs=0.064)
        described = describe_objects(entries, rule, TrainingRules(image_size=size))
        assert whole.shares[size] == described.counts(rule)["below_iou"] / 4000


def test_report_has_objects_and_proposed_size(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    _, report = verify(config, no_images=True)
    found = report["splits"]["train"]["objects"]
    # 20×10 boxes of images of 64×48 pixels, stretched to 64×64.
    assert found["boxes"] == found["below_iou"] == found["small"] == 12
    assert found["size"]["p50"] == pytest.approx((20 * 10 * 64 / 48) ** 0.5, rel=1e-5)
    assert found["ratio"]["p50"] == pytest.approx(1.5, rel=1e-5)
    proposed = report["proposed_image_size"]
    least = min(proposed["shares_without_anchor"].values())
    share = proposed["shares_without_anchor"][str(proposed["image_size"])]
    assert share <= least + MARGIN and proposed["image_size"] > 64
    assert proposed["relative_step_time"] == (proposed["image_size"] / 64) ** 2


def test_split_without_boxes_has_no_objects(tmp_path: Path) -> None:
    content = small_content() | {"annotations": []}
    config, *_ = write_splits(tmp_path, content, content)
    _, report = verify(config, no_images=True, chart=tmp_path / "objects.png")
    assert report["proposed_image_size"] is None
    assert report["splits"]["train"]["objects"] is None
    assert not (tmp_path / "objects.png").exists()


def with_classes(count: int) -> Content:
    """Return the small set with many more classes, most of them without boxes."""
    content = small_content()
    more = [{"id": 100 + n, "name": f"kind of a long name $x$ <{n}>"} for n in range(count)]
    return content | {"categories": [*content["categories"], *more]}


@pytest.mark.parametrize("classes", [0, 30, 261])
@pytest.mark.parametrize("name", ["objects.png", "objects.svg"])
def test_picture_has_any_number_of_classes(tmp_path: Path, classes: int, name: str) -> None:
    content = with_classes(classes)
    config, *_ = write_splits(tmp_path, content, content)
    verify(config, no_images=True, chart=tmp_path / name)
    if name.endswith(".png"):
        assert Image.open(tmp_path / name).size == (1430, 924)
        return
    text = (tmp_path / name).read_text()
    for words in (
        "kind 3",
        "proposed: ",
        "size of the boxes at 64×64",
        "train: 6 images, 12 boxes",
    ):
        assert words in text
    assert ("most and least frequent of" in text) == (classes > 0)


def test_picture_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        verify(config, no_images=True, chart=tmp_path / "small.yaml" / "x.png")
    (tmp_path / "mine.png").write_text("mine")
    with pytest.raises(InputError, match="give --chart another file"):
        verify(config, no_images=True, chart=tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_text() == "mine"
