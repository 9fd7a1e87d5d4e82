import math

import pytest
import torch

from retinanet.loss.detection import l1_box_loss_sum
from retinanet.model.anchors import encode_boxes

ANCHORS = torch.tensor([[0.0, 0.0, 10.0, 20.0], [5.0, 5.0, 15.0, 15.0], [0.0, 0.0, 8.0, 8.0]])


def test_value_worked_out_by_hand() -> None:
    # Box (0, 10, 20, 20) from the first anchor: deltas (.5, .25, ln 2, -ln 2); predicted are zeros.
    classes = torch.tensor([[-1, -2, -1], [3, -1, -2]])
    box = torch.tensor([[0.0, 10.0, 20.0, 20.0]])
    loss = l1_box_loss_sum(torch.zeros(2, 3, 4), classes, box, anchors=ANCHORS)
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.75 + 2 * math.log(2)]))


def test_exact_predictions_cost_nothing() -> None:
    boxes = ANCHORS + torch.tensor([1.0, 2.0, 3.0, 5.0])
    deltas = encode_boxes(boxes, ANCHORS).unsqueeze(0)
    loss = l1_box_loss_sum(deltas, torch.tensor([[0, 1, 2]]), boxes, anchors=ANCHORS)
    assert loss.tolist() == [0.0]


def test_only_foreground_anchors_get_gradients_even_beside_nan() -> None:
    deltas = torch.full((1, 3, 4), math.nan)
    deltas[0, 1] = 9.0
    deltas.requires_grad_()
    classes = torch.tensor([[-1, 0, -2]])
    loss = l1_box_loss_sum(deltas, classes, ANCHORS[1:2], anchors=ANCHORS)
    assert loss.tolist() == [36.0]
    loss.sum().backward()
    assert deltas.grad is not None
    assert deltas.grad[0].tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


def test_no_foreground_is_zero_with_zero_gradients() -> None:
    deltas = torch.randn(2, 3, 4, requires_grad=True)
    loss = l1_box_loss_sum(deltas, torch.full((2, 3), -1), torch.zeros(0, 4), anchors=ANCHORS)
    assert loss.tolist() == [0.0, 0.0]
    loss.sum().backward()
    assert deltas.grad is not None
    assert deltas.grad.eq(0).all()


def test_boxes_that_do_not_fit_the_classes_are_our_bug() -> None:
    with pytest.raises(AssertionError, match="2 boxes for 1 foreground"):
        l1_box_loss_sum(
            torch.zeros(1, 3, 4), torch.tensor([[0, -1, -1]]), ANCHORS[:2], anchors=ANCHORS
        )
