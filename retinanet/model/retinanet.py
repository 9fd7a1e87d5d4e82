"""RetinaNet: images in, class logits and box deltas of every anchor out.

The backbone's feature pyramid has the levels P3 to P7; two towers with shared weights run on every
level. Parameter names of older checkpoints are turned into today's.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from retinanet.config_types import DEFAULT_ARCHITECTURE, Architecture
from retinanet.model.anchors import ANCHORS_PER_LOCATION, anchors_for
from retinanet.model.backbone import CHANNELS, Body


class HeadOutputs(NamedTuple):
    """The network's outputs for N images, one entry for each of P3 to P7."""

    cls_logits: list[Tensor]  # [N, H * W * 9, K] for each level
    bbox_regression: list[Tensor]
    """[N, H * W * 9, 4] for each level: (dx, dy, dw, dh) from the anchor, see `encode_boxes`."""
    feature_sizes: list[tuple[int, int]]  # (H, W) of each level


class Variant(NamedTuple):
    """What differs between the two RetinaNets of torchvision."""

    p6_input: int  # Channels of what P6 is made from: P5 or C5
    norm_groups: int | None  # Of the group norms after the convolutions of the heads' towers
    box_loss: Literal["l1", "giou"]


PYRAMID_CHANNELS = 256
VARIANTS = {
    "v1": Variant(p6_input=PYRAMID_CHANNELS, norm_groups=None, box_loss="l1"),
    "v2": Variant(p6_input=CHANNELS[-1], norm_groups=32, box_loss="giou"),
}
"""v1 is that of MLPerf's reference and of `retinanet_resnet50_fpn`; v2 `retinanet_resnet50_fpn_v2`,
which follows Zhang et al., "Bridging the Gap Between Anchor-based and Anchor-free Detection"."""


ORIENTATIONS = 2  # An input that is a rectangle is turned for images of the other orientation


