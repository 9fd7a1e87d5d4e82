"""The two towers that are run on every level of the pyramid, with shared weights."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PRIOR_PROBABILITY = 0.01
"""Foreground probability of a fresh model everywhere (Lin et al., Focal Loss, section 4.1)."""

TOWER_DEPTH = 4


class HeadOutputs(NamedTuple):
    """What the network says of a batch of N images, one entry for each of P3 to P7."""

    cls_logits: list[Tensor]
    """[N, H * W * 9, K] for each level."""
    bbox_regression: list[Tensor]
    """[N, H * W * 9, 4] for each level: (dx, dy, dw, dh) from the anchor, see `encode_boxes`."""
    feature_sizes: list[tuple[int, int]]
    """(H, W) of each level."""


class ClassificationHead(nn.Module):
    """Logits of every class at every anchor; one [N, H * W * A, K] for each level."""

    def __init__(self, *, channels: int, num_anchors: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.conv = _tower(channels)
        self.cls_logits = _convolution(channels, num_anchors * num_classes)
        prior_logit = -math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY)
        nn.init.constant_(_bias(self.cls_logits), prior_logit)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """`features`: [N, channels, H, W] for each level."""
        return [
            by_anchor(_convolve_evenly(self.cls_logits, self.conv(level)), self.num_classes)
            for level in features
        ]


class RegressionHead(nn.Module):
    """Box deltas of every anchor; one [N, H * W * A, 4] for each level."""

    def __init__(self, *, channels: int, num_anchors: int) -> None:
        super().__init__()
        self.conv = _tower(channels)
        self.bbox_reg = _convolution(channels, num_anchors * 4)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """`features`: [N, channels, H, W] for each level."""
        return [by_anchor(self.bbox_reg(self.conv(level)), 4) for level in features]


class RetinaNetHead(nn.Module):
    """Both towers. Parameter names are those of torchvision's RetinaNetHead without norms."""

    def __init__(self, *, channels: int, num_anchors: int, num_classes: int) -> None:
        super().__init__()
        self.classification_head = ClassificationHead(
            channels=channels, num_anchors=num_anchors, num_classes=num_classes
        )
        self.regression_head = RegressionHead(channels=channels, num_anchors=num_anchors)

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        """`features`: [N, channels, H, W] for each level."""
        return HeadOutputs(
            cls_logits=self.classification_head(features),
            bbox_regression=self.regression_head(features),
            feature_sizes=[(level.shape[2], level.shape[3]) for level in features],
        )


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    """3x3, same size, weights N(0, 0.01), biases 0."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
    nn.init.normal_(convolution.weight, std=0.01)
    nn.init.zeros_(_bias(convolution))
    return convolution


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None
    return convolution.bias


def _convolve_evenly(convolution: nn.Conv2d, features: Tensor) -> Tensor:
    """A 3x3 convolution, exact and safe for an odd number of output channels too.

    oneDNN 3.7's BF16 backward-data kernel takes channels in pairs. Where the last is single, it
    multiplies what follows the gradient in memory by zero: if that is NaN by chance, so is the
    gradient. COCO's 91 classes × 9 anchors are odd. A channel of zero weights makes them even.
    """
    bias = _bias(convolution)
    if len(bias) % 2 == 0 or not torch.is_grad_enabled():
        maps: Tensor = convolution(features)
        return maps
    weight = F.pad(convolution.weight, (0, 0, 0, 0, 0, 0, 0, 1))
    return F.conv2d(features, weight, F.pad(bias, (0, 1)), padding=1)[:, : len(bias)]


def _tower(channels: int) -> nn.Sequential:
    # A Sequential in each place gives torchvision's key `conv.0.0.weight`.
    return nn.Sequential(
        *(
            nn.Sequential(_convolution(channels, channels), nn.ReLU(inplace=True))
            for _ in range(TOWER_DEPTH)
        )
    )


def by_anchor(maps: Tensor, values: int) -> Tensor:
    """[N, A * values, H, W] as [N, H * W * A, values]: a view where `maps` is channels_last."""
    return maps.permute(0, 2, 3, 1).reshape(maps.shape[0], -1, values)
