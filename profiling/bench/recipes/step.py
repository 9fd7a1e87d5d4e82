"""Recipes of training steps: ours, torchvision's, and the machine's ceiling.

`step_torch` runs the functions of a training. `step_submission` is a step through IPEX as in
the only CPU submission to MLPerf Training (v3.0, Intel). `step_torchvision` has the backbone that
MLPerf trains, built and trained as torchvision's users write it. `ceiling` runs the network's large
convolutions alone and a matrix product, `machine` products and a copy on any number of threads,
`bandwidth` large copies in memory. `checkpoint` trains and writes checkpoints. Other recipes share
torch.compile of a detector, a step's arithmetic by the shapes of its layers, and a batch and
weights from a seed, the same for every variant.
"""

import functools
import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils._python_dispatch import _disable_current_modes
from torchvision.models.detection import retinanet
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from common.machine import fastest_precision
from data.annotations import ClassMap
from data.dataset import Batch
from launch.process_group import ProcessGroup
from profiling.bench.variant import Prepared, Workload
from profiling.capture.byte_counter import CurrentPhase
from profiling.peaks_measure import (
    BUFFER_BYTES,
    REPETITIONS,
    WORK_REPETITIONS,
    convolution,
    matrix_product,
    matrix_size,
    median_seconds,
    movers,
)
from retinanet.config_sections import ModelConfig
from retinanet.engine.engines import (
    PreparedTraining,
    autocast,
    autocast_forward,
    prepare_training,
    prepare_with_ipex,
)
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.build import build_model
from retinanet.training.checkpointer import Checkpointer, gathered
from retinanet.training.convert import converted_state
from retinanet.training.loop import StepOptions, require_finite, train_one_epoch
from retinanet.training.train_state import State

LEARNING_RATE = 1e-4


def prepare_step_torch(
    workload: Workload,
    *,
    engine: str = "torch",
    folded: bool = True,
    convolutions: str = "auto",
    fused_adam: bool = True,
    compiled: bool = False,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
) -> Prepared:
    """Prepare BF16, Adam, frozen norms, three trainable layers.

    `folded`, `convolutions`, `fused_adam` and `focal_form` take one thing away from the engine;
    `compiled` puts torch.compile of the model's own modules in the place of our forward pass;
    `main_cpus` is where the main thread computes.
    """
    model = make_model(workload)
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused_adam)
    prepared = prepare_training(
        model, optimizer, engine=engine, precision="bf16", convolutions=convolutions
    )
    if compiled:
        compile_parts(prepared.model)
    # Our own forward pass does not call the modules, compiled or not.
    if compiled or not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = replace(prepared, forward=plain)
    return prepared_steps(
        prepared, workload, focal_form=focal_form, main_cpus=main_cpus, compiled=compiled
    )


def prepare_step_submission(workload: Workload, *, main_cpus: tuple[int, ...] = ()) -> Prepared:
    """Prepare `ipex.optimize` without packed weights, its fused Adam, BF16 autocast, our loss.

    The submission's loss is a pass of C++ each way over a one-hot target, which moves more.
    """
    model = make_model(workload)
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=False)
    model, optimizer = prepare_with_ipex(model, optimizer, precision="bf16", prepack=False)
    forward = autocast_forward(model, precision="bf16")
    return prepared_steps(
        PreparedTraining(model, optimizer, forward), workload, main_cpus=main_cpus
    )


