import math

import pytest
import torch

from retinanet.loss.detection import box_loss_sum, detection_loss
from retinanet.model.anchors import anchors_for
from retinanet.model.matching import assign_targets
from retinanet.model.retinanet import HeadOutputs

IMAGE_SIZE = (64, 64)
FEATURE_SIZES = [(8, 8), (4, 4), (2, 2), (1, 1), (1, 1)]
ANCHORS = anchors_for(IMAGE_SIZE, FEATURE_SIZES)
NUM_CLASSES = 3

NO_BOXES = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
TWO_BOXES = {
    "boxes": torch.tensor([[4.0, 6.0, 40.0, 44.0], [30.0, 20.0, 60.0, 62.0]]),
    "labels": torch.tensor([2, 0]),
}
ONE_BOX = {"boxes": torch.tensor([[1.0, 2.0, 30.0, 33.0]]), "labels": torch.tensor([1])}


def random_outputs(num_images: int, dtype: torch.dtype = torch.float32) -> HeadOutputs:
    torch.manual_seed(0)
    return HeadOutputs(
        [torch.randn(num_images, len(a), NUM_CLASSES, dtype=dtype) for a in ANCHORS],
        [torch.randn(num_images, len(a), 4, dtype=dtype) for a in ANCHORS],
        FEATURE_SIZES,
    )


def only_image(outputs: HeadOutputs, image: int) -> HeadOutputs:
    part = slice(image, image + 1)
    return HeadOutputs(
        [level[part] for level in outputs.cls_logits],
        [level[part] for level in outputs.bbox_regression],
        FEATURE_SIZES,
    )


def test_a_batch_is_the_mean_of_its_images() -> None:
    outputs, targets = random_outputs(3), [TWO_BOXES, NO_BOXES, ONE_BOX]
    together = detection_loss(outputs, ANCHORS, targets)
    alone = [
        detection_loss(only_image(outputs, i), ANCHORS, [target])
        for i, target in enumerate(targets)
    ]
    assert set(together) == {"classification", "bbox_regression"}
    for name, loss in together.items():
        torch.testing.assert_close(loss, torch.stack([single[name] for single in alone]).mean())


def test_tensors_are_made_on_the_device_of_the_anchors() -> None:
    outputs, targets = random_outputs(2), [TWO_BOXES, ONE_BOX]
    expected = detection_loss(outputs, ANCHORS, targets, focal_form="reference")
    # What names no device is on another one here, as on a machine with a GPU.
    with torch.device("meta"):
        losses = detection_loss(outputs, ANCHORS, targets, focal_form="reference")
    assert losses == expected


def test_each_image_is_divided_by_its_foreground_anchors_or_one() -> None:
    # All logits 0: an anchor costs .75 u for each class it is not and .25 u for the one it is,
    # u = ln 2 / 4; ignored anchors cost nothing.
    zeros = HeadOutputs(
        [torch.zeros(1, len(a), NUM_CLASSES) for a in ANCHORS],
        [torch.zeros(1, len(a), 4) for a in ANCHORS],
        FEATURE_SIZES,
    )
    classes = torch.cat(assign_targets(ANCHORS, [TWO_BOXES]).classes, dim=1)
    foreground, background = int((classes >= 0).sum()), int((classes == -1).sum())
    assert foreground > 1
    unit = torch.tensor(2.0).log() / 4
    expected = unit * (foreground * (0.25 + 2 * 0.75) + background * 3 * 0.75) / foreground
    loss = detection_loss(zeros, ANCHORS, [TWO_BOXES])
    torch.testing.assert_close(loss["classification"], expected)
    without_boxes = detection_loss(zeros, ANCHORS, [NO_BOXES])["classification"]
    torch.testing.assert_close(without_boxes, unit * 3 * 0.75 * classes.numel())  # divided by 1


def test_a_batch_without_boxes_has_a_finite_loss_and_gradients() -> None:
    outputs = random_outputs(2)
    for level in outputs.cls_logits + outputs.bbox_regression:
        level.requires_grad_()
    loss = detection_loss(outputs, ANCHORS, [NO_BOXES, NO_BOXES])
    assert loss["bbox_regression"].item() == 0.0
    assert loss["classification"].item() > 0
    sum(loss.values(), torch.zeros(())).backward()
    assert all(level.grad is not None and level.grad.any() for level in outputs.cls_logits)
    assert all(not level.grad.any() for level in outputs.bbox_regression if level.grad is not None)
    assert all(level.grad is not None for level in outputs.bbox_regression)


def test_a_nan_logit_makes_the_loss_nan() -> None:
    outputs = random_outputs(1)
    outputs.cls_logits[0][0, 0, 0] = math.nan
    assert detection_loss(outputs, ANCHORS, [NO_BOXES])["classification"].isnan()


def test_the_loss_is_float32_under_autocast() -> None:
    outputs, targets = random_outputs(2, torch.bfloat16), [TWO_BOXES, ONE_BOX]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = detection_loss(outputs, ANCHORS, targets)
    in_float32 = HeadOutputs(
        [level.float() for level in outputs.cls_logits],
        [level.float() for level in outputs.bbox_regression],
        FEATURE_SIZES,
    )
    for name, expected in detection_loss(in_float32, ANCHORS, targets).items():
        assert under_autocast[name].dtype == torch.float32
        assert torch.equal(under_autocast[name], expected)


def test_targets_of_another_batch_size_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="1 targets"):
        detection_loss(random_outputs(2), ANCHORS, [ONE_BOX])


THREE_ANCHORS = torch.tensor([[0.0, 0.0, 10.0, 20.0], [5.0, 5.0, 15.0, 15.0], [0.0, 0.0, 8.0, 8.0]])


def test_box_loss_worked_out_by_hand() -> None:
    # Box (0, 10, 20, 20) from the first anchor: deltas (.5, .25, ln 2, -ln 2); predicted are zeros.
    classes = torch.tensor([[-1, -2, -1], [3, -1, -2]])
    box = torch.tensor([[0.0, 10.0, 20.0, 20.0]])
    loss = box_loss_sum(torch.zeros(2, 3, 4), classes, box, anchors=THREE_ANCHORS)
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.75 + 2 * math.log(2)]))


def test_only_foreground_anchors_get_box_gradients_even_beside_nan() -> None:
    deltas = torch.full((1, 3, 4), math.nan)
    deltas[0, 1] = 9.0
    deltas.requires_grad_()
    classes = torch.tensor([[-1, 0, -2]])
    loss = box_loss_sum(deltas, classes, THREE_ANCHORS[1:2], anchors=THREE_ANCHORS)
    assert loss.tolist() == [36.0]
    loss.sum().backward()
    assert deltas.grad is not None
    assert deltas.grad[0].tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


def test_boxes_that_do_not_fit_the_classes_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="2 boxes for 1 foreground"):
        box_loss_sum(
            torch.zeros(1, 3, 4),
            torch.tensor([[0, -1, -1]]),
            THREE_ANCHORS[:2],
            anchors=THREE_ANCHORS,
        )
