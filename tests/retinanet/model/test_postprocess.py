import math

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet

from retinanet.model.anchors import anchors_for
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import HeadOutputs

IMAGE_SIZE = (64, 64)
FEATURE_SIZES = [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
NUM_CLASSES = 3


def low_outputs(num_images: int = 1) -> HeadOutputs:
    """Return outputs with scores of 0.0067 (logit -5) and boxes equal to anchors."""
    counts = [9 * h * w for h, w in FEATURE_SIZES]
    return HeadOutputs(
        cls_logits=[torch.full((num_images, count, NUM_CLASSES), -5.0) for count in counts],
        bbox_regression=[torch.zeros(num_images, count, 4) for count in counts],
        feature_sizes=FEATURE_SIZES,
    )


def random_outputs(num_images: int) -> HeadOutputs:
    torch.manual_seed(0)
    counts = [9 * h * w for h, w in FEATURE_SIZES]
    return HeadOutputs(
        cls_logits=[torch.randn(num_images, n, NUM_CLASSES) * 2 - 3 for n in counts],
        bbox_regression=[torch.randn(num_images, n, 4) * 0.5 for n in counts],
        feature_sizes=FEATURE_SIZES,
    )


def test_low_scores_give_no_detections() -> None:
    for detections in postprocess(
        low_outputs(2), anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE
    ):
        assert detections.boxes.shape == (0, 4)
        assert detections.scores.shape == detections.labels.shape == (0,)
        assert detections.labels.dtype == torch.int64


def test_nan_scores_are_not_reported() -> None:
    outputs = low_outputs()
    outputs.cls_logits[0].fill_(math.nan)
    detections = postprocess(outputs, anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE)[0]
    assert len(detections.boxes) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_float32_sorted_and_batched_equals_single(dtype: torch.dtype) -> None:
    outputs, anchors = random_outputs(3), anchors_for(IMAGE_SIZE, FEATURE_SIZES)
    logits = [level.to(dtype) for level in outputs.cls_logits]
    deltas = [level.to(dtype) for level in outputs.bbox_regression]
    together = postprocess(HeadOutputs(logits, deltas, FEATURE_SIZES), anchors, IMAGE_SIZE)
    for image, detections in enumerate(together):
        assert detections.boxes.dtype == detections.scores.dtype == torch.float32
        assert torch.equal(detections.scores, detections.scores.sort(descending=True).values)
        single = HeadOutputs(
            [level[image : image + 1] for level in logits],
            [level[image : image + 1] for level in deltas],
            FEATURE_SIZES,
        )
        alone = postprocess(single, anchors, IMAGE_SIZE)[0]
        assert all(torch.equal(a, b) for a, b in zip(detections, alone, strict=True))


class NoBackbone(nn.Module):
    """The part of a backbone that torchvision's constructor reads."""

    out_channels = 1


def torchvision_detections(
    outputs: HeadOutputs, image_size: tuple[int, int], candidates_per_level: int
) -> list[dict[str, Tensor]]:
    """Return torchvision's detections of float32 copies of the outputs."""
    model = TorchvisionRetinaNet(NoBackbone(), 1, topk_candidates=candidates_per_level)
    head_outputs = {
        "cls_logits": [level.float() for level in outputs.cls_logits],
        "bbox_regression": [level.float() for level in outputs.bbox_regression],
    }
    num_images = len(outputs.cls_logits[0])
    anchors = [anchors_for(image_size, outputs.feature_sizes)] * num_images
    detections: list[dict[str, Tensor]] = model.postprocess_detections(
        head_outputs, anchors, [image_size] * num_images
    )
    return detections


def assert_equal(detections: list[Detections], expected: list[dict[str, Tensor]]) -> None:
    for ours, theirs in zip(detections, expected, strict=True):
        assert torch.equal(ours.scores, theirs["scores"])
        assert torch.equal(ours.labels, theirs["labels"])
        assert torch.equal(ours.boxes, theirs["boxes"])


def many_classes(mean_logit: float) -> HeadOutputs:
    torch.manual_seed(3)
    feature_sizes = [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
    counts = [9 * h * w for h, w in feature_sizes]
    return HeadOutputs(
        cls_logits=[torch.randn(2, n, 264) + mean_logit for n in counts],
        bbox_regression=[torch.randn(2, n, 4) * 0.1 for n in counts],
        feature_sizes=feature_sizes,
    )


@pytest.mark.parametrize(
    ("mean_logit", "candidates_per_level"),
    [(-5.0, 1000), pytest.param(-1.0, 300, marks=pytest.mark.slow)],
    ids=["few_pass", "nearly_all_pass"],
)
def test_detections_of_many_classes_are_torchvisions(
    mean_logit: float, candidates_per_level: int
) -> None:
    outputs = many_classes(mean_logit)
    anchors = anchors_for((128, 128), outputs.feature_sizes)
    detections = postprocess(
        outputs, anchors, (128, 128), candidates_per_level=candidates_per_level
    )
    assert [len(image.scores) for image in detections] == [300, 300]
    expected = torchvision_detections(outputs, (128, 128), candidates_per_level)
    assert_equal(detections, expected)


def test_detections_from_bf16_are_torchvisions_from_float32_copies() -> None:
    outputs = many_classes(-9.0)
    # 280 different BF16 numbers, so that the order of equal scores does not matter.
    different = torch.arange(16256 - 70, 16256 + 70, dtype=torch.int16).view(torch.bfloat16)
    different = torch.cat((different, -different))
    generator = torch.Generator().manual_seed(0)
    logits = [level.bfloat16() for level in outputs.cls_logits]
    for image in range(2):
        places = torch.randperm(logits[0][0].numel(), generator=generator)[: len(different)]
        logits[0][image].view(-1)[places] = different
    deltas = [level.bfloat16() for level in outputs.bbox_regression]
    in_bf16 = HeadOutputs(logits, deltas, outputs.feature_sizes)
    anchors = anchors_for((128, 128), outputs.feature_sizes)
    expected = torchvision_detections(in_bf16, (128, 128), 1000)
    detections = postprocess(in_bf16, anchors, (128, 128))
    assert 100 < len(detections[0].scores) <= 280
    assert_equal(detections, expected)


def one_level(logits: Tensor) -> HeadOutputs:
    """A single image and level; `logits` [A, K]; every box its anchor."""
    return HeadOutputs([logits[None]], [torch.zeros(1, len(logits), 4)], [(1, 1)])


def separate_anchors(count: int) -> Tensor:
    corners = torch.stack((torch.arange(count) * 4.0, torch.zeros(count)), dim=1)
    return torch.cat((corners, corners + 3), dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threshold", [0.0, 1e-30, 0.05, 0.3, 0.5, 0.75, 0.999, 1 - 1e-8, 1.0])
def test_the_threshold_is_on_float32_scores_whatever_the_logits(
    dtype: torch.dtype, threshold: float
) -> None:
    # The nearest numbers on both sides of the threshold's logit, one in each anchor.
    safe = min(max(threshold, 1e-30), 1 - 1e-7)
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    middle = torch.tensor(math.log(safe / (1 - safe)), dtype=dtype).view(integer)
    steps = torch.arange(-60, 61, dtype=integer) * (4 if dtype == torch.float32 else 1)
    values = (middle + steps if safe != 0.5 else steps.abs()).view(dtype)
    extremes = torch.tensor([-math.inf, -200.0, -90.0, 0.0, 90.0, math.inf], dtype=dtype)
    logits = torch.cat((values, extremes))[:, None]
    expected = logits[:, 0].float().sigmoid()
    expected = expected[expected > threshold].sort(descending=True).values
    anchors = [separate_anchors(len(logits))]
    detections = postprocess(one_level(logits), anchors, (4, 4000), score_threshold=threshold)[0]
    assert torch.equal(detections.scores, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nan", [math.nan, -math.nan])
@pytest.mark.parametrize("candidates_per_level", [1000, 2])
def test_scores_beside_nan_in_an_anchor_are_reported(
    dtype: torch.dtype, nan: float, candidates_per_level: int
) -> None:
    logits = torch.full((40, 3), -1.0, dtype=dtype)
    logits[5] = torch.tensor([-2.5, nan, -9.0])
    logits[7] = torch.tensor([nan, nan, nan])
    logits[8] = torch.tensor([nan, 1.5, nan])
    logits[9] = torch.tensor([2.0, nan, -9.0])
    anchors = [separate_anchors(len(logits))]
    limits = {"candidates_per_level": candidates_per_level, "nms_iou": 1.0}
    detections = postprocess(one_level(logits), anchors, (4, 4000), **limits)[0]  # type: ignore[arg-type]
    expected = logits.float().sigmoid().flatten().nan_to_num(nan=0.0).sort(descending=True).values
    expected = expected[expected > 0.05][:candidates_per_level]
    assert torch.equal(detections.scores, expected)
    assert detections.labels[:2].tolist() == [0, 1]


def test_the_last_class_is_suppressed_as_exactly_as_the_first() -> None:
    # IoU .50003 and .49997: 264 classes moved apart in float32 would lose the difference.
    anchors = torch.tensor(
        [
            [700.0, 700.0, 710.0, 710.0],
            [700.0, 700.0, 710.0, 705.0003],
            [600.0, 700.0, 610.0, 710.0],
            [600.0, 700.0, 610.0, 704.9997],
        ]
    )
    logits = torch.full((4, 264), -9.0)
    logits[:, 0] = logits[:, 263] = torch.tensor([2.0, 1.0, 0.5, 0.0])
    detections = postprocess(one_level(logits), [anchors], (800, 800))[0]
    for label in (0, 263):
        scores = detections.scores[detections.labels == label]
        torch.testing.assert_close(scores, torch.tensor([2.0, 0.5, 0.0]).sigmoid())


def test_many_suppressed_boxes_do_not_hide_poorer_ones() -> None:
    logits = torch.full((50, 2), -9.0)
    logits[:40, 0] = torch.linspace(5, 4, 40)  # all of one box
    logits[40:, 1] = torch.linspace(3, 2, 10)
    anchors = torch.cat((torch.tensor([[0.0, 0.0, 3.0, 3.0]]).expand(40, 4), separate_anchors(10)))
    detections = postprocess(one_level(logits), [anchors], (4, 4000), detections_per_image=5)[0]
    expected = torch.tensor([5.0, *torch.linspace(3, 2, 10)[:4].tolist()]).sigmoid()
    torch.testing.assert_close(detections.scores, expected)
    assert detections.labels.tolist() == [0, 1, 1, 1, 1]
