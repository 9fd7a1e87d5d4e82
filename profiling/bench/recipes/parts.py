"""Recipes of parts of training and evaluation.

The focal loss of a batch, the norm of the detector's gradients, an optimizer's step, the average
of the weights, from the head's outputs to boxes (ours and torchvision's), and a whole evaluation
step. The outputs of a trained detector's head are made from a seed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from data.transforms import normalize
from profiling.bench.recipes.step import (
    feature_sizes,
    make_batch,
    make_model,
    make_weights,
    torchvision_model,
)
from profiling.bench.variant import Prepared, Workload
from retinanet.config_sections import ModelConfig
from retinanet.engine.engines import autocast, torch_forward
from retinanet.engine.optimizers import clip_gradients, gradient_norm, make_optimizer
from retinanet.evaluation.detect import detect_batch
from retinanet.loss.focal import focal_loss
from retinanet.model.anchors import BASE_SIZES, anchors_for
from retinanet.model.matching import assign_targets
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import HeadOutputs, RetinaNet
from retinanet.training.build import build_model
from retinanet.training.ema import WeightAverage

FRESH_LOGIT = -4.6  # The logit of a new detector everywhere: 0.01 as a probability


def prepare_focal_loss(workload: Workload, *, form: str, dtype: str) -> Prepared:
    """Prepare logits as the head gives them.

    `form` is one of `focal_loss`, `dtype` a name in torch.
    """
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, feature_sizes(workload))
    assignment = assign_targets(anchors, make_batch(workload).targets)
    logits = make_logits(workload, anchors, dtype=getattr(torch, dtype))
    # The loss of an image is divided by its foreground anchors, at least 1.
    scale = assignment.num_foreground.clamp(min=1) * workload.images

    def run() -> dict[str, float]:
        begin = time.perf_counter()
        loss = focal_loss(logits, assignment.classes, image_weights=1 / scale, form=form)
        forward = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        # Else the next backward pass would read and add to these gradients.
        for level in logits:
            level.grad = None
        return {"loss": loss.item(), "forward": forward - begin, "backward": end - forward}

    # What has to be moved at least: logits and classes in, gradients out.
    least_bytes = sum(2 * level.nbytes for level in logits)
    least_bytes += sum(level.nbytes for level in assignment.classes)
    return Prepared(run, {"least_bytes": least_bytes})


def make_logits(workload: Workload, anchors: list[Tensor], *, dtype: torch.dtype) -> list[Tensor]:
    """Return random logits of a new detector, for each level [N, A_l, K]."""
    generator = torch.Generator().manual_seed(workload.seed)
    logits = []
    for level in anchors:
        shape = (workload.images, len(level), workload.classes)
        values = torch.randn(shape, generator=generator) + FRESH_LOGIT
        logits.append(values.to(dtype).requires_grad_())
    return logits


def model_with_gradients(workload: Workload) -> RetinaNet:
    """Return MLPerf's model with random weights and gradients."""
    model = make_model(workload)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3
    return model


def prepare_gradient_norm(workload: Workload, *, clips: bool) -> Prepared:
    """Prepare the norm of all gradients; `clips` shortens the gradients too, each time."""
    model = model_with_gradients(workload)

    def run() -> None:
        norm = gradient_norm(model.parameters())
        # Just below the norm: every run scales all gradients, and hardly changes them.
        clip_gradients(model.parameters(), norm=norm, longest=0.999 * norm if clips else None)

    return Prepared(run)


def prepare_optimizer_step(workload: Workload, *, name: str, fused: bool) -> Prepared:
    """Prepare adam, sgd (with momentum) or lamb; not `fused` is torch's `foreach=False`."""
    model = model_with_gradients(workload)
    momentum = 0.9 if name == "sgd" else 0.0
    optimizer = make_optimizer(model, name=name, learning_rate=1e-4, momentum=momentum, fused=fused)
    return Prepared(optimizer.step)


def prepare_weight_average(workload: Workload) -> Prepared:
    """Prepare an update of the average of the weights, `training.ema`."""
    average = WeightAverage(model_with_gradients(workload), decay=0.999)
    return Prepared(partial(average.update, 0))


def prepare_postprocessing(workload: Workload, *, whose: str) -> Prepared:
    """Prepare "ours" or "torchvision"'s. The details count the boxes that were found."""
    outputs = make_outputs(workload)
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, outputs.feature_sizes)

    if whose == "ours":
        return Prepared(lambda: count_boxes(postprocess(outputs, anchors, size)))
    model = torchvision_model(workload)
    head_outputs = {"cls_logits": outputs.cls_logits, "bbox_regression": outputs.bbox_regression}

    def torchvisions() -> dict[str, float]:
        # Its NMS takes BF16 only under autocast.
        with torch.inference_mode(), autocast("bf16"):
            found = model.postprocess_detections(
                head_outputs, [anchors] * workload.images, [size] * workload.images
            )
        return count_boxes(Detections(**image) for image in found)

    return Prepared(torchvisions)


