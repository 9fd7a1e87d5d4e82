"""Recipes of ablations of networks and of their operators.

`networks` times forward and backward passes of several kinds of networks, and which primitive takes
what part. `conv_norm_relu` runs a backbone's blocks with convolution, frozen norm and ReLU as three
operators, two, or one.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.backends import mkldnn, nnpack
from torch.nn import functional as F
from torchvision.models.resnet import Bottleneck

from profiling.bench.measured_steps import WINOGRAD, onednn_seconds, watched
from profiling.bench.recipes.step import make_model
from profiling.bench.variant import Prepared, Subject, Workload
from profiling.layers.timing import (
    Clock,
    TimedModel,
    make_clock,
    model_autocast,
    plain_iteration,
    timed_model,
)
from profiling.onednn_log.work import direction_name
from retinanet.engine.convolution import convolve
from retinanet.engine.engines import autocast
from retinanet.engine.folded_forward import Norm, folded_scale_shift
from retinanet.engine.kernels import (
    ONLY_ONEDNN,
    ConvParams,
    Machine,
    get_conv_params,
    input_gradients,
    kernels_for,
    prepare_weight,
    weight_gradients,
)
from retinanet.engine.tile_convolution import best_tiles

MATRIX_OPERATORS = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::linear")
"""torch's products, which go to oneDNN in BF16, and to Intel's MKL in float32."""
WINOGRAD_NAMES = ("our convolution forward", "our convolution backward")
TOKENS = 128  # Length of a sentence
VOCABULARY = 30_522
WIDTH = 768  # The width of BERT base (Devlin et al., 2018), which has 12 layers of 12 heads


def prepare_networks(
    workload: Workload,
    *,
    model: str,
    precision: str,
    batch: int,
    onednn: bool = True,
    watches: bool = False,
) -> Prepared:
    """Prepare forward and backward passes with weights and batch from random numbers.

    `model` is `retinanet`, `alexnet`, `resnet50` or `transformer`; the workload has the size of
    RetinaNet's images, the others' is what is usual for them. `precision` is `bf16` or `float32`,
    `batch` counts images, or sentences, and `onednn` is whether torch may use oneDNN. With
    `watches` a run is also taken apart, which takes two more.
    """
    mkldnn.set_flags(_enabled=onednn)
    # NNPACK's threads inherit the core of the thread that creates them: all would share one.
    nnpack.set_flags(_enabled=False)
    size = workload.image_size if model == "retinanet" else 224
    subject = Subject(model=model, batch=batch, image_size=size, precision=precision, device="cpu")
    timed = transformer(subject) if model == "transformer" else timed_model(subject, onednn=True)
    step = partial(one_step, timed, make_clock("cpu"))

    def run() -> dict[str, float]:
        seconds = step()
        return {**seconds, **(primitives(step) if watches else {})}

    return Prepared(run)


def one_step(timed: TimedModel, clock: Clock) -> dict[str, float]:
    """Run a forward and a backward pass; return their seconds, and those of both."""
    seconds = {name: ms / 1000 for name, ms in plain_iteration(timed, clock).items()}
    return {**seconds, "step": sum(seconds.values())}


def primitives(step: partial[dict[str, float]]) -> dict[str, float]:
    """Return seconds by primitive and direction in one step, in products and convolutions beside
    oneDNN, and `elsewhere`."""
    whole: dict[str, float] = {}
    parts: dict[str, float] = {}
    for name, seconds in onednn_seconds(lambda: whole.update(step())).items():
        kind, _, direction = name.partition(" ")
        label = f"{kind.replace('_', ' ')} {direction_name(direction)}".strip()
        parts[label] = parts.get(label, 0.0) + seconds
    events = watched(step)
    for operator, label in zip(WINOGRAD, WINOGRAD_NAMES, strict=True):
        seconds = sum(event.cpu_time_total for event in events if event.key == operator) / 1e6
        if seconds:
            parts[label] = seconds
    # Products that oneDNN executed are in both counts; the difference ran in MKL.
    products = sum(event.self_cpu_time_total for event in events if event.key in MATRIX_OPERATORS)
    inside = sum(s for name, s in parts.items() if name.startswith(("matmul", "inner product")))
    parts["matrix products of MKL"] = min(max(0.0, products / 1e6 - inside), whole["step"])
    # Parts come from other runs than the whole, so their sum can exceed it.
    parts["elsewhere"] = max(0.0, whole["step"] - sum(parts.values()))
    return {f"primitive: {name}": seconds for name, seconds in parts.items()}


def transformer(subject: Subject) -> TimedModel:
    """Return sentences of 128 tokens through the encoder of BERT base, then a classifier of two.

    Without dropout, for which torch draws random numbers on one thread: longer than all else.
    """
    torch.manual_seed(subject.seed)
    layer = nn.TransformerEncoderLayer(
        WIDTH, nhead=12, dim_feedforward=4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, num_layers=12, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), encoder).train()
    classifier = nn.Linear(WIDTH, 2)
    whole = nn.ModuleList([network, classifier])
    tokens = torch.randint(VOCABULARY, (subject.batch, TOKENS))
    labels = torch.randint(2, (subject.batch,))

    def forward() -> Tensor:
        with model_autocast(subject):
            # The first token stands for the sentence, as in BERT.
            outputs: Tensor = classifier(network(tokens)[:, 0])
        return outputs

    def loss(outputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), labels)

    return TimedModel(whole, forward, loss, None)


def prepare_conv_norm_relu(workload: Workload, *, unit: str, precision: str) -> Prepared:
    """Prepare the blocks of stages 3 to 5, which train, forward and backward, on features of stage
    2 of images as large as the workload's.

    `unit` is `three` (torchvision's modules under autocast), `two` (the norm folded into the
    convolution, ReLU in place, as the torch engine has it) or `one` (oneDNN's convolution with the
    sum and ReLU as post-operations); `precision` is `bf16` or `float32`.
    """
    body = make_model(replace(workload, classes=1)).backbone.body
    blocks = [block for stage in (body.layer2, body.layer3, body.layer4) for block in stage]
    # Stage 2 has a stride of 4.
    side = workload.image_size // 4
    torch.manual_seed(workload.seed)
    features = torch.rand(workload.images, 256, side, side)
    features = features.contiguous(memory_format=torch.channels_last)
    if precision == "bf16":
        features = features.bfloat16()
    gradient: Tensor | None = None

    def run() -> dict[str, float]:
        nonlocal gradient
        # Only torchvision's modules need autocast: the other units cast weights themselves.
        with autocast(precision if unit == "three" else "float32"):
            outputs = features
            for block in blocks:
                outputs = block_outputs(block, outputs, unit)
        if gradient is None:
            gradient = torch.randn_like(outputs) * 1e-3
        outputs.backward(gradient)
        for parameter in body.parameters():
            parameter.grad = None
        return {"mean output": outputs.float().mean().item()}

    return Prepared(run)


def block_outputs(block: Bottleneck, features: Tensor, unit: str) -> Tensor:
    """Return the output of a block of torchvision's ResNets, computed by a unit."""
    identity = features
    if block.downsample is not None:
        convolution, norm = block.downsample
        identity = conv_norm_relu(features, convolution, norm, unit, relu=False)
    inner = conv_norm_relu(features, block.conv1, block.bn1, unit)
    inner = conv_norm_relu(inner, block.conv2, block.bn2, unit)
    return conv_norm_relu(inner, block.conv3, block.bn3, unit, added=identity)


