"""torchvision's RetinaNet with our backbone, and the names that older releases gave its weights."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision.models import resnext50_32x4d
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.ops.feature_pyramid_network import LastLevelP6P7


def torchvision_retinanet(
    outputs: int,
    *,
    trainable_layers: int = 3,
    norm: Callable[..., nn.Module] = nn.BatchNorm2d,
    **options: Any,
) -> RetinaNet:
    """Return the model with random weights."""
    body = resnext50_32x4d(weights=None, norm_layer=norm)
    last = LastLevelP6P7(256, 256)
    backbone = _resnet_fpn_extractor(
        body, trainable_layers, returned_layers=[2, 3, 4], extra_blocks=last
    )
    return RetinaNet(backbone, outputs, **options)


def old_spelling(key: str) -> str:
    """Return a key as in older releases and MLPerf's reference; written out, not computed."""
    for block in range(3):
        for kind in ("inner", "layer"):
            key = key.replace(f"{kind}_blocks.{block}.0.", f"{kind}_blocks.{block}.")
    for new, old in (("0.0", "0"), ("1.0", "2"), ("2.0", "4"), ("3.0", "6")):
        key = key.replace(f"_head.conv.{new}.", f"_head.conv.{old}.")
    return key