def count_boxes(detections: Iterable[Detections]) -> dict[str, float]:
    """Return the details of a run that finds boxes."""
    return {"boxes": sum(len(image.boxes) for image in detections)}


def prepare_evaluation(
    workload: Workload,
    *,
    whose: str,
    norm: Literal["frozen", "batch"] = "frozen",
    precision: str = "bf16",
) -> Prepared:
    """Prepare "ours" or "torchvision"'s, BF16 autocast in channels_last of images in [0, 1].

    `norm` and `precision` are ours, as in a configuration. The details count the boxes that were
    found.
    """
    batch = make_batch(workload)
    weights = make_detecting_weights(workload, normalize(batch.images))
    if whose == "torchvision":
        theirs = torchvision_detector(workload, weights, precision="bf16")
        images = batch.images.contiguous() / 255
        return Prepared(lambda: count_boxes(theirs(images)))
    settings = ModelConfig(norm=norm)
    model = build_model(settings, num_classes=workload.classes, weights=None).eval()
    # Norms that train also count the batches they have processed, which frozen ones do not.
    model.load_state_dict(weights, strict=norm == "frozen")
    forward = torch_forward(model, precision=precision)
    return Prepared(lambda: count_boxes(detect_batch(model, batch.images, forward=forward)))


def torchvision_detector(
    workload: Workload, weights: Mapping[str, Tensor], *, precision: str
) -> Callable[[Tensor], list[Detections]]:
    """Return torchvision's RetinaNet in channels_last, `bf16` by autocast, of images in [0, 1]."""
    model = torchvision_model(workload)
    model.load_state_dict(weights)
    model.to(memory_format=torch.channels_last).eval()

    def predict(images: Tensor) -> list[Detections]:
        with torch.inference_mode(), autocast(precision):
            found = model(list(images))
        return [Detections(**image) for image in found]

    return predict


BACKGROUND_LOGIT = -5.0
LARGEST_BACKGROUND_LOGIT = -3.0  # A score of 0.047: below the threshold of 0.05
OBJECTS_PER_LEVEL = 40
ANCHORS_PER_OBJECT = 9


def make_outputs(workload: Workload) -> HeadOutputs:
    """Return BF16 outputs, as the head gives them: background, and objects at some anchors.

    An object raises the logits of one class at some neighbouring anchors.
    """
    generator = torch.Generator().manual_seed(workload.seed)
    sizes = feature_sizes(workload)
    logits, deltas = [], []
    for level in anchors_for((workload.image_size, workload.image_size), sizes):
        shape = (workload.images, len(level), workload.classes)
        values = torch.randn(shape, generator=generator) + BACKGROUND_LOGIT
        values.clamp_(max=LARGEST_BACKGROUND_LOGIT)
        last = len(level) - ANCHORS_PER_OBJECT
        for image in values:
            for _ in range(OBJECTS_PER_LEVEL):
                first = int(torch.randint(last + 1, (), generator=generator)) if last > 0 else 0
                seen = slice(first, first + ANCHORS_PER_OBJECT)
                label = int(torch.randint(workload.classes, (), generator=generator))
                # From −2.5 to 2.5: scores of 0.08 to 0.92.
                image[seen, label] = torch.rand(len(image[seen]), generator=generator) * 5 - 2.5
        logits.append(values.bfloat16())
        deltas.append(torch.randn((*shape[:2], 4), generator=generator).mul_(0.2).bfloat16())
    return HeadOutputs(logits, deltas, sizes)


def make_detecting_weights(workload: Workload, images: Tensor) -> dict[str, Tensor]:
    """Return `make_weights` with logits spread out as a trained detector's.

    On the batch `images` [N, 3, H, W], normalized, some of them reach the threshold.
    """
    weights = make_weights(workload)
    model = RetinaNet(num_classes=workload.classes)
    model.load_state_dict(weights)
    with torch.inference_mode():
        logits = torch.cat([level.flatten() for level in model(images).cls_logits])
        wanted = len(BASE_SIZES) * OBJECTS_PER_LEVEL * ANCHORS_PER_OBJECT * workload.images
        last_wanted = logits.topk(min(wanted, len(logits))).values[-1]
        deviation = logits.std()
    head = "head.classification_head.cls_logits"
    prior = weights[f"{head}.bias"][0]
    # Logits spread by 1, and the last of the wanted ones lands where background ends.
    weights[f"{head}.bias"].fill_(LARGEST_BACKGROUND_LOGIT - (last_wanted - prior) / deviation)
    weights[f"{head}.weight"] /= deviation
    return weights