class RetinaNet(nn.Module):
    """The network of Lin et al., "Focal Loss for Dense Object Detection", as MLPerf trains it.

    `num_classes` counts the outputs K of every anchor; there is none for background beyond what
    the label numbering brings. `norm` ("frozen" or "batch") and `trainable_layers` (0 to 5) are
    the backbone's, see `Body`; `architecture` names it and the variant. Loss and post-processing
    are functions beside the model.

    Names in `state_dict` are those of `torchvision.models.detection.RetinaNet` with an FPN
    backbone. `load_state_dict` also takes torchvision's older spellings, the
    prefix `module.`, and checkpoints of the other `norm`.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        norm: str = "frozen",
        trainable_layers: int = 3,
        architecture: Architecture = DEFAULT_ARCHITECTURE,
    ) -> None:
        """Raises InputError for an unknown `norm` or a `trainable_layers` outside 0 to 5."""
        super().__init__()
        self.architecture = architecture
        self.variant = VARIANTS[architecture.variant]
        body = Body(architecture.backbone, norm=norm, trainable_layers=trainable_layers)
        self.backbone = BackboneWithFPN(body, p6_input=self.variant.p6_input)
        self.head = RetinaNetHead(
            channels=PYRAMID_CHANNELS,
            num_anchors=ANCHORS_PER_LOCATION,
            num_classes=num_classes,
            norm_groups=self.variant.norm_groups,
        )
        self._anchors: dict[tuple[object, ...], list[Tensor]] = {}
        self.register_load_state_dict_pre_hook(rename_old_keys)

    def forward(self, images: Tensor) -> HeadOutputs:
        """`images`: [N, 3, H, W] float, normalized with ImageNet's mean and deviation."""
        outputs: HeadOutputs = self.head(self.backbone(images))
        return outputs

    def anchors(
        self, image_size: tuple[int, int], feature_sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return `anchors_for` on the model's device; the last two are cached: do not change them.

        Sizes are (height, width). Returns float32 [H * W * 9, 4] xyxy pixels for each level.
        """
        device = self.head.regression_head.bbox_reg.weight.device
        geometry = (image_size, tuple(feature_sizes), device)
        if geometry not in self._anchors:
            while len(self._anchors) >= ORIENTATIONS:
                self._anchors.pop(next(iter(self._anchors)))
            # Tensors made in inference mode could not be used in a training step later.
            with torch.inference_mode(mode=False):
                self._anchors[geometry] = anchors_for(image_size, feature_sizes, device=device)
        return self._anchors[geometry]


PRIOR_PROBABILITY = 0.01
"""Foreground probability of a fresh model everywhere (Lin et al., Focal Loss, section 4.1)."""
TOWER_DEPTH = 4


LOGITS = "head.classification_head.cls_logits"
"""The name of the layer whose outputs are the classes, for each anchor."""


class ClassificationHead(nn.Module):
    """Logits of every class at every anchor: [N, H * W * A, K] for each level."""

    def __init__(
        self, *, channels: int, num_anchors: int, num_classes: int, norm_groups: int | None = None
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.conv = _tower(channels, norm_groups)
        self.cls_logits = _convolution(channels, num_anchors * num_classes)
        prior_logit = -math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY)
        nn.init.constant_(_bias(self.cls_logits), prior_logit)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """`features`: [N, channels, H, W] for each level."""
        maps = [_convolve_evenly(self.cls_logits, self.conv(level)) for level in features]
        return [by_anchor(logits, self.num_classes) for logits in maps]


class RegressionHead(nn.Module):
    """Box deltas of every anchor: [N, H * W * A, 4] for each level."""

    def __init__(self, *, channels: int, num_anchors: int, norm_groups: int | None = None) -> None:
        super().__init__()
        self.conv = _tower(channels, norm_groups)
        self.bbox_reg = _convolution(channels, num_anchors * 4)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """`features`: [N, channels, H, W] for each level."""
        return [by_anchor(self.bbox_reg(self.conv(level)), 4) for level in features]


class RetinaNetHead(nn.Module):
    """Both towers. Parameter names are those of torchvision's RetinaNetHead."""

    def __init__(
        self, *, channels: int, num_anchors: int, num_classes: int, norm_groups: int | None = None
    ) -> None:
        super().__init__()
        self.classification_head = ClassificationHead(
            channels=channels,
            num_anchors=num_anchors,
            num_classes=num_classes,
            norm_groups=norm_groups,
        )
        self.regression_head = RegressionHead(
            channels=channels, num_anchors=num_anchors, norm_groups=norm_groups
        )

    def forward(self, features: Sequence[Tensor]) -> HeadOutputs:
        """`features`: [N, channels, H, W] for each level."""
        return HeadOutputs(
            cls_logits=self.classification_head(features),
            bbox_regression=self.regression_head(features),
            feature_sizes=[(level.shape[2], level.shape[3]) for level in features],
        )


def _convolution(in_channels: int, out_channels: int, *, bias: bool = True) -> nn.Conv2d:
    """Return a 3x3 convolution of the same size, weights N(0, 0.01), biases 0."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=bias)
    nn.init.normal_(convolution.weight, std=0.01)
    if bias:
        nn.init.zeros_(_bias(convolution))
    return convolution


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None
    return convolution.bias


def _convolve_evenly(convolution: nn.Conv2d, features: Tensor) -> Tensor:
    """Compute a 3x3 convolution, with an even number of output channels where it trains."""
    bias = _bias(convolution)
    if len(bias) % 2 == 0 or not torch.is_grad_enabled():
        maps: Tensor = convolution(features)
        return maps
    weight = padded_to_even(convolution.weight, dim=0)
    return F.conv2d(features, weight, padded_to_even(bias, dim=0), padding=1)[:, : len(bias)]


def padded_to_even(tensor: Tensor, *, dim: int) -> Tensor:
    """Return a tensor padded with a channel of zeros along `dim` if their number is odd.

    This works around oneDNN 3.7 (torch 2.8), whose BF16 backward-data convolution takes output
    channels in pairs: where the last is single, it multiplies what follows the gradient in memory
    by zero, and if that is NaN by chance, so is the result. COCO's 91 classes × 9 anchors are odd
    (docs/experiments.md). The padding can go when the oldest torch that is supported has a oneDNN
    with which tests/retinanet/model/test_retinanet.py passes without it.
    """
    if tensor.shape[dim] % 2 == 0:
        return tensor
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, 1))


def _tower(channels: int, norm_groups: int | None) -> nn.Sequential:
    """Return convolutions and ReLUs, with group norms between them unless `norm_groups` is None."""
    layers = []
    for _ in range(TOWER_DEPTH):
        convolution = _convolution(channels, channels, bias=norm_groups is None)
        norms = [] if norm_groups is None else [nn.GroupNorm(norm_groups, channels)]
        # A Sequential in each place gives torchvision's key `conv.0.0.weight`.
        layers.append(nn.Sequential(convolution, *norms, nn.ReLU(inplace=True)))
    return nn.Sequential(*layers)


def by_anchor(maps: Tensor, values: int) -> Tensor:
    """Return [N, A * values, H, W] as [N, H * W * A, values]: a view of channels_last."""
    return maps.permute(0, 2, 3, 1).reshape(maps.shape[0], -1, values)


class BackboneWithFPN(nn.Module):
    """A body and its pyramid, with torchvision's parameter names `body.*` and `fpn.*`.

    P6 and P7 are made by strided convolutions (torchvision's LastLevelP6P7) from P5 or C5, which
    have `p6_input` channels. Convolutions start Kaiming-uniform with a=1, biases 0.
    """

    def __init__(self, body: Body, *, p6_input: int = PYRAMID_CHANNELS) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(
            CHANNELS, PYRAMID_CHANNELS, extra_blocks=LastLevelP6P7(p6_input, PYRAMID_CHANNELS)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return P3 … P7, [N, 256, h, w] of strides 8 to 128, of normalized images [N, 3, H, W]."""
        return list(self.fpn(self.body(images)).values())


_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|model)\.)+")
_OLD_TOWER = re.compile(r"(head\.(?:classification|regression)_head\.conv)\.(\d+)\.(weight|bias)")
_OLD_PYRAMID = re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)")
_TOWER = re.compile(r"(head\.(?:classification|regression)_head\.conv)\.(\d+)\.0\.(weight|bias)")
_PYRAMID = re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.0\.(weight|bias)")


