"""What a trained detector's head says of a batch, made from a seed."""

import torch
from torch import Tensor

from profiling.bench.recipes.synthetic import feature_sizes, make_weights
from profiling.bench.workload import Workload
from retinanet.model import HeadOutputs, RetinaNet, anchors_for
from retinanet.model.anchors import BASE_SIZES

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
