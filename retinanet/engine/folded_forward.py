"""A RetinaNet's forward pass, arranged for speed: the same numbers, other operators.

A forward pass changes the running statistics of norms that train; `RunningStatistics` restores them
where a step does not count.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FrozenBatchNorm2d

from retinanet.engine.convolution import NOTHING_FUSED, Fused, convolve
from retinanet.engine.few_pixels import ScaledWeight
from retinanet.engine.kernels import (
    LayerKernels,
    compute_outputs,
    get_conv_params,
    kernels_for,
    machine_for,
    prepare_weight,
)
from retinanet.engine.norm_relu import batch_norm, branches
from retinanet.engine.tile_convolution import PackedWeight, Tiles
from retinanet.model.retinanet import HeadOutputs, RetinaNet, by_anchor

Norm: TypeAlias = FrozenBatchNorm2d | nn.BatchNorm2d
Around: TypeAlias = Callable[[nn.Module], AbstractContextManager[object]]
"""A context around a module's arithmetic, such as a mark in a trace."""
NOTHING = nullcontext()
Computed = TypeVar("Computed")


class FoldedForward:
    """`FoldedForward(model, …)(images)` is `model(images)`, faster, with equal gradients.

    Constant norms and ReLUs are folded into their convolutions, residual sums overwrite one of
    their terms, and weights are cast once a step. Weights of frozen layers are folded and cast
    only once. The model keeps its parameters, and may be trained, loaded into and saved in between.
    """

    def __init__(self, model: RetinaNet, *, precision: str, convolutions: str = "auto") -> None:
        """Choose the kernels that the machine can run.

        `precision`, "bf16" or "float32", is that of convolutions and activations. `convolutions`:
        "onednn" for all, "winograd" for the 3×3 ones of heads and pyramid in BF16, or "auto": see
        `choose_winograd`; the kernels are those of `choose_kernels`.

        Raises:
            InputError: `convolutions` is "winograd", and it is not available on this machine.
        """
        self._model = model
        self._precision = precision
        self._machine = machine_for(precision, convolutions)
        self.around: Around = lambda module: NOTHING
        """Called with each module that computes; may be replaced between two calls. Forward hooks
        cannot be used: most modules' `forward` is never called."""
        self._frozen: dict[nn.Module, tuple[tuple[object, ...], Any]] = {}
        """What was made from constant tensors: the folded weight of each frozen convolution, and
        scale and shift of each frozen norm. Beside it the tensors' version counters, which torch
        increments at in-place changes."""

    @property
    def has_winograd(self) -> bool:
        """Return whether 3×3 convolutions of heads and pyramid are Winograd's."""
        return self._machine.has_winograd

    @property
    def own_kernels(self) -> str | None:
        """Return which kernels of our own convolve: `winograd`, `tiles` (AMX's), `vectors`."""
        unit = self._machine.tiles
        names = ["winograd"] * self.has_winograd + ["tiles"] * (unit is Tiles.AMX)
        names += ["vectors"] * (unit is Tiles.VECTORS)
        return ", ".join(names) or None

    def __call__(self, images: Tensor) -> HeadOutputs:
        """Run on images [N, 3, H, W] float, normalized with ImageNet's mean and deviation."""
        if self._precision == "bf16":
            images = images.bfloat16()
        backbone = self._model.backbone
        with self.around(backbone.body):
            maps, last = self._body(images)
        with self.around(backbone.fpn):
            levels = self._pyramid(maps, last)
        with self.around(self._model.head):
            return self._head(levels)

    def _body(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return C3 to C5 for the pyramid's lateral convolutions, and C5 for another reader."""
        body = self._model.backbone.body
        maps = []
        [features] = self._normed(images, body.conv1, body.bn1, Fused(relu=True))
        # The ReLU's mask is applied behind the pooling, on a quarter of the pixels: where pooling
        # returns zero, all its inputs are zero, so both masks are equal.
        features = F.max_pool2d(features, kernel_size=3, stride=2, padding=1)
        for layer in (body.layer1, body.layer2, body.layer3, body.layer4):
            for block in layer:
                features = self._block(block, features)
            if layer is not body.layer1:
                # Two readers, the next layer and the pyramid: `branches` sums and masks their
                # gradients in one pass, where autograd would sum in one and mask in another.
                features, for_pyramid = branches(features, 2)
                maps.append(for_pyramid)
        return maps, features

    def _block(self, block: Bottleneck, features: Tensor) -> Tensor:
        """Return the block's output from the previous block's, which has no other reader."""
        with self.around(block):
            reader = Fused(relu=True, gated=True)
            inner, shortcut = self._normed(
                features, block.conv1, block.bn1, reader._replace(passes=True)
            )
            if block.downsample is not None:
                convolution, norm = block.downsample
                [shortcut] = self._normed(shortcut, convolution, norm, NOTHING_FUSED)
            [inner] = self._normed(inner, block.conv2, block.bn2, reader)
            [result] = self._normed(inner, block.conv3, block.bn3, reader._replace(added=shortcut))
            return result

    def _normed(
        self, features: Tensor, module: nn.Conv2d, norm: Norm, fused: Fused
    ) -> list[Tensor]:
        """Apply convolution and norm, and what is fused with both."""
        # Winograd's kernels know neither scales nor sums.
        params, machine = get_conv_params(module), self._machine._replace(has_winograd=False)
        layer = partial(convolve, [features], module.weight, params=params, machine=machine)
        with self.around(module):
            if not isinstance(norm, FrozenBatchNorm2d) and norm.training:
                # Statistics of this batch: nothing can be folded ahead of the convolution.
                maps, *passed = layer(None, fused=fused._replace(relu=False, added=None))
                return [batch_norm(maps, norm, fused.added, relu=fused.relu), *passed]
            if not module.weight.requires_grad and not features.requires_grad:
                kernels = kernels_for([features], module.weight, params, machine)
                frozen = self._frozen_weight(module, norm, features.dtype, kernels)
                outputs = compute_outputs(
                    [features], *frozen, kernels, relu=fused.relu, added=fused.added
                )
                return [*outputs, features] if fused.passes else outputs
            scale, shift = self._scale_shift(norm)
            return layer(shift, scale=scale, fused=fused)

    def _pyramid(self, maps: Sequence[Tensor], last: Tensor) -> list[Tensor]:
        fpn = self._model.backbone.fpn
        merged: list[Tensor] = []
        for features, block in zip(reversed(maps), reversed(fpn.inner_blocks), strict=True):
            [lateral] = self._convolve([features], block[0])
            if merged:
                # In place: the convolution made this map, and its backward pass does not read it.
                lateral = lateral.add_(F.interpolate(merged[-1], size=lateral.shape[-2:]))
            merged.append(lateral)
        blocks = zip(reversed(merged), fpn.layer_blocks, strict=True)
        levels = [self._convolve([features], block[0])[0] for features, block in blocks]
        source = levels[-1] if fpn.extra_blocks.use_P5 else last
        [p6] = self._convolve([source], fpn.extra_blocks.p6)
        [p7] = self._convolve([F.relu(p6)], fpn.extra_blocks.p7)
        return [*levels, p6, p7]

    def _head(self, levels: list[Tensor]) -> HeadOutputs:
        head = self._model.head
        classes, boxes = head.classification_head, head.regression_head
        # All levels go through a layer together: its weight is cast or packed once for the five of
        # them, and the small levels do not each leave threads without work.
        logits = self._tower(levels, classes.conv, classes.cls_logits)
        deltas = self._tower(levels, boxes.conv, boxes.bbox_reg)
        return HeadOutputs(
            cls_logits=[by_anchor(maps, classes.num_classes) for maps in logits],
            bbox_regression=[by_anchor(maps, 4) for maps in deltas],
            feature_sizes=[(level.shape[2], level.shape[3]) for level in levels],
        )

    def _tower(self, levels: list[Tensor], hidden: nn.Sequential, last: nn.Conv2d) -> list[Tensor]:
        gated = False
        for layer in hidden:
            module, *norms, _ = cast(nn.Sequential, layer)
            levels = self._convolve(levels, cast(nn.Conv2d, module), relu=not norms, gated=gated)
            for norm in norms:
                levels = [F.relu_(norm(level)) for level in levels]
            gated = not norms
        return self._convolve(levels, last, gated=gated)

    def _convolve(
        self,
        levels: Sequence[Tensor],
        module: nn.Conv2d,
        *,
        relu: bool = False,
        gated: bool = False,
    ) -> list[Tensor]:
        """Apply a convolution; `relu` and `gated` as in `convolve`."""
        with self.around(module):
            return convolve(
                levels, module.weight, module.bias,
                params=get_conv_params(module), machine=self._machine,
                fused=Fused(relu=relu, gated=gated),
            )  # fmt: skip

    def _frozen_weight(
        self, module: nn.Conv2d, norm: Norm, dtype: torch.dtype, kernels: LayerKernels
    ) -> "_FrozenWeight":
        """Return the folded weight and bias of a layer that does not train, computed once."""

        def fold() -> _FrozenWeight:
            scale, shift = folded_scale_shift(norm)
            return _FrozenWeight(prepare_weight(module.weight, scale, kernels, dtype)[0], shift)

        return self._computed_once(
            module, (module.weight, *norm_tensors(norm)), (dtype, kernels), fold
        )

    def _scale_shift(self, norm: Norm) -> tuple[Tensor, Tensor]:
        """Return `folded_scale_shift`; of a frozen norm computed once."""
        if not isinstance(norm, FrozenBatchNorm2d):
            return folded_scale_shift(norm)
        return self._computed_once(norm, norm_tensors(norm), (), lambda: folded_scale_shift(norm))

    def _computed_once(
        self,
        module: nn.Module,
        sources: Sequence[Tensor],
        options: tuple[object, ...],
        compute: Callable[[], Computed],
    ) -> Computed:
        """Return what is computed from constant `sources`, again only after they have changed."""
        versions = (*options, *(source._version for source in sources))
        if module not in self._frozen or self._frozen[module][0] != versions:
            # Tensors made in inference mode could not be used in a training step later.
            with torch.inference_mode(mode=False), torch.no_grad():
                self._frozen[module] = versions, compute()
        computed: Computed = self._frozen[module][1]
        return computed


class _FrozenWeight(NamedTuple):
    """A folded layer: what `compute_outputs` takes as its weight and bias."""

    weight: Tensor | PackedWeight | ScaledWeight
    shift: Tensor


def norm_tensors(norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a norm's weight, bias, and running mean and variance, float32 [channels]."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.weight, norm.bias, norm.running_mean, norm.running_var


def folded_scale_shift(norm: Norm) -> tuple[Tensor, Tensor]:
    """Return a norm of constant statistics as `scale * x + shift`, each float32 [channels]."""
    weight, bias, mean, variance = norm_tensors(norm)
    scale = weight * (variance + norm.eps).rsqrt()
    return scale, bias - mean * scale


class RunningStatistics:
    """The running statistics of a model's norms, saved before a step; a few hundred KB."""

    def __init__(self, model: nn.Module) -> None:
        """Find the norms whose statistics are updated in the model's present mode."""
        self._statistics: list[Tensor] = [
            statistic
            for module in model.modules()
            if isinstance(module, nn.BatchNorm2d) and module.training
            for statistic in module.buffers(recurse=False)
        ]
        self._saved = [torch.empty_like(statistic) for statistic in self._statistics]

    def keep(self) -> None:
        """Save the statistics."""
        if self._statistics:
            torch._foreach_copy_(self._saved, self._statistics)

    def put_back(self) -> None:
        """Restore the saved statistics."""
        if self._statistics:
            torch._foreach_copy_(self._statistics, self._saved)
