"""Recipes of ablations of training.

`training_step` is a step, phase by phase, by any engine and with any one thing changed: seconds of
the phases, and of the loss's part of the backward pass. `short_training` trains on synthetic data,
with the classification loss in BF16 or in float32. `ipex_lamb` is a step of IPEX's LAMB over the
detector's weights, the paper's own comparison. `loss_precision` is what the focal loss and its
gradient lose in BF16. `convergence_points` are MLPerf's reference convergence points: epochs to the
target by global batch size.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import count, islice, repeat
from pathlib import Path

import torch
from torch import Tensor
from torchvision.ops import FrozenBatchNorm2d, sigmoid_focal_loss

from data.annotations import TrainingRules, find_split
from data.dataset import Batch, DetectionDataset, SampleKey, collate, open_data
from data.loader import training_keys
from data.synthetic import make_synthetic_data
from data.transforms import normalize
from profiling.bench.recipes.parts import make_logits
from profiling.bench.recipes.step import feature_sizes, make_batch, make_model
from profiling.bench.variant import Prepared, Workload
from retinanet.config_sections import ModelConfig
from retinanet.engine.engines import (
    Forward,
    PreparedTraining,
    autocast_forward,
    import_ipex,
    prepare_training,
    use_frozen_norms,
)
from retinanet.engine.optimizers import clip_gradients, gradient_norm, make_optimizer
from retinanet.loss.detection import detection_loss
from retinanet.loss.focal import focal_loss, one_hot_targets
from retinanet.mlperf.rules import NEWEST, reference_points
from retinanet.model.anchors import anchors_for
from retinanet.model.matching import IGNORED, assign_targets
from retinanet.model.retinanet import HeadOutputs
from retinanet.training.build import build_model
from retinanet.training.loop import (
    StepOptions,
    StepProfiler,
    batch_losses,
    optimizer_step,
    require_finite,
    train_one_epoch,
)

LEARNING_RATE = 1e-4


def prepare_training_step(
    workload: Workload,
    *,
    engine: str = "torch",
    precision: str,
    norm: str = "own",
    focal_form: str = "auto",
    layout: str = "channels_last",
    trains_frozen: bool = False,
    classes: int = 0,
) -> Prepared:
    """Prepare a step of Adam, frozen norms, three trainable layers, one batch again and again.

    `engine` is `plain` (the model's own modules under autocast), `ipex` or `torch` (ours);
    `precision` is `bf16` or `float32`; `norm`, with ipex, is whose frozen norm it is, `torchvision`
    or `own`; `focal_form` is that of `retinanet.loss.focal.focal_loss`, `layout` of images and
    weights `channels_last` or `channels_first`. With `trains_frozen` gradients of the frozen layers
    are computed, and thrown away; `classes`, if not 0, replace the workload's.
    """
    workload = replace(workload, classes=classes or workload.classes)
    model = make_model(workload)
    batch = make_batch(workload)
    if layout == "channels_first":
        model = model.to(memory_format=torch.contiguous_format)
        batch = batch._replace(images=batch.images.contiguous())
    fused = engine != "ipex"
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE, fused=fused)
    if trains_frozen:
        for parameter in model.parameters():
            parameter.requires_grad_()
    if engine == "plain":
        prepared = PreparedTraining(model, optimizer, autocast_forward(model, precision=precision))
    else:
        prepared = prepare_training(model, optimizer, engine=engine, precision=precision)
    if engine == "ipex" and norm == "torchvision":
        ipex_norm = import_ipex().nn.FrozenBatchNorm2d
        use_frozen_norms(prepared.model, FrozenBatchNorm2d, instead_of=ipex_norm)
    stopwatch = PhaseStopwatch()
    watched = replace(prepared, forward=stopwatch.watching(prepared.forward))
    results = train_one_epoch(
        watched,
        repeat(batch),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        options=StepOptions(focal_form=focal_form),
        profiler=stopwatch,
    )

    def run() -> dict[str, float]:
        loss = require_finite(next(results)).loss
        if trains_frozen:  # they are not the optimizer's, which clears its own
            model.zero_grad(set_to_none=True)
        return {"loss value": loss, **stopwatch.laps()}

    return Prepared(run)


class PhaseStopwatch(StepProfiler):
    """A profiler of a training loop that stores the times of the last step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._loss_done: float | None = None

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """Begin a new step."""
        self._seconds = {}
        return nullcontext()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; the backward pass in two parts."""
        begin = time.perf_counter()
        # Set by hooks, which only the backward pass runs.
        self._loss_done = None
        yield
        end = time.perf_counter()
        if name == "backward":
            assert self._loss_done is not None, "the loss does not depend on the network"
            self._seconds["loss backward"] = self._loss_done - begin
            self._seconds["network backward"] = end - self._loss_done
        self._seconds[name] = end - begin

    def laps(self) -> dict[str, float]:
        """Return the last step's `forward`, `loss`, `backward` and its two parts, `optimizer`."""
        return {name: seconds for name, seconds in self._seconds.items() if name != "data"}

    def watching(self, forward: Forward) -> Forward:
        """Return `forward`, recording when the backward pass reaches its first output.

        autograd takes what was computed last first, so that the loss's part is over by then. A hook
        runs when its tensor's turn comes, and not when its gradient is there: the first one counts.
        """

        def note(gradient: Tensor) -> None:
            if self._loss_done is None:
                self._loss_done = time.perf_counter()

        def watched(images: Tensor) -> HeadOutputs:
            outputs = forward(images)
            for level in (*outputs.cls_logits, *outputs.bbox_regression):
                level.register_hook(note)
            return outputs

        return watched


SHORT_TRAINING_LEARNING_RATE = 3e-4
LONGEST_GRADIENT = 15.0
BATCH = 8
TRAIN, HELD_OUT = 240, 40
POINTS = 6  # Evaluations of a training


def prepare_short_training(
    workload: Workload, *, loss: str, precision: str, steps: int
) -> Prepared:
    """Prepare runs that each train from scratch, with the weights and image order of the next seed.

    `loss`, `bf16` or `float32`, is that of classification in training; the box loss is float32.
    `precision` is the network's, `bf16` or `float32`. It is the demo's: random weights, norms that
    train, Adam, on the same synthetic data for all.
    """
    folder = tempfile.TemporaryDirectory(prefix="short-training-")
    make_synthetic_data(Path(folder.name), seed=0, train=TRAIN, validation=HELD_OUT)
    data = open_data(
        find_split(Path(folder.name), "train", annotations=None, images=None),
        find_split(Path(folder.name), "validation", annotations=None, images=None),
        TrainingRules(image_size=workload.image_size, skip_images_without_boxes=True),
    )
    # Decoded once for all runs.
    samples = [data.validation[SampleKey(place, seed=0)] for place in range(HELD_OUT)]
    held_out = [collate(samples[start : start + BATCH]) for start in range(0, HELD_OUT, BATCH)]
    settings = ModelConfig(norm="batch", trainable_layers=5)
    seed = workload.seed

    def run() -> dict[str, float]:
        nonlocal seed
        seed += 1
        torch.manual_seed(seed)
        model = build_model(settings, num_classes=data.classes.num_classes, weights=None)
        optimizer = make_optimizer(model, name="adam", learning_rate=SHORT_TRAINING_LEARNING_RATE)
        prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
        batches = islice(endless_batches(data.train, seed=seed), steps)
        losses = {}
        for step, batch in enumerate(batches, start=1):
            train_step(prepared, batch, loss=loss)
            if step % (steps // POINTS) == 0:
                # Padded with zeros, so that names are in order of steps.
                losses[f"held-out loss at {step:05}"] = mean_loss(prepared, held_out)
        return {**losses, "held-out loss": list(losses.values())[-1]}

    # The folder lives as long as what reads it.
    return Prepared(lambda: run() if folder else {})


def endless_batches(dataset: DetectionDataset, *, seed: int) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch."""
    for epoch in count(1):
        for keys in training_keys(len(dataset), seed=seed, epoch=epoch, batch_size=BATCH):
            yield collate([dataset[key] for key in keys])


def train_step(prepared: PreparedTraining, batch: Batch, *, loss: str) -> None:
    """Run forward, loss, backward, clipping and update."""
    prepared.model.train()
    images = normalize(batch.images)
    outputs = prepared.forward(images)
    height, width = images.shape[-2:]
    anchors = prepared.model.anchors((height, width), outputs.feature_sizes)
    losses = detection_loss(outputs, anchors, batch.targets)
    if loss == "bf16":
        assignment = assign_targets(anchors, batch.targets)
        weights = 1 / (assignment.num_foreground.clamp(min=1) * len(batch.targets))
        logits = [level.bfloat16() for level in outputs.cls_logits]
        losses["classification"] = bf16_loss(logits, assignment.classes, weights)
    sum(losses.values(), torch.zeros(())).backward()
    norm = gradient_norm(prepared.model.parameters())
    clip_gradients(prepared.model.parameters(), norm=norm, longest=LONGEST_GRADIENT)
    optimizer_step(prepared.optimizer, learning_rate=SHORT_TRAINING_LEARNING_RATE)


@torch.no_grad()
def mean_loss(prepared: PreparedTraining, batches: list[Batch]) -> float:
    """Return the loss in float32 on images not trained on, with the norms of each batch."""
    total = 0.0
    for batch in batches:
        total += sum(loss.item() for loss in batch_losses(prepared, batch).values())
    return total / len(batches)


def prepare_ipex_lamb(workload: Workload, *, fused: bool) -> Prepared:
    """Prepare a step of IPEX's LAMB: its kernel in C++ (`fused`), or its Python, by tensors."""
    ipex = import_ipex()
    from intel_extension_for_pytorch.optim._lamb import Lamb  # noqa: PLC0415

    model = make_model(workload).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Its own option `fused` is read by nobody (2.8.0): `optimize` puts the kernel in.
    _, optimizer = ipex.optimize(
        model,
        optimizer=Lamb(trained, lr=1e-4),
        inplace=True,
        weights_prepack=False,
        fuse_update_step=fused,
    )
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter) * 1e-3

    def run() -> dict[str, float]:
        optimizer.step()
        return {}

    return Prepared(run)


def prepare_loss_precision(workload: Workload, *, loss: str) -> Prepared:
    """Prepare the errors of a loss on BF16 logits, of another seed in each run.

    `loss` is `bf16` (torchvision's formula on BF16 tensors, as autocast would leave it) or
    `float32` (ours, on the same logits). Errors are relative to torchvision's formula in float64.
    """
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, feature_sizes(workload))
    seed = workload.seed

    def run() -> dict[str, float]:
        nonlocal seed
        seed += 1
        of_run = replace(workload, seed=seed)
        assignment = assign_targets(anchors, make_batch(of_run).targets)
        weights = 1 / (assignment.num_foreground.clamp(min=1) * workload.images)
        logits = make_logits(of_run, anchors, dtype=torch.bfloat16)
        classes, doubles = assignment.classes, weights.double()
        exact, exact_gradient = computed(
            [level.detach().double().requires_grad_() for level in logits],
            lambda levels: focal_loss(levels, classes, image_weights=doubles, form="reference"),
        )
        value, gradient = computed(
            logits,
            lambda levels: (
                bf16_loss(levels, classes, weights)
                if loss == "bf16"
                else focal_loss(levels, classes, image_weights=weights)
            ),
        )
        # L2 norm of the difference over that of the exact gradient, all levels together.
        pairs = zip(gradient, exact_gradient, strict=True)
        difference = sum((level.double() - exact).square().sum().item() for level, exact in pairs)
        squares = sum(level.square().sum().item() for level in exact_gradient)
        return {
            "exact": 1.0,
            "loss error": abs(value - exact) / exact,
            "gradient error": float((difference / squares) ** 0.5),
        }

    return Prepared(run)