def make_model(workload: Workload) -> RetinaNet:
    """Return MLPerf's model with `make_weights`."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    return model


def prepared_steps(
    prepared: PreparedTraining,
    workload: Workload,
    *,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
    compiled: bool = False,
) -> Prepared:
    """Return what runs a step each time, with its loss and its phases."""
    phase = CurrentPhase()
    steps = train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        options=StepOptions(focal_form=focal_form, main_cpus=main_cpus),
        profiler=phase,
    )
    return Prepared(
        lambda: {"loss": require_finite(next(steps)).loss},
        phase=lambda: phase.name,
        compiled_bytes=compiled_bytes if compiled else None,
    )


def compile_parts(model: Any) -> None:
    """Compile a detector's backbone and head with inductor, at their first call.

    Other parts, such as matching, have variable shapes, and their overhead in Python exceeds the
    time of their operators. Inductor counts the bytes of each graph as it compiles.
    """
    # Inductor counts bytes only while this log is enabled; its lines are not wanted.
    torch._logging.set_logs(inductor_metrics=True)
    for handler in logging.getLogger("torch").handlers:
        handler.setLevel(logging.WARNING)
    for part in (model.backbone, model.head):
        assert isinstance(part, nn.Module)
        part.compile()
        assert part._compiled_call_impl is not None
        part._compiled_call_impl = uncounted(part._compiled_call_impl)


def uncounted(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that is excluded from the byte counter."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return compiled(*args, **kwargs)

    return call


def compiled_bytes() -> int:
    """Return the bytes that all graphs compiled so far read and write, each graph called once."""
    from torch._inductor import metrics  # noqa: PLC0415

    return int(metrics.num_bytes_accessed)


BOXES_PER_IMAGE = 10


def make_batch(workload: Workload) -> Batch:
    """Return smooth random pictures with some noise, about as photos are, and boxes.

    The boxes' sides are from a twentieth of the image to two thirds of it, small ones more often.
    """
    generator = torch.Generator().manual_seed(workload.seed)
    size = workload.image_size
    coarse = torch.rand(workload.images, 3, size // 16, size // 16, generator=generator) * 255
    pictures = F.interpolate(coarse, size=(size, size), mode="bicubic")
    pictures += torch.randn(pictures.shape, generator=generator) * 8
    pixels = pictures.clamp(0, 255).to(torch.uint8)
    targets = []
    for _ in range(workload.images):
        sides = size * 0.05 * (torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 2.6).exp()
        corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * (size - sides)
        labels = torch.randint(workload.classes, (BOXES_PER_IMAGE,), generator=generator)
        targets.append({"boxes": torch.cat((corners, corners + sides), dim=1), "labels": labels})
    return Batch(
        images=pixels.contiguous(memory_format=torch.channels_last),
        targets=targets,
        image_ids=list(range(workload.images)),
        original_sizes=[(size, size)] * workload.images,
    )


def make_weights(workload: Workload) -> dict[str, Tensor]:
    """Return a detector's random `state_dict`, with frozen norms that bound activations."""
    torch.manual_seed(workload.seed)
    weights = RetinaNet(num_classes=workload.classes).state_dict()
    for name, value in weights.items():
        if name.endswith("bn3.weight"):
            # Else each of the 16 blocks would double what goes through it.
            value.fill_(0.2)
    return weights


