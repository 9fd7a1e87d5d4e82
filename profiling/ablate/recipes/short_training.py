"""A short training on drawn scenes, with the classification loss in BF16 or in float32."""

import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor

from data.dataset import Batch, DetectionDataset, SampleKey, collate
from data.opening import DetectionData, open_data
from data.sampler import training_keys
from data.scenes.drawing import make_scenes
from data.sources import find_split
from data.transforms import normalize
from profiling.ablate.recipes.loss_precision import bf16_loss
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import PreparedTraining, prepare_training
from retinanet.engine.gradient_norm import clip_gradients, gradient_norm
from retinanet.engine.optimizer import make_optimizer
from retinanet.loss import detection_loss
from retinanet.model import HeadOutputs, assign_targets
from retinanet.training.loop import update_weights
from retinanet.training.start import build_model

LEARNING_RATE = 3e-4
LONGEST_GRADIENT = 15.0
BATCH = 8
TRAIN, HELD_OUT = 240, 40
POINTS = 6
"""Times at which a training is looked at."""


def prepare(workload: Workload, *, loss: str, precision: str, steps: int) -> Prepared:
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
    optimizer = make_optimizer(model, name="adam", learning_rate=LEARNING_RATE)
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
    update_weights(prepared.optimizer, learning_rate=LEARNING_RATE)


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
