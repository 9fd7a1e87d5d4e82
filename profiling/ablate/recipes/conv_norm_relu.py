"""A backbone's blocks with convolution, frozen norm and ReLU as three operators, two, or one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import make_weights
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.convolution import (
    Geometry,
    cast_weight,
    convolution_gradients,
    convolve,
    geometry_of,
)
from retinanet.engine.network import Norm, constant_line
from retinanet.engine.precision import autocast
from retinanet.training.start import build_model

Unit = Callable[[Tensor, nn.Conv2d, Norm, Tensor | None, bool], Tensor]
"""(features, convolution, norm, what is added before the ReLU, whether there is one) → features."""


def prepare(workload: Workload, *, unit: str, precision: str) -> Prepared:
    """The blocks of stages 3 to 5, which train, forward and backward, on features of stage 2.

    Args:
        workload: The size of the images that the features come from.
        unit: `three` (torchvision's modules under autocast), `two` (the norm folded into the
            convolution, ReLU in place, as the torch engine has it) or `one` (oneDNN's convolution
            with the sum and ReLU as post-operations).
        precision: `bf16` or `float32`.
    """
    model = build_model(ModelConfig(), num_classes=1, weights=None)
    model.load_state_dict(make_weights(Workload(**{**vars(workload), "classes": 1})))
    body = model.backbone.body
    blocks = [block for stage in (body.layer2, body.layer3, body.layer4) for block in stage]
    side = workload.image_size // 4
    torch.manual_seed(workload.seed)
    features = torch.rand(workload.images, 256, side, side)
    features = features.contiguous(memory_format=torch.channels_last)
    if precision == "bf16":
        features = features.bfloat16()
    compute = UNITS[unit]
    gradient: Tensor | None = None

    def run() -> dict[str, float]:
        nonlocal gradient
        with autocast(precision if unit == "three" else "float32"):
            outputs = features
            for block in blocks:
                outputs = block_outputs(block, outputs, compute)
        if gradient is None:
            gradient = torch.randn_like(outputs) * 1e-3
        outputs.backward(gradient)
        for parameter in body.parameters():
            parameter.grad = None
        return {"mean output": outputs.float().mean().item()}

    return Prepared(run)


def block_outputs(block: Bottleneck, features: Tensor, compute: Unit) -> Tensor:
    """A block of torchvision's ResNets by a unit."""
    identity = features
    if block.downsample is not None:
        identity = compute(features, block.downsample[0], block.downsample[1], None, False)
    inner = compute(features, block.conv1, block.bn1, None, True)
    inner = compute(inner, block.conv2, block.bn2, None, True)
    return compute(inner, block.conv3, block.bn3, identity, True)


def three(
    features: Tensor, module: nn.Conv2d, norm: Norm, added: Tensor | None, relu: bool
) -> Tensor:
    """Module by module."""
    outputs = norm(module(features))
    if added is not None:
        outputs = outputs + added
    return F.relu(outputs) if relu else outputs


def two(
    features: Tensor, module: nn.Conv2d, norm: Norm, added: Tensor | None, relu: bool
) -> Tensor:
    """The norm folded, sum and ReLU in place."""
    scale, shift = constant_line(norm)
    geometry = geometry_of(module)
    [outputs] = convolve([features], module.weight, shift, scale=scale, geometry=geometry)
    if added is not None:
        outputs = outputs.add_(added)
    return F.relu_(outputs) if relu else outputs


def one(
    features: Tensor, module: nn.Conv2d, norm: Norm, added: Tensor | None, relu: bool
) -> Tensor:
    """One primitive of oneDNN."""
    if not relu:
        return two(features, module, norm, added, relu)
    scale, shift = constant_line(norm)
    outputs: Tensor = _ConvolutionRelu.apply(
        features, module.weight, scale, shift, added, geometry_of(module)
    )
    return outputs


class _ConvolutionRelu(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd has it so
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        added: Tensor | None,
        geometry: Geometry,
    ) -> Tensor:
        cast = cast_weight(weight, scale, features.dtype)
        stride, padding, groups = geometry
        window = (padding, stride, (1, 1), groups)
        primitive = torch.ops.mkldnn._convolution_pointwise
        bias = shift.to(features.dtype)
        if added is None:
            outputs = primitive(features, cast, bias, *window, "relu", [], "")
        else:
            outputs = primitive.binary(
                features, added, cast, bias, *window, "add", 1.0, "relu", [], ""
            )
        ctx.save_for_backward(features, cast, scale, outputs)
        ctx.geometry, ctx.has_added = geometry, added is not None
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        features, weight, scale, outputs = ctx.saved_tensors
        before_relu = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        of_features, of_weight, _ = convolution_gradients(
            before_relu,
            features,
            weight,
            ctx.geometry,
            wants=(ctx.needs_input_grad[0], True, False),
        )
        assert of_weight is not None
        of_weight = of_weight.float().mul_(scale.view(-1, 1, 1, 1))
        of_added = before_relu if ctx.has_added else None
        return of_features, of_weight, None, None, of_added, None


UNITS: dict[str, Unit] = {"three": three, "two": two, "one": one}
