"""A training step of torchvision's RetinaNet, as its users write it.

TODO-DOC torchvision's RetinaNet with the backbone that MLPerf trains, built as a user would.

TODO-DOC Arithmetic of a training step's convolutions and fully connected layers, from shapes.

TODO-DOC What the machine can do: the network's large convolutions alone, and a matrix product.

TODO-DOC The memory's bandwidth, as large copies have it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torchvision.models.detection import RetinaNet, retinanet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from profiling.bench.recipes.step import (
    compile_parts,
    compiled_bytes,
    make_batch,
    make_weights,
    uncounted,
)
from profiling.bench.variant import Prepared, Workload
from profiling.capture.byte_counter import CurrentPhase
from profiling.peaks.measure import (
    BUFFER_BYTES,
    REPETITIONS,
    convolution,
    matrix_product,
    median_seconds,
    movers,
)
from retinanet.engine.engines import autocast


def prepare_step_torchvision(
    workload: Workload, *, precision: str = "bf16", compiled: bool = False
) -> Prepared:
    """Under autocast for "bf16"; channels_last, torch's plain Adam, images in [0, 1] at hand.

    `compiled`: backbone, head and focal loss by torch.compile.
    """
    model = torchvision_model(workload)
    model.load_state_dict(make_weights(workload))
    model.to(memory_format=torch.channels_last).train()
    optimizer = Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    batch = make_batch(workload)
    images = list(batch.images.contiguous() / 255)
    if compiled:
        compile_parts(model)
        retinanet.sigmoid_focal_loss = uncounted(torch.compile(retinanet.sigmoid_focal_loss))
    phase = CurrentPhase()
    # Its forward pass computes the loss as well; `phase` surrounds that part.
    model.compute_loss = phase.phase("loss")(model.compute_loss)

    def step() -> dict[str, float]:
        with autocast(precision), phase.phase("forward"):
            losses = model(images, batch.targets)
            loss = sum(losses.values(), torch.zeros(()))
        if not math.isfinite(loss.item()):
            raise ArithmeticError(f"loss {loss.item()}")
        with phase.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with phase.phase("optimizer"):
            optimizer.step()
        return {"loss": loss.item()}

    return Prepared(step, phase=phase, compiled_bytes=compiled_bytes if compiled else None)


def torchvision_model(workload: Workload) -> RetinaNet:
    """ResNeXt50-32x4d with frozen norms and three trainable layers; it resizes nothing."""
    backbone = resnet_fpn_backbone(
        backbone_name="resnext50_32x4d",
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    size = workload.image_size
    return RetinaNet(backbone, workload.classes, min_size=size, max_size=size)


def step_gflop(workload: Workload) -> float:
    """Arithmetic of a training step's convolutions, as `convolution_flop` counts it. [10⁹]"""
    with torch.device("meta"):
        model = torchvision_model(workload)
    size = workload.image_size
    images = torch.empty(workload.images, 3, size, size, device="meta")
    network = nn.ModuleList([model.backbone, model.head])

    def forward() -> object:
        return model.head(list(model.backbone(images).values()))

    return convolution_flop(network, forward) / 1e9


@dataclass
class Flop:
    """Multiplications and additions of one layer in all of its calls."""

    forward: int = 0
    backward: int = 0


def convolution_flop(network: nn.Module, forward: Callable[[], object]) -> int:
    """Those in the convolutions of a forward and a backward pass; see `flop_by_layer`."""
    convolutions = {name for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    found = flop_by_layer(network, forward)
    return sum(flop.forward + flop.backward for name, flop in found.items() if name in convolutions)


def flop_by_layer(network: nn.Module, forward: Callable[[], object]) -> dict[str, Flop]:
    """The arithmetic of each convolution and fully connected layer that runs, by name.

    `forward` runs the network under gradients, best with tensors on the meta device, so that
    nothing is computed. Backward counts only what is needed: the gradient to the input where
    something before it trains, the gradient to the weights where they train. Padding is counted
    as if it were multiplied.
    """
    found: dict[str, Flop] = {}

    def count(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        flop = found.setdefault(name, Flop())
        once = 2 * output.numel() * layer.weight[0].numel()  # weights of one output channel
        flop.forward += once
        flop.backward += once * (inputs[0].requires_grad + layer.weight.requires_grad)

    hooks: list[Any] = [
        module.register_forward_hook(partial(count, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.enable_grad():
        forward()
    for hook in hooks:
        hook.remove()
    return found


MATRIX_SIZE = 4096
CEILING_REPETITIONS = 3
CHANNELS = 256
ANCHORS = 9


def prepare_ceiling(workload: Workload) -> Prepared:
    """Each in BF16, convolutions in channels_last, forward and backward to their input.

    A run's details are GFLOP/s by name; the facts hold `step_gflop`.
    """
    side = workload.image_size // 8
    shapes = {
        f"tower 3x3 256→256 at {side}x{side}": (CHANNELS, side),
        f"tower 3x3 256→256 at {side // 2}x{side // 2}": (CHANNELS, side // 2),
        f"logits 3x3 256→{ANCHORS * workload.classes} at {side}x{side}": (
            ANCHORS * workload.classes,
            side,
        ),
    }
    works = {f"matrix product {MATRIX_SIZE}³": matrix_product(MATRIX_SIZE, torch.bfloat16)}
    for name, (channels_out, size) in shapes.items():
        forward, backward = convolution(
            workload.images, (CHANNELS, channels_out), size, torch.bfloat16
        )
        works[f"{name}, forward"] = forward
        works[f"{name}, backward data"] = backward

    def run() -> dict[str, float]:
        return {
            name: work.gflop / median_seconds(work.call, repetitions=CEILING_REPETITIONS)
            for name, work in works.items()
        }

    return Prepared(run, {"step_gflop": step_gflop(workload)})


def prepare_bandwidth(workload: Workload) -> Prepared:
    """All of torch's threads; `workload` does not matter. A run's details are bytes a second.

    Half the traffic reads and half writes, as in a loss that turns logits into gradients.
    """
    calls = movers()

    def run() -> dict[str, float]:
        return {
            name: 2 * BUFFER_BYTES / median_seconds(call, repetitions=REPETITIONS)
            for name, call in calls.items()
        }

    return Prepared(run)
