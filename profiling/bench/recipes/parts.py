"""Recipes of parts of training and evaluation.

The focal loss of a batch, the norm of the detector's gradients, an optimizer's step, from the
head's outputs to boxes (ours and torchvision's), and a whole evaluation step. The outputs of a
trained detector's head are made from a seed.
"""

import time
from typing import Literal

import torch
from torch import Tensor

from data.transforms import normalize
from profiling.bench.recipes.step import feature_sizes, make_batch, make_weights, torchvision_model
from profiling.bench.variant import Prepared, Workload
from retinanet.config import ModelConfig
from retinanet.engine.engines import torch_forward
from retinanet.engine.optimizers import clip_gradients, gradient_norm, make_optimizer
from retinanet.evaluation.detect import detect_batch
from retinanet.loss.focal import focal_loss
from retinanet.model.anchors import BASE_SIZES, anchors_for
from retinanet.model.matching import assign_targets
from retinanet.model.postprocess import postprocess
from retinanet.model.retinanet import HeadOutputs, RetinaNet
from retinanet.training.build import build_model

FRESH_LOGIT = -4.6
"""Of a new detector everywhere: 0.01 as a probability."""


def prepare_focal_loss(workload: Workload, *, form: str, dtype: str) -> Prepared:
    """Logits as the head gives them; `form` is one of `focal_loss`, `dtype` a name in torch."""
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, feature_sizes(workload))
    assignment = assign_targets(anchors, make_batch(workload).targets)
    logits = make_logits(workload, anchors, dtype=getattr(torch, dtype))
    scale = assignment.num_foreground.clamp(min=1) * workload.images

    def run() -> dict[str, float]:
        begin = time.perf_counter()
        loss = focal_loss(logits, assignment.classes, image_weights=1 / scale, form=form)
        forward = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        for level in logits:
            level.grad = None
        return {"loss": loss.item(), "forward": forward - begin, "backward": end - forward}

    # What has to be moved at least: logits and classes in, gradients out.
    least_bytes = sum(2 * level.nbytes for level in logits)
    least_bytes += sum(level.nbytes for level in assignment.classes)
    return Prepared(run, {"least_bytes": least_bytes})


def make_logits(workload: Workload, anchors: list[Tensor], *, dtype: torch.dtype) -> list[Tensor]:
    """For each level [N, A_l, K]."""
    generator = torch.Generator().manual_seed(workload.seed)
    logits = []
    for level in anchors:
        shape = (workload.images, len(level), workload.classes)
        values = torch.randn(shape, generator=generator) + FRESH_LOGIT
        logits.append(values.to(dtype).requires_grad_())
    return logits


def prepare_gradient_norm(workload: Workload, *, clips: bool) -> Prepared:
    """`clips`: shorten the gradients too, each time."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3

    def run() -> dict[str, float]:
        norm = gradient_norm(model.parameters())
        clip_gradients(model.parameters(), norm=norm, longest=0.999 * norm if clips else None)
        return {}

    return Prepared(run)


def prepare_optimizer_step(workload: Workload, *, name: str, fused: bool) -> Prepared:
    """`name`: adam, sgd (with momentum) or lamb; not `fused` is torch's `foreach=False`."""
    model = build_model(ModelConfig(), num_classes=workload.classes, weights=None)
    model.load_state_dict(make_weights(workload))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3
    momentum = 0.9 if name == "sgd" else 0.0
    optimizer = make_optimizer(model, name=name, learning_rate=1e-4, momentum=momentum, fused=fused)

    def run() -> dict[str, float]:
        optimizer.step()
        return {}

    return Prepared(run)


