import math

import pytest
import torch

from retinanet.model import HeadOutputs, anchors_for, postprocess

IMAGE_SIZE = (64, 64)
FEATURE_SIZES = [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
NUM_CLASSES = 3


def silent_outputs(num_images: int = 1) -> HeadOutputs:
    """Every score 0.0067 (logit -5), every box its anchor."""
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


def test_nothing_found_is_an_empty_result() -> None:
    for found in postprocess(silent_outputs(2), anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE):
        assert found.boxes.shape == (0, 4)
        assert found.scores.shape == found.labels.shape == (0,)
        assert found.labels.dtype == torch.int64


def test_scores_that_are_not_numbers_are_not_reported() -> None:
    outputs = silent_outputs()
    outputs.cls_logits[0].fill_(math.nan)
    found = postprocess(outputs, anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE)[0]
    assert len(found.boxes) == 0


def test_one_confident_anchor_is_reported_with_its_class_and_clipped() -> None:
    outputs = silent_outputs()
    outputs.cls_logits[0][0, 3, 2] = 0.0  # first place of P3, the square of 32: (-16, -16, 16, 16)
    found = postprocess(outputs, anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE)[0]
    assert found.boxes.tolist() == [[0.0, 0.0, 16.0, 16.0]]
    assert found.scores.tolist() == [0.5]
    assert found.labels.tolist() == [2]


def test_suppression_is_within_a_class_and_keeps_the_best() -> None:
    outputs = silent_outputs()
    place = 9 * (4 * 8 + 4)  # well inside the image
    outputs.cls_logits[0][0, place + 3, 1] = 1.0
    outputs.bbox_regression[0][0, place + 4, 2:] = math.log(32 / 40)  # the same box as place + 3
    outputs.cls_logits[0][0, place + 4, 1] = 2.0
    outputs.cls_logits[0][0, place + 4, 0] = 0.5
    found = postprocess(outputs, anchors_for(IMAGE_SIZE, FEATURE_SIZES), IMAGE_SIZE)[0]
    assert found.labels.tolist() == [1, 0]
    torch.testing.assert_close(found.scores, torch.tensor([2.0, 0.5]).sigmoid())


def test_limits_are_arguments() -> None:
    outputs, anchors = random_outputs(1), anchors_for(IMAGE_SIZE, FEATURE_SIZES)
    everything = postprocess(outputs, anchors, IMAGE_SIZE, nms_iou=1.0)[0]
    assert len(everything.scores) > 100
    few = postprocess(outputs, anchors, IMAGE_SIZE, nms_iou=1.0, detections_per_image=7)[0]
    assert torch.equal(few.scores, everything.scores[:7])
    sure = postprocess(outputs, anchors, IMAGE_SIZE, nms_iou=1.0, score_threshold=0.5)[0]
    assert torch.equal(sure.scores, everything.scores[everything.scores > 0.5])
    one = postprocess(outputs, anchors, IMAGE_SIZE, nms_iou=1.0, candidates_per_level=1)[0]
    assert len(one.scores) == len(FEATURE_SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_float32_sorted_and_batched_equals_single(dtype: torch.dtype) -> None:
    outputs, anchors = random_outputs(3), anchors_for(IMAGE_SIZE, FEATURE_SIZES)
    logits = [level.to(dtype) for level in outputs.cls_logits]
    deltas = [level.to(dtype) for level in outputs.bbox_regression]
    together = postprocess(HeadOutputs(logits, deltas, FEATURE_SIZES), anchors, IMAGE_SIZE)
    for image, found in enumerate(together):
        assert found.boxes.dtype == found.scores.dtype == torch.float32
        assert torch.equal(found.scores, found.scores.sort(descending=True).values)
        one = HeadOutputs(
            [level[image : image + 1] for level in logits],
            [level[image : image + 1] for level in deltas],
            FEATURE_SIZES,
        )
        alone = postprocess(one, anchors, IMAGE_SIZE)[0]
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
