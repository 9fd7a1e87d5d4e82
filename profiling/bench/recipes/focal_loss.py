"""The focal loss of a batch, forward and backward."""

import time

import torch
from torch import Tensor

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.synthetic import feature_sizes, make_batch
from profiling.bench.workload import Workload
from retinanet.loss import focal_loss
from retinanet.model import anchors_for, assign_targets

FRESH_LOGIT = -4.6
"""Of a new detector everywhere: 0.01 as a probability."""


def prepare(workload: Workload, *, form: str, dtype: str) -> Prepared:
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