def bf16_loss(levels: list[Tensor], classes: list[Tensor], weights: Tensor) -> Tensor:
    """Return torchvision's formula with every operation, sums included, in BF16."""
    # A sum in float32 would hide what BF16 loses in it.
    total = torch.zeros((), dtype=torch.bfloat16)
    for logits, of_anchor in zip(levels, classes, strict=True):
        targets = one_hot_targets(logits, of_anchor)
        losses = sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2.0)
        counted = losses.masked_fill((of_anchor == IGNORED).unsqueeze(-1), 0.0)
        total = total + (counted.sum(dim=(1, 2)) * weights.bfloat16()).sum()
    return total


def computed(
    logits: list[Tensor], loss_function: Callable[[list[Tensor]], Tensor]
) -> tuple[float, list[Tensor]]:
    """Return the loss, and the gradient of each level."""
    loss = loss_function(logits)
    loss.backward()
    gradients = [level.grad for level in logits if level.grad is not None]
    for level in logits:
        level.grad = None
    return loss.item(), gradients


def prepare_convergence_points(workload: Workload) -> Prepared:
    """Prepare the reference points of MLCommons' package; they need no repetition."""
    epochs = {}
    for point in reference_points(NEWEST):
        # Padded with zeros, so that names are in order of batch sizes.
        epochs[f"epochs at {point.batch_size:05}"] = point.mean_epochs
        epochs[f"least epochs at {point.batch_size:05}"] = point.epochs[0]
        epochs[f"most epochs at {point.batch_size:05}"] = point.epochs[-1]
    return Prepared(lambda: epochs)