def prepare_postprocessing(workload: Workload, *, whose: str) -> Prepared:
    """`whose`: "ours" or "torchvision". The details count the boxes that were found."""
    outputs = make_outputs(workload)
    size = (workload.image_size, workload.image_size)
    anchors = anchors_for(size, outputs.feature_sizes)

    def ours() -> dict[str, float]:
        found = postprocess(outputs, anchors, size)
        return {"boxes": sum(len(image.boxes) for image in found)}

    if whose == "ours":
        return Prepared(ours)
    model = torchvision_model(workload)
    head_outputs = {"cls_logits": outputs.cls_logits, "bbox_regression": outputs.bbox_regression}

    def torchvisions() -> dict[str, float]:
        # Its NMS takes BF16 only under autocast.
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = model.postprocess_detections(
                head_outputs, [anchors] * workload.images, [size] * workload.images
            )
        return {"boxes": sum(len(image["boxes"]) for image in found)}

    return Prepared(torchvisions)


def prepare_evaluation(
    workload: Workload,
    *,
    whose: str,
    norm: Literal["frozen", "batch"] = "frozen",
    precision: str = "bf16",
) -> Prepared:
    """`whose`: "ours" or "torchvision". The details count the boxes that were found.

    `norm`, `precision`: as in a configuration, of ours.
    """
    batch = make_batch(workload)
    weights = make_detecting_weights(workload, normalize(batch.images))
    if whose == "torchvision":
        return torchvisions(workload, list(batch.images.contiguous() / 255), weights)
    settings = ModelConfig(norm=norm)
    model = build_model(settings, num_classes=workload.classes, weights=None).eval()
    # Norms that train also count the batches they have seen, which frozen ones do not.
    model.load_state_dict(weights, strict=norm == "frozen")
    forward = torch_forward(model, precision=precision)

    def run() -> dict[str, float]:
        found = detect_batch(model, batch.images, forward=forward)
        return {"boxes": sum(len(image.boxes) for image in found)}

    return Prepared(run)


def torchvisions(
    workload: Workload, images: list[torch.Tensor], weights: dict[str, torch.Tensor]
) -> Prepared:
    """BF16 autocast, channels_last; `images` are in [0, 1]."""
    model = torchvision_model(workload)
    model.load_state_dict(weights)
    model.to(memory_format=torch.channels_last).eval()

    def run() -> dict[str, float]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(images)
        return {"boxes": sum(len(image["boxes"]) for image in found)}

    return Prepared(run)


BACKGROUND_LOGIT = -5.0
LARGEST_BACKGROUND_LOGIT = -3.0
"""A score of 0.047: below the threshold of 0.05."""

OBJECTS_PER_LEVEL = 40
ANCHORS_PER_OBJECT = 9


def make_outputs(workload: Workload) -> HeadOutputs:
    """BF16, as the head gives them: background everywhere, and objects that some anchors see."""
    generator = torch.Generator().manual_seed(workload.seed)
    sizes = feature_sizes(workload)
    logits, deltas = [], []
    for level in anchors_for((workload.image_size, workload.image_size), sizes):
        shape = (workload.images, len(level), workload.classes)
        values = torch.randn(shape, generator=generator) + BACKGROUND_LOGIT
        values.clamp_(max=LARGEST_BACKGROUND_LOGIT)
        for image in values:
            plant_objects(image, generator)
        logits.append(values.bfloat16())
        deltas.append(torch.randn((*shape[:2], 4), generator=generator).mul_(0.2).bfloat16())
    return HeadOutputs(logits, deltas, sizes)


def plant_objects(logits: Tensor, generator: torch.Generator) -> None:
    """Raise the logits [A, K] of one class at some neighbouring anchors, object by object."""
    num_anchors, num_classes = logits.shape
    for _ in range(OBJECTS_PER_LEVEL):
        last = num_anchors - ANCHORS_PER_OBJECT
        first = int(torch.randint(last + 1, (), generator=generator)) if last > 0 else 0
        seen = slice(first, first + ANCHORS_PER_OBJECT)
        label = int(torch.randint(num_classes, (), generator=generator))
        logits[seen, label] = torch.rand(len(logits[seen]), generator=generator) * 5 - 2.5


def make_detecting_weights(workload: Workload, images: Tensor) -> dict[str, Tensor]:
    """`make_weights` with logits spread out as a trained detector's: some reach the threshold.

    `images` [N, 3, H, W] normalized: the batch on which they do.
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
