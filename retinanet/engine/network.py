"""A RetinaNet's forward pass, arranged for speed: the same numbers, other operators."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FrozenBatchNorm2d

from retinanet.engine.convolution import cast_weight, convolution, convolve, geometry_of
from retinanet.engine.precision import autocast
from retinanet.engine.winograd import choose_winograd, suits_winograd, winograd_convolve
from retinanet.model import HeadOutputs, RetinaNet
from retinanet.model.heads import by_anchor

Norm: TypeAlias = FrozenBatchNorm2d | nn.BatchNorm2d

Around: TypeAlias = Callable[[nn.Module], AbstractContextManager[object]]
"""What surrounds a module's arithmetic, such as a mark in a trace."""

NOTHING = nullcontext()


def nothing_around(module: nn.Module) -> AbstractContextManager[object]:
    """Leave the module's arithmetic as it is."""
    return NOTHING


class FoldedForward:
    """`FoldedForward(model, …)(images)` is `model(images)`, faster, with equal gradients.

    Constant norms are folded into their convolutions, ReLUs and sums overwrite their inputs, and
    weights are cast once a step. What belongs to frozen layers is folded and cast only once.
    The model keeps its parameters, and may be trained, loaded into and saved in between.
    """

    def __init__(self, model: RetinaNet, *, precision: str, convolutions: str = "auto") -> None:
        """Look once at what the machine can do.

        Args:
            precision: "bf16" or "float32", that of convolutions and activations.
            convolutions: "onednn", or "winograd" for the 3×3 ones of heads and pyramid in BF16, or
                "auto"; see `choose_winograd`.

        Raises:
            InputError: `winograd` is asked for, and this machine cannot.
        """
        self._model = model
        self._precision = precision
        self.has_winograd = precision == "bf16" and choose_winograd(convolutions)
        self.around: Around = nothing_around
        """May be changed between two calls. It is not a module's hook, as few modules are called;
        those that are, of blocks whose norms train, come without it."""
        self._frozen: dict[nn.Conv2d, _FrozenConvolution] = {}

    def __call__(self, images: Tensor) -> HeadOutputs:
        """`images`: [N, 3, H, W] float, normalized with ImageNet's mean and deviation."""
        if self._precision == "bf16":
            images = images.bfloat16()
        backbone = self._model.backbone
        with self.around(backbone.body):
            maps = self._body(images)
        with self.around(backbone.fpn):
            levels = self._pyramid(maps)
        with self.around(self._model.head):
            return self._head(levels)

    def _body(self, images: Tensor) -> list[Tensor]:
        body = self._model.backbone.body
        maps = []
        with autocast(self._precision):  # for blocks that run as they are
            if _is_constant(body.bn1):
                features = F.relu_(self._normed(images, body.conv1, body.bn1))
            else:
                features = F.relu_(body.bn1(body.conv1(images)))
            features = F.max_pool2d(features, kernel_size=3, stride=2, padding=1)
            for layer in (body.layer1, body.layer2, body.layer3, body.layer4):
                for block in layer:
                    features = self._block(block, features)
                maps.append(features)
        return maps[1:]

    def _block(self, block: Bottleneck, features: Tensor) -> Tensor:
        if not all(_is_constant(norm) for norm in (block.bn1, block.bn2, block.bn3)):
            return block(features)
        with self.around(block):
            identity = features
            if block.downsample is not None:
                identity = self._normed(features, block.downsample[0], block.downsample[1])
            inner = F.relu_(self._normed(features, block.conv1, block.bn1))
            inner = F.relu_(self._normed(inner, block.conv2, block.bn2))
            return F.relu_(self._normed(inner, block.conv3, block.bn3).add_(identity))

    def _normed(self, features: Tensor, module: nn.Conv2d, norm: Norm) -> Tensor:
        with self.around(module):
            return self._normed_by(features, module, norm)

    def _normed_by(self, features: Tensor, module: nn.Conv2d, norm: Norm) -> Tensor:
        if not module.weight.requires_grad:
            weight, shift = self._frozen_weight(module, norm, features.dtype)
            return convolution(features, weight, shift, geometry_of(module))
        scale, shift = constant_line(norm)
        [normed] = convolve(
            [features], module.weight, shift, scale=scale, geometry=geometry_of(module)
        )
        return normed

    def _pyramid(self, maps: Sequence[Tensor]) -> list[Tensor]:
        fpn = self._model.backbone.fpn
        merged: list[Tensor] = []
        for features, block in zip(reversed(maps), reversed(fpn.inner_blocks), strict=True):
            [lateral] = self._convolve([features], block[0])
            if merged:
                lateral = lateral.add_(F.interpolate(merged[-1], size=lateral.shape[-2:]))
            merged.append(lateral)
        blocks = zip(reversed(merged), fpn.layer_blocks, strict=True)
        levels = [self._convolve([features], block[0])[0] for features, block in blocks]
        [p6] = self._convolve(levels[-1:], fpn.extra_blocks.p6)
        [p7] = self._convolve([F.relu(p6)], fpn.extra_blocks.p7)
        return [*levels, p6, p7]

    def _head(self, levels: list[Tensor]) -> HeadOutputs:
        head = self._model.head
        classes, boxes = head.classification_head, head.regression_head
        return HeadOutputs(
            cls_logits=[
                by_anchor(maps, classes.num_classes)
                for maps in self._tower(levels, classes.conv, classes.cls_logits)
            ],
            bbox_regression=[
                by_anchor(maps, 4) for maps in self._tower(levels, boxes.conv, boxes.bbox_reg)
            ],
            feature_sizes=[(level.shape[2], level.shape[3]) for level in levels],
        )

    def _tower(self, levels: list[Tensor], hidden: nn.Sequential, last: nn.Conv2d) -> list[Tensor]:
        for layer in hidden:
            module = cast(nn.Conv2d, cast(nn.Sequential, layer)[0])
            levels = self._convolve(levels, module, relu=True)
        return self._convolve(levels, last)

    def _convolve(
        self, levels: Sequence[Tensor], module: nn.Conv2d, *, relu: bool = False
    ) -> list[Tensor]:
        assert module.bias is not None
        geometry = geometry_of(module)
        with self.around(module):
            if self.has_winograd and suits_winograd(levels, module.weight, geometry):
                return winograd_convolve(levels, module.weight, module.bias, relu=relu)
            maps = convolve(levels, module.weight, module.bias, geometry=geometry)
            return [F.relu_(level) for level in maps] if relu else maps

    def _frozen_weight(
        self, module: nn.Conv2d, norm: Norm, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The folded weight and bias of a layer that does not train, computed once."""
        assert norm.running_mean is not None and norm.running_var is not None
        sources = (module.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        versions = (dtype, *(source._version for source in sources))
        kept = self._frozen.get(module)
        if kept is None or kept.versions != versions:
            # Tensors made in inference mode could not be used in a training step later.
            with torch.inference_mode(mode=False), torch.no_grad():
                scale, shift = constant_line(norm)
                weight = cast_weight(module.weight, scale, dtype)
                kept = _FrozenConvolution(versions, weight, shift)
            self._frozen[module] = kept
        return kept.weight, kept.shift


class _FrozenConvolution(NamedTuple):
    versions: tuple[object, ...]
    """Of the tensors that it was made from: torch counts their changes."""
    weight: Tensor
    shift: Tensor


def constant_line(norm: Norm) -> tuple[Tensor, Tensor]:
    """A norm of constant statistics as `scale * x + shift`, each float32 [channels]."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale


def _is_constant(norm: nn.Module) -> bool:
    return isinstance(norm, FrozenBatchNorm2d) or not norm.training
