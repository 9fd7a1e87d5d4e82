"""Recipes of ablations of training.

`training_step` is a step, phase by phase, by any engine and with any one thing changed: seconds of
the phases, and of the loss's part of the backward pass. `short_training` trains on drawn scenes,
with the classification loss in BF16 or in float32. `ipex_lamb` is a step of IPEX's LAMB over the
detector's weights, the paper's own comparison. `loss_precision` is what the focal loss and its
gradient lose in BF16. `convergence_points` are MLPerf's reference convergence points: epochs to the
target by global batch size.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count, islice, repeat
from pathlib import Path

import torch
from torch import Tensor
from torchvision.ops import FrozenBatchNorm2d, sigmoid_focal_loss

from data.annotations import find_split
from data.dataset import Batch, DetectionData, DetectionDataset, SampleKey, collate, open_data
from data.loader import training_keys
from data.synthetic import make_scenes
from data.transforms import normalize
from profiling.bench.recipes.parts import make_logits
from profiling.bench.recipes.step import feature_sizes, make_batch, make_weights
from profiling.bench.variant import Prepared, Workload
from retinanet.config import ModelConfig
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
from retinanet.training.loop import StepResult, optimizer_step, require_finite, train_one_epoch

LEARNING_RATE = 1e-4


def prepare_training_step(
    workload: Workload,
    *,
    engine: str = "torch",
    precision: str,
    norm: str = "own",
    focal_form: str = "auto",
    optimizer: str = "adam",
    layout: str = "channels_last",
    trains_frozen: bool = False,
    classes: int = 0,
) -> Prepared:
    """Adam, frozen norms, three trainable layers, one batch again and again.

    Args:
        workload: The batch.
        engine: `plain` (the model's own modules under autocast), `ipex` or `torch` (ours).
        precision: `bf16` or `float32`.
        norm: `torchvision` or `own`: with ipex, whose frozen norm it is.
        focal_form: See `retinanet.loss.focal.focal_loss`.
        optimizer: See `make_optimizer`.
        layout: `channels_last` or `channels_first`, of images and weights.
        trains_frozen: Whether gradients of the frozen layers are computed, and thrown away.
        classes: Instead of the workload's, if not 0.
    """
    workload = Workload(**{**vars(workload), "classes": classes or workload.classes})
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    batch = make_batch(workload)
    if layout == "channels_first":
        model = model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        batch = batch._replace(images=batch.images.contiguous())
    steps = make_optimizer(
        model, name=optimizer, learning_rate=LEARNING_RATE, fused=engine != "ipex"
    )
    if trains_frozen:
        for parameter in model.parameters():
            parameter.requires_grad_()
    if engine == "plain":
        prepared = PreparedTraining(model, steps, autocast_forward(model, precision=precision))
    else:
        prepared = prepare_training(model, steps, engine=engine, precision=precision)
    if engine == "ipex" and norm == "torchvision":
        own = import_ipex().nn.FrozenBatchNorm2d
        use_frozen_norms(prepared.model, FrozenBatchNorm2d, instead_of=own)
    stopwatch = PhaseStopwatch()
    taken = steps_of(prepared, batch, stopwatch, focal_form=focal_form)

    def run() -> dict[str, float]:
        loss = require_finite(next(taken)).loss
        if trains_frozen:  # they are not the optimizer's, which lets go of its own
            model.zero_grad(set_to_none=True)
        return {"loss value": loss, **stopwatch.laps()}

    return Prepared(run)


class PhaseStopwatch:
    """The `Phases` of a training loop that remembers the last step's seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._loss_done: float | None = None

    def notes(self, steps: range) -> list[str]:
        """None."""
        return []

    def step(self, number: int, prepared: PreparedTraining) -> AbstractContextManager[object]:
        """A new step begins."""
        self._seconds = {}
        return nullcontext()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; the backward pass in two parts."""
        begin = time.perf_counter()
        self._loss_done = None
        yield
        end = time.perf_counter()
        if name == "backward":
            assert self._loss_done is not None, "the loss does not depend on the network"
            self._seconds["loss backward"] = self._loss_done - begin
            self._seconds["network backward"] = end - self._loss_done
        self._seconds[name] = end - begin

    def laps(self) -> dict[str, float]:
        """Of the last step: `forward`, `loss`, `backward` and its two parts, `optimizer`."""
        return {name: seconds for name, seconds in self._seconds.items() if name != "data"}

    def watching(self, forward: Forward) -> Forward:
        """The same, with a note of when the backward pass comes to the first of its outputs.

        autograd takes what was computed last first, so that the loss's part is over by then. A hook
        runs when its tensor's turn comes, and not when its gradient is there: the first one counts.
        """

        def watched(images: Tensor) -> HeadOutputs:
            outputs = forward(images)
            for one in (*outputs.cls_logits, *outputs.bbox_regression):
                one.register_hook(self._note)
            return outputs

        return watched

    def _note(self, gradient: Tensor) -> None:
        if self._loss_done is None:
            self._loss_done = time.perf_counter()


def steps_of(
    prepared: PreparedTraining, batch: Batch, stopwatch: PhaseStopwatch, *, focal_form: str
) -> Iterator[StepResult]:
    """Steps on one batch, as many as are asked for, with the stopwatch beside."""
    watched = PreparedTraining(
        prepared.model, prepared.optimizer, stopwatch.watching(prepared.forward)
    )
    return train_one_epoch(
        watched,
        repeat(batch),
        learning_rate=lambda _: LEARNING_RATE,
        first_step=0,
        focal_form=focal_form,
        profiler=stopwatch,
    )


SHORT_TRAINING_LEARNING_RATE = 3e-4
LONGEST_GRADIENT = 15.0
BATCH = 8
TRAIN, HELD_OUT = 240, 40
POINTS = 6
"""Times at which a training is looked at."""


def prepare_short_training(
    workload: Workload, *, loss: str, precision: str, steps: int
) -> Prepared:
    """Each run trains anew, from the next seed's weights and order of images.

    Args:
        workload: The size of the images.
        loss: Of classification, in training: `bf16` or `float32`. The box loss is float32.
        precision: Of the network: `bf16` or `float32`.
        steps: How many.
    """
    folder = tempfile.TemporaryDirectory(prefix="short-training-")
    data = drawn_data(Path(folder.name), image_size=workload.image_size)
    samples = [data.validation[SampleKey(place, seed=0)] for place in range(HELD_OUT)]
    held_out = [collate(samples[start : start + BATCH]) for start in range(0, HELD_OUT, BATCH)]
    seed = workload.seed

    def run() -> dict[str, float]:
        nonlocal seed
        seed += 1
        prepared = fresh_training(data, seed=seed, precision=precision)
        batches = islice(endless_batches(data.train, seed=seed), steps)
        found = {}
        for step, batch in enumerate(batches, start=1):
            one_step(prepared, batch, loss=loss)
            if step % (steps // POINTS) == 0:
                found[f"held-out loss at {step:05}"] = loss_on(prepared, held_out)
        return {**found, "held-out loss": list(found.values())[-1]}

    # The folder lives as long as what reads it.
    return Prepared(lambda: run() if folder else {})


def drawn_data(folder: Path, *, image_size: int) -> DetectionData:
    """The same scenes for all."""
    make_scenes(folder, seed=0, train=TRAIN, validation=HELD_OUT)
    return open_data(
        find_split(folder, "train", annotations=None, images=None),
        find_split(folder, "validation", annotations=None, images=None),
        image_size=image_size,
        class_indices="contiguous",
        num_classes=None,
        skip_images_without_boxes=True,
    )


def fresh_training(data: DetectionData, *, seed: int, precision: str) -> PreparedTraining:
    """The demo's: random weights, norms that train, Adam."""
    torch.manual_seed(seed)
    settings = ModelConfig(norm="batch", trainable_layers=5)
    model = build_model(settings, num_classes=data.classes.num_classes, weights=None)
    optimizer = make_optimizer(model, name="adam", learning_rate=SHORT_TRAINING_LEARNING_RATE)
    return prepare_training(model, optimizer, engine="torch", precision=precision)


def endless_batches(dataset: DetectionDataset, *, seed: int) -> Iterator[Batch]:
    """Epoch after epoch."""
    for epoch in count(1):
        for keys in training_keys(len(dataset), seed=seed, epoch=epoch, batch_size=BATCH):
            yield collate([dataset[key] for key in keys])


def one_step(prepared: PreparedTraining, batch: Batch, *, loss: str) -> None:
    """Forward, loss, backward, clipping, update."""
    prepared.model.train()
    images = normalize(batch.images)
    outputs = prepared.forward(images)
    anchors = anchors_of(prepared, outputs, images)
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


def loss_on(prepared: PreparedTraining, batches: list[Batch]) -> float:
    """The loss in float32 on images that nobody trains on, with the norms of each batch."""
    total = 0.0
    with torch.no_grad():
        for batch in batches:
            images = normalize(batch.images)
            outputs = prepared.forward(images)
            losses = detection_loss(outputs, anchors_of(prepared, outputs, images), batch.targets)
            total += sum(one.item() for one in losses.values())
    return total / len(batches)


def anchors_of(prepared: PreparedTraining, outputs: HeadOutputs, images: Tensor) -> list[Tensor]:
    """For each level [A_l, 4]."""
    height, width = images.shape[-2:]
    return prepared.model.anchors((height, width), outputs.feature_sizes)


def prepare_ipex_lamb(workload: Workload, *, fused: bool) -> Prepared:
    """`fused`: IPEX's kernel in C++, or its Python, tensor by tensor."""
    ipex = import_ipex()
    from intel_extension_for_pytorch.optim._lamb import Lamb  # noqa: PLC0415

    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None).train()
    model.load_state_dict(make_weights(workload))
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
    """BF16 logits of another seed in each run.

    Args:
        workload: The batch.
        loss: `bf16` (torchvision's formula on BF16 tensors, as autocast would leave it) or
            `float32` (ours, on the same logits). The errors are relative to torchvision's formula
            in float64.
    """
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, feature_sizes(workload))
    seed = workload.seed

    def run() -> dict[str, float]:
        nonlocal seed
        seed += 1
        of_run = Workload(**{**vars(workload), "seed": seed})
        assignment = assign_targets(anchors, make_batch(of_run).targets)
        weights = 1 / (assignment.num_foreground.clamp(min=1) * workload.images)
        logits = make_logits(of_run, anchors, dtype=torch.bfloat16)
        exact, exact_gradient = computed(
            [level.detach().double().requires_grad_() for level in logits],
            lambda levels: focal_loss(
                levels, assignment.classes, image_weights=weights.double(), form="reference"
            ),
        )
        if loss == "bf16":
            value, gradient = computed(
                logits, lambda levels: bf16_loss(levels, assignment.classes, weights)
            )
        else:
            value, gradient = computed(
                logits,
                lambda levels: focal_loss(levels, assignment.classes, image_weights=weights),
            )
        return {
            "exact": 1.0,
            "loss error": abs(value - exact) / exact,
            "gradient error": relative_error(gradient, exact_gradient),
        }

    return Prepared(run)


