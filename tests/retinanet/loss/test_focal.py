import math

import pytest
import torch
from torchvision.ops import sigmoid_focal_loss

from retinanet.loss import sigmoid_focal_loss_sum


def test_values_worked_out_by_hand() -> None:
    # Logit 0: p = 1/2, cross entropy ln 2, (1 - p_t)^2 = 1/4; alpha .25 for the class, .75 else.
    logits = torch.zeros(2, 2, 3)
    classes = torch.tensor([[1, -1], [-2, -1]])
    unit = math.log(2) / 4
    foreground, background = (0.25 + 2 * 0.75) * unit, 3 * 0.75 * unit
    loss = sigmoid_focal_loss_sum(logits, classes)
    torch.testing.assert_close(loss, torch.tensor([foreground + background, background]))


def test_equals_torchvisions_loss_on_one_hot_targets() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(2, 50, 4) * 4).requires_grad_()
    classes = torch.randint(-2, 4, (2, 50))
    loss = sigmoid_focal_loss_sum(logits, classes, alpha=0.4, gamma=1.5)
    counted = classes != -2
    one_hot = torch.nn.functional.one_hot(classes.clamp(min=-1) + 1, 5)[..., 1:].float()
    expected = torch.stack(
        [
            sigmoid_focal_loss(
                logits[i][counted[i]], one_hot[i][counted[i]], 0.4, 1.5, reduction="sum"
            )
            for i in range(2)
        ]
    )
    torch.testing.assert_close(loss, expected)
    gradient = torch.autograd.grad(loss.sum(), logits)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), logits)[0])


def test_ignored_anchors_contribute_nothing_even_when_not_finite() -> None:
    logits = torch.tensor([[[math.nan], [math.inf], [1.0]]], requires_grad=True)
    loss = sigmoid_focal_loss_sum(logits, torch.tensor([[-2, -2, -1]]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad is not None
    assert logits.grad[0, :2].eq(0).all()
    assert logits.grad[0, 2] > 0


def test_nothing_to_learn_from_is_zero() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = sigmoid_focal_loss_sum(logits, torch.full((2, 3), -2))
    assert loss.tolist() == [0.0, 0.0]
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


def test_confident_answers_cost_nothing_when_right_and_stay_finite_when_wrong() -> None:
    logits = torch.tensor([[[200.0, -200.0]]])
    assert sigmoid_focal_loss_sum(logits, torch.tensor([[0]])).tolist() == [0.0]
    wrong = sigmoid_focal_loss_sum(logits, torch.tensor([[1]]))
    torch.testing.assert_close(wrong, torch.tensor([200.0 * (0.25 + 0.75)]))


def test_bf16_logits_are_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 40, 3).bfloat16()
    classes = torch.randint(-2, 3, (1, 40))
    loss = sigmoid_focal_loss_sum(logits, classes)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, sigmoid_focal_loss_sum(logits.float(), classes))


def test_a_label_beyond_the_classes_is_not_taken_silently() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        sigmoid_focal_loss_sum(torch.zeros(1, 1, 3), torch.tensor([[3]]))