def feature_sizes(workload: Workload) -> list[tuple[int, int]]:
    """Return (H, W) of P3 to P7: every level halves the one before, rounding up."""
    sides = [-(-workload.image_size // stride) for stride in (8, 16, 32, 64, 128)]
    return [(side, side) for side in sides]


def prepare_step_torchvision(
    workload: Workload, *, precision: str = "bf16", compiled: bool = False
) -> Prepared:
    """Prepare autocast for "bf16"; channels_last, torch's plain Adam, images in [0, 1] at hand.

    `compiled`: backbone, head and focal loss by torch.compile.
    """
    model = torchvision_model(workload)
    model.load_state_dict(make_weights(workload))
    model.to(memory_format=torch.channels_last).train()
    optimizer = Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    batch = make_batch(workload)
    # As users pass them: a list of planar images in [0, 1], which the model normalizes.
    images = list(batch.images.contiguous() / 255)
    if compiled:
        compile_parts(model)
        # The head of torchvision looks the loss up in its module at every call.
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

    bytes_of_graphs = compiled_bytes if compiled else None
    return Prepared(step, phase=lambda: phase.name, compiled_bytes=bytes_of_graphs)


def torchvision_model(workload: Workload) -> retinanet.RetinaNet:
    """Return ResNeXt50-32x4d with frozen norms and three trainable layers; it resizes nothing."""
    backbone = resnet_fpn_backbone(
        backbone_name="resnext50_32x4d",
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    size = workload.image_size
    return retinanet.RetinaNet(backbone, workload.classes, min_size=size, max_size=size)


def step_gflop(workload: Workload) -> float:
    """Return the arithmetic of a step's convolutions, as `convolution_flop` counts it. [10⁹]"""
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
    """Return the sum over the convolutions of both passes; see `flop_by_layer`."""
    modules = dict(network.named_modules())
    return sum(
        flop.forward + flop.backward
        for name, flop in flop_by_layer(network, forward).items()
        if isinstance(modules[name], nn.Conv2d)
    )


def flop_by_layer(network: nn.Module, forward: Callable[[], object]) -> dict[str, Flop]:
    """Return the arithmetic of each convolution and fully connected layer that runs, by name.

    `forward` runs the network under gradients, best with tensors on the meta device, so that
    nothing is computed. Backward counts only what is needed: the gradient to the input where
    something before it trains, the gradient to the weights where they train. Padding is counted
    as if it were multiplied.
    """
    by_layer: dict[str, Flop] = defaultdict(Flop)

    def count(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        # A multiplication and an addition for each weight of an output channel.
        once = 2 * output.numel() * layer.weight[0].numel()
        by_layer[name].forward += once
        by_layer[name].backward += once * (inputs[0].requires_grad + layer.weight.requires_grad)

    hooks: list[Any] = [
        module.register_forward_hook(partial(count, name))
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.enable_grad():
        forward()
    for hook in hooks:
        hook.remove()
    return dict(by_layer)


MATRIX_SIZE = 4096
CHANNELS = 256
ANCHORS = 9


def prepare_ceiling(workload: Workload) -> Prepared:
    """Prepare BF16 convolutions, forward and backward to their input, and a matrix product.

    Convolutions are in channels_last. A run's details are GFLOP/s by name; the facts hold
    `step_gflop`.
    """
    # P3, the largest of the five levels, has three quarters of their pixels.
    side = workload.image_size // 8
    logits = ANCHORS * workload.classes
    works = {f"matrix product {MATRIX_SIZE}³": matrix_product(MATRIX_SIZE, torch.bfloat16)}
    for kind, channels, size in (
        ("tower", CHANNELS, side),
        ("tower", CHANNELS, side // 2),
        ("logits", logits, side),
    ):
        name = f"{kind} 3x3 {CHANNELS}→{channels} at {size}x{size}"
        works[f"{name}, forward"], works[f"{name}, backward data"] = convolution(
            workload.images, (CHANNELS, channels), size, torch.bfloat16
        )

    def run() -> dict[str, float]:
        seconds = {name: median_seconds(work.call, repetitions=3) for name, work in works.items()}
        return {name: work.gflop / seconds[name] for name, work in works.items()}

    return Prepared(run, {"step_gflop": step_gflop(workload)})


def prepare_machine(workload: Workload) -> Prepared:
    """Prepare the rates that bound a step on these threads: products, and a copy in memory.

    A run's details are GFLOP/s by type, of BF16 where the processor has it, and bytes a second of
    `copy`; the facts hold `threads` and `step_gflop`.
    """
    threads = torch.get_num_threads()
    size = matrix_size(threads)
    types = {"float32": torch.float32, "bf16": torch.bfloat16}
    names = dict.fromkeys(("float32", fastest_precision()))
    works = {name: matrix_product(size, types[name]) for name in names}
    copy = movers()["copy"]

    def run() -> dict[str, float]:
        rates = {
            name: work.gflop / median_seconds(work.call, repetitions=WORK_REPETITIONS)
            for name, work in works.items()
        }
        seconds = median_seconds(copy, repetitions=REPETITIONS)
        return {**rates, "copy": 2 * BUFFER_BYTES / seconds}

    return Prepared(run, {"threads": threads, "step_gflop": step_gflop(workload)})


def prepare_bandwidth(workload: Workload) -> Prepared:
    """Prepare all of torch's threads; `workload` does not matter. Details are bytes a second.

    Half the traffic reads and half writes, as in a loss that turns logits into gradients.
    """
    calls = movers()

    def run() -> dict[str, float]:
        return {
            name: 2 * BUFFER_BYTES / median_seconds(call, repetitions=REPETITIONS)
            for name, call in calls.items()
        }

    return Prepared(run)


CHECKPOINT_WARM_UP = 3
QUIET_STEPS = 4  # Steps of each round before the checkpoint, for comparison


def prepare_checkpoint(workload: Workload, *, folder: str) -> Prepared:
    """Prepare a warm training; a run times steps alone, then a checkpoint to `folder` beside steps.

    The details are in seconds and bytes.
    """
    precision = fastest_precision()
    model = make_model(workload)
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE)
    prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
    steps = train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
    )
    for _ in range(CHECKPOINT_WARM_UP):
        next(steps)
    # Training continues after a failed checkpoint; a benchmark of them must not.
    writer = Checkpointer(Path(folder), keep=1, warn=sys.exit)
    first, numbers = made_up_state(workload), count()

    def run() -> dict[str, float]:
        quiet = median(next(steps).seconds for _ in range(QUIET_STEPS))
        state = replace(first, position=replace(first.position, step=next(numbers)))
        start = time.perf_counter()
        contents = gathered(ProcessGroup(), prepared.model, prepared.optimizer, state)
        assert contents is not None
        copying = time.perf_counter() - start
        size = sum(part.nbytes for parts in contents.parts.values() for part in parts.values())
        writer.write(contents)
        # The writer frees the copy when it is written; this reference would keep it alive.
        del contents
        beside = []
        while writer.is_writing:
            beside.append(next(steps).seconds)
        return {
            "quiet_step": quiet,
            "copying": copying,
            "writing": writer.seconds,
            "steps_meanwhile": len(beside),
            "slower": sum(beside) - quiet * len(beside),
            "bytes": size,
        }

    return Prepared(run)


def made_up_state(workload: Workload) -> State:
    """Return the content of `state.json`, which is small beside the tensors."""
    numbers = range(workload.classes)
    classes = ClassMap(tuple(numbers), tuple(map(str, numbers)))
    return converted_state(classes, image_size=workload.image_size, resize="square")
