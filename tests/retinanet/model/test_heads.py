import pytest
import torch
from torchvision.models.detection.retinanet import RetinaNetHead as TorchvisionHead

from retinanet.model.retinanet import RetinaNetHead

CHANNELS = 8


def small_head(num_classes: int = 3) -> RetinaNetHead:
    torch.manual_seed(0)
    return RetinaNetHead(channels=CHANNELS, num_anchors=9, num_classes=num_classes)


def features() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, CHANNELS, 4, 5), torch.randn(2, CHANNELS, 2, 3)]


def test_outputs_are_torchvisions_level_by_level() -> None:
    head, reference = small_head(), TorchvisionHead(CHANNELS, 9, 3)
    reference.load_state_dict(head.state_dict())
    outputs, expected = head(features()), reference(features())
    assert [tuple(level.shape) for level in outputs.cls_logits] == [(2, 180, 3), (2, 54, 3)]
    assert outputs.feature_sizes == [(4, 5), (2, 3)]
    torch.testing.assert_close(torch.cat(outputs.cls_logits, dim=1), expected["cls_logits"])
    deltas = torch.cat(outputs.bbox_regression, dim=1)
    torch.testing.assert_close(deltas, expected["bbox_regression"])


def test_a_fresh_head_gives_every_anchor_foreground_probability_of_one_percent() -> None:
    torch.manual_seed(0)
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=3)
    images = [torch.randn(2, 256, 4, 5), torch.randn(2, 256, 1, 1)]
    for logits in head(images).cls_logits:
        probabilities = logits.sigmoid()
        torch.testing.assert_close(
            probabilities, torch.full_like(probabilities, 0.01), rtol=0.1, atol=0
        )


def test_fresh_weights_are_normal_and_biases_zero() -> None:
    torch.manual_seed(0)
    head = RetinaNetHead(channels=64, num_anchors=9, num_classes=3)
    for name, parameter in head.named_parameters():
        if name.endswith("weight"):
            assert abs(float(parameter.detach().std()) - 0.01) < 0.001, name
        elif "cls_logits" not in name:
            assert parameter.eq(0).all(), name


def test_outputs_in_channels_last_share_the_convolutions_memory() -> None:
    head = small_head(num_classes=4)  # an even number of channels, see padded_to_even
    maps: list[torch.Tensor] = []
    for layer in (head.classification_head.cls_logits, head.regression_head.bbox_reg):
        layer.register_forward_hook(lambda _module, _inputs, output: maps.append(output))
    images = [level.to(memory_format=torch.channels_last) for level in features()]
    outputs = head(images)
    views = [*outputs.cls_logits, *outputs.bbox_regression]
    assert [view.data_ptr() for view in views] == [output.data_ptr() for output in maps]


@pytest.mark.parametrize("num_classes", [91, 6])
def test_bf16_gradients_ignore_what_follows_the_logits_in_memory(num_classes: int) -> None:
    """oneDNN's kernel for an odd channel count reads past the gradient: see padded_to_even."""
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=num_classes)
    level = torch.randn(1, 256, 5, 5).to(memory_format=torch.channels_last)
    level.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        [logits] = head([level]).cls_logits
    # The gradient that backward is given: a part of a buffer that goes on with NaN.
    buffer = torch.full((logits.numel() + 64,), torch.nan, dtype=logits.dtype)
    buffer[: logits.numel()] = 1.0
    logits.backward(buffer[: logits.numel()].view_as(logits))
    assert level.grad is not None
    assert level.grad.isfinite().all()


def test_an_odd_number_of_logits_is_computed_exactly() -> None:
    head = RetinaNetHead(channels=256, num_anchors=9, num_classes=91)
    level = torch.randn(1, 256, 5, 5)
    with torch.no_grad():
        plain = head([level]).cls_logits[0]
    torch.testing.assert_close(head([level]).cls_logits[0], plain)
