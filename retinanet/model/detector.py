"""RetinaNet-ResNeXt50: images in, class logits and box deltas of every anchor out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from retinanet.model.anchors import ANCHORS_PER_LOCATION, anchors_for
from retinanet.model.heads import HeadOutputs, RetinaNetHead
from retinanet.model.pyramid import PYRAMID_CHANNELS, BackboneWithFPN
from retinanet.model.state_keys import rename_old_keys


class RetinaNet(nn.Module):
    """The network of Lin et al., "Focal Loss for Dense Object Detection", as MLPerf trains it.

    `num_classes` counts the outputs K of every anchor; there is none for background beyond what
    the label numbering brings. `norm` ("frozen" or "batch") and `trainable_layers` (0 to 5) are
    the backbone's, see ResNeXtBody. Loss and post-processing are functions beside the model.

    Names in `state_dict` are those of `torchvision.models.detection.RetinaNet` with a
    resnext50_32x4d FPN backbone. `load_state_dict` also takes torchvision's older spellings, the
    prefix `module.`, and checkpoints of the other `norm`.
    """

    def __init__(
        self, *, num_classes: int, norm: str = "frozen", trainable_layers: int = 3
    ) -> None:
        """Raises InputError for an unknown `norm` or a `trainable_layers` outside 0 to 5."""
        super().__init__()
        self.backbone = BackboneWithFPN(norm=norm, trainable_layers=trainable_layers)
        self.head = RetinaNetHead(
            channels=PYRAMID_CHANNELS, num_anchors=ANCHORS_PER_LOCATION, num_classes=num_classes
        )
        self._anchor_geometry: tuple[object, ...] = ()
        self._anchors: list[Tensor] = []
        self.register_load_state_dict_pre_hook(_accept_old_keys)

    def forward(self, images: Tensor) -> HeadOutputs:
        """`images`: [N, 3, H, W] float, normalized with ImageNet's mean and deviation."""
        outputs: HeadOutputs = self.head(self.backbone(images))
        return outputs

    def anchors(
        self, image_size: tuple[int, int], feature_sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """`anchors_for` on the model's device; the last geometry is kept, and must not be changed.

        Sizes are (height, width). Returns float32 [H * W * 9, 4] xyxy pixels for each level.
        """
        device = self.head.regression_head.bbox_reg.weight.device
        geometry = (image_size, tuple(feature_sizes), device)
        if geometry != self._anchor_geometry:
            # Tensors made in inference mode could not be used in a training step later.
            with torch.inference_mode(mode=False):
                self._anchors = anchors_for(image_size, feature_sizes, device=device)
            self._anchor_geometry = geometry
        return self._anchors


def _accept_old_keys(
    _module: nn.Module, state_dict: dict[str, Any], prefix: str, *_unused: object
) -> None:
    rename_old_keys(state_dict, prefix)