def current_key(key: str) -> str:
    """Return the present spelling of a parameter's name.

    Old are prefixes (`module.` of DistributedDataParallel, `_orig_mod.` of torch.compile, `model.`
    of Lightning and of averages; also several of them), towers in which convolutions
    and ReLUs were counted together (`conv.2.weight`, today `conv.1.0.weight`) and pyramid blocks
    without an inner index (`inner_blocks.0.weight`, today `inner_blocks.0.0.weight`). The latter
    two come from older torchvision releases and from models copied out of them.
    """
    key = _WRAPPERS.sub("", key)
    if tower := _OLD_TOWER.fullmatch(key):
        return f"{tower[1]}.{int(tower[2]) // 2}.0.{tower[3]}"
    if block := _OLD_PYRAMID.fullmatch(key):
        return f"{block[1]}.0.{block[2]}"
    return key


def mlperf_key(key: str) -> str:
    """Return the old spelling of a parameter's name, as in MLPerf's reference implementation."""
    if tower := _TOWER.fullmatch(key):
        key = f"{tower[1]}.{int(tower[2]) * 2}.{tower[3]}"
    elif block := _PYRAMID.fullmatch(key):
        key = f"{block[1]}.{block[2]}"
    return f"module.{key}"


def rename_old_keys(
    _module: nn.Module, state_dict: dict[str, Any], prefix: str, *_unused: object
) -> None:
    """Rename old spellings in place, among the keys that start with `prefix`: a hook of loading.

    If both spellings of a name are there the old one stays, for strict loading to object to.
    """
    for key in [key for key in state_dict if key.startswith(prefix)]:
        new_key = prefix + current_key(key.removeprefix(prefix))
        if new_key not in state_dict:
            state_dict[new_key] = state_dict.pop(key)
