"""The feature pyramid on top of the backbone: P3 to P7."""

from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from retinanet.model.backbone import ResNeXtBody

BODY_CHANNELS = [512, 1024, 2048]
PYRAMID_CHANNELS = 256


class BackboneWithFPN(nn.Module):
    """A body and its pyramid, with torchvision's parameter names `body.*` and `fpn.*`.

    P6 and P7 are made from P5 by strided convolutions (torchvision's LastLevelP6P7 with 256 input
    channels, as MLPerf's reference). Convolutions start Kaiming-uniform with a=1, biases 0.
    """

    def __init__(self, *, norm: str, trainable_layers: int) -> None:
        super().__init__()
        self.body = ResNeXtBody(norm=norm, trainable_layers=trainable_layers)
        self.fpn = FeaturePyramidNetwork(
            BODY_CHANNELS,
            PYRAMID_CHANNELS,
            extra_blocks=LastLevelP6P7(PYRAMID_CHANNELS, PYRAMID_CHANNELS),
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """[N, 3, H, W] normalized images to P3 … P7, each [N, 256, h, w], strides 8 to 128."""
        return list(self.fpn(self.body(images)).values())