def bf16_loss(levels: list[Tensor], classes: list[Tensor], weights: Tensor) -> Tensor:
    """torchvision's formula with every operation, sums included, in BF16."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for logits, of_anchor in zip(levels, classes, strict=True):
        targets = one_hot_targets(logits, of_anchor)
        losses = sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2.0)
        counted = losses.masked_fill((of_anchor == IGNORED).unsqueeze(-1), 0.0)
        total = total + (counted.sum(dim=(1, 2)) * weights.bfloat16()).sum()
    return total


def computed(
    logits: list[Tensor], loss_of: Callable[[list[Tensor]], Tensor]
) -> tuple[float, list[Tensor]]:
    """The loss, and the gradient of each level."""
    loss = loss_of(logits)
    loss.backward()
    gradients = [level.grad for level in logits]
    for level in logits:
        level.grad = None
    return loss.item(), [gradient for gradient in gradients if gradient is not None]


def relative_error(gradients: list[Tensor], exact: list[Tensor]) -> float:
    """L2 norm of the difference over that of the exact gradient, all levels together."""
    difference = sum(
        (one.double() - other).square().sum().item()
        for one, other in zip(gradients, exact, strict=True)
    )
    return float((difference / sum(one.square().sum().item() for one in exact)) ** 0.5)


def prepare_convergence_points(workload: Workload) -> Prepared:
    """Reads what comes inside MLCommons' package; there is nothing to repeat."""
    points = reference_points(NEWEST)
    found = {}
    for point in points:
        found[f"epochs at {point.batch_size:05}"] = point.mean_epochs
        found[f"least epochs at {point.batch_size:05}"] = point.epochs[0]
        found[f"most epochs at {point.batch_size:05}"] = point.epochs[-1]
    return Prepared(lambda: found)