def conv_norm_relu(
    features: Tensor,
    module: nn.Conv2d,
    norm: Norm,
    unit: str,
    *,
    added: Tensor | None = None,
    relu: bool = True,
) -> Tensor:
    """Compute a convolution, its norm, a sum and ReLU by a unit of `prepare_conv_norm_relu`."""
    if unit == "three":
        outputs: Tensor = norm(module(features))
        if added is not None:
            outputs = outputs + added
        return F.relu(outputs) if relu else outputs
    scale, shift = folded_scale_shift(norm)
    params = get_conv_params(module)
    if unit == "one" and relu:
        fused: Tensor = _ConvolutionRelu.apply(features, module.weight, scale, shift, added, params)
        return fused
    [outputs] = convolve(
        [features], module.weight, shift,
        scale=scale, params=params, machine=Machine(best_tiles()),
    )  # fmt: skip
    if added is not None:
        outputs = outputs.add_(added)
    return F.relu_(outputs) if relu else outputs


class _ConvolutionRelu(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        added: Tensor | None,
        params: ConvParams,
    ) -> Tensor:
        # Its own kernels for grouped convolutions only: their forward weight is that of oneDNN.
        machine = Machine(best_tiles()) if params.groups > 1 else ONLY_ONEDNN
        ctx.kernels = kernels_for([features], weight, params, machine)
        cast, _ = prepare_weight(weight, scale, ctx.kernels, features.dtype)
        assert isinstance(cast, Tensor)
        stride, padding, groups = params
        # Padding before stride, then dilation: another order than that of `aten::convolution`.
        window = (padding, stride, (1, 1), groups)
        primitive = torch.ops.mkldnn._convolution_pointwise
        bias = shift.to(features.dtype)
        if added is None:
            outputs = primitive(features, cast, bias, *window, "relu", [], "")
        else:
            # The binary operation with its factor, then the unary one.
            outputs = primitive.binary(
                features, added, cast, bias, *window, "add", 1.0, "relu", [], ""
            )
        ctx.save_for_backward(features, cast, scale, outputs)
        ctx.has_added = added is not None
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        features, weight, scale, outputs = ctx.saved_tensors
        # The mask of ReLU follows from its outputs, so its inputs need not be stored.
        before_relu = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        layer = ([features], [before_relu], weight, ctx.kernels)
        of_features = input_gradients(*layer)[0] if ctx.needs_input_grad[0] else None
        of_weight, _ = weight_gradients(*layer, scale=scale, needs_bias=False)
        of_added = before_relu if ctx.has_added else None
        return of_features, of_weight, None, None, of_added, None
