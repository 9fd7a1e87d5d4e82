"""A training step of ours: the functions that `train.py` runs.

TODO-DOC A training step through IPEX as in the only CPU submission to MLPerf Training (v3.0, Intel).

TODO-DOC torch.compile in a contestant: what is compiled, and what the compiled graphs move.

TODO-DOC A batch and weights from a seed: the same for every contestant.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils._python_dispatch import _disable_current_modes

from data.dataset import Batch
from profiling.bench.variant import Prepared, Workload
from profiling.capture.byte_counter import CurrentPhase
from retinanet.config import ModelConfig
from retinanet.engine.engines import (
    PreparedTraining,
    autocast_forward,
    prepare_training,
    prepare_with_ipex,
)
from retinanet.engine.optimizers import make_optimizer
from retinanet.model.retinanet import RetinaNet
from retinanet.training.build import build_model
from retinanet.training.loop import (
    NO_PROFILER,
    StepProfiler,
    StepResult,
    require_finite,
    train_one_epoch,
)

LEARNING_RATE = 1e-4


def prepare_step_torch(
    workload: Workload,
    *,
    engine: str = "torch",
    folded: bool = True,
    convolutions: str = "auto",
    fused_adam: bool = True,
    torch_adam: bool = False,
    compiled: bool = False,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
) -> Prepared:
    """BF16, Adam, frozen norms, three trainable layers.

    `folded`, `convolutions`, `fused_adam` and `focal_form` take one thing away from the engine;
    `torch_adam` puts torch's fused Adam in the place of ours, `compiled` torch.compile of the
    model's own modules in that of our forward pass; `main_cpus` is where the main thread computes.
    """
    prepared = training(workload, engine=engine, convolutions=convolutions, fused_adam=fused_adam)
    if torch_adam:
        weights = [weight for weight in prepared.model.parameters() if weight.requires_grad]
        fused = Adam(weights, lr=LEARNING_RATE, fused=True)
        prepared = replace(prepared, optimizer=fused)
    if compiled:
        compile_parts(prepared.model)
    if compiled or not folded:
        plain = autocast_forward(prepared.model, precision="bf16")
        prepared = replace(prepared, forward=plain)
    phase = CurrentPhase()
    steps = steps_of(prepared, workload, focal_form=focal_form, main_cpus=main_cpus, phases=phase)
    return Prepared(
        lambda: {"loss": require_finite(next(steps)).loss},
        phase=phase,
        compiled_bytes=compiled_bytes if compiled else None,
    )


def training(
    workload: Workload,
    *,
    engine: str = "torch",
    precision: str = "bf16",
    convolutions: str = "auto",
    fused_adam: bool = True,
) -> PreparedTraining:
    """Model and optimizer as an engine arranges them."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused_adam)
    return prepare_training(
        model, optimizer, engine=engine, precision=precision, convolutions=convolutions
    )


def steps_of(
    prepared: PreparedTraining,
    workload: Workload,
    *,
    focal_form: str = "auto",
    main_cpus: tuple[int, ...] = (),
    phases: StepProfiler = NO_PROFILER,
) -> Iterator[StepResult]:
    """Steps on one batch, as many as are asked for."""
    return train_one_epoch(
        prepared,
        repeat(make_batch(workload)),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
        main_cpus=main_cpus,
        profiler=phases,
    )


def prepare_step_submission(workload: Workload, *, main_cpus: tuple[int, ...] = ()) -> Prepared:
    """`ipex.optimize` without packed weights, its fused Adam, BF16 autocast, our loss.

    The submission's loss is a pass of C++ each way over a one-hot target, which moves more.
    """
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=False)
    model, optimizer = prepare_with_ipex(model, optimizer, precision="bf16", prepack=False)
    forward = autocast_forward(model, precision="bf16")
    phase = CurrentPhase()
    prepared = PreparedTraining(model, optimizer, forward)
    steps = steps_of(prepared, workload, main_cpus=main_cpus, phases=phase)
    return Prepared(lambda: {"loss": require_finite(next(steps)).loss}, phase=phase)


def compile_parts(model: Any) -> None:
    """Compile a detector's backbone and head, each whole, by inductor; runs at their first call.

    The parts around them, such as matching, have shapes that change, on which Python spends more
    than on their operators. Inductor counts the bytes of each graph meanwhile.
    """
    torch._logging.set_logs(inductor_metrics=True)
    for handler in logging.getLogger("torch").handlers:
        handler.setLevel(logging.WARNING)
    for part in (model.backbone, model.head):
        assert isinstance(part, nn.Module)
        part.compile()
        assert part._compiled_call_impl is not None
        part._compiled_call_impl = uncounted(part._compiled_call_impl)


def uncounted(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that runs as such while bytes are counted, which it hides."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return compiled(*args, **kwargs)

    return call


def compiled_bytes() -> int:
    """Bytes that all graphs compiled so far read and write, each graph called once."""
    from torch._inductor import metrics  # noqa: PLC0415

    return int(metrics.num_bytes_accessed)


BOXES_PER_IMAGE = 10


def make_batch(workload: Workload) -> Batch:
    """Smooth random pictures with some noise, about as photos are, and boxes of many sizes."""
    generator = torch.Generator().manual_seed(workload.seed)
    size = workload.image_size
    coarse = torch.rand(workload.images, 3, size // 16, size // 16, generator=generator) * 255
    pictures = F.interpolate(coarse, size=(size, size), mode="bicubic")
    pictures += torch.randn(pictures.shape, generator=generator) * 8
    pixels = pictures.clamp(0, 255).to(torch.uint8)
    return Batch(
        images=pixels.contiguous(memory_format=torch.channels_last),
        targets=[_make_target(workload, generator) for _ in range(workload.images)],
        image_ids=list(range(workload.images)),
        original_sizes=[(size, size)] * workload.images,
    )


def _make_target(workload: Workload, generator: torch.Generator) -> dict[str, Tensor]:
    """Sides are from a twentieth of the image to two thirds of it, small ones more often."""
    sides = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 2.6
    sizes = workload.image_size * 0.05 * sides.exp()
    corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * (workload.image_size - sizes)
    labels = torch.randint(workload.classes, (BOXES_PER_IMAGE,), generator=generator)
    return {"boxes": torch.cat((corners, corners + sizes), dim=1), "labels": labels}


def make_weights(workload: Workload) -> dict[str, Tensor]:
    """A detector's `state_dict`: random, with frozen norms that keep activations in bounds."""
    torch.manual_seed(workload.seed)
    weights = RetinaNet(num_classes=workload.classes).state_dict()
    for name, value in weights.items():
        if name.endswith("bn3.weight"):
            value.fill_(0.2)  # else each of the 16 blocks doubles what goes through it
    return weights


def feature_sizes(workload: Workload) -> list[tuple[int, int]]:
    """(H, W) of P3 to P7: every level halves the one before, rounding up."""
    sides = [-(-workload.image_size // stride) for stride in (8, 16, 32, 64, 128)]
    return [(side, side) for side in sides]
