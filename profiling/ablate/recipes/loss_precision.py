"""What the focal loss and its gradient lose when they are computed in BF16."""

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.ops import sigmoid_focal_loss

from profiling.bench.recipe import Prepared
from profiling.bench.recipes.focal_loss import make_logits
from profiling.bench.recipes.synthetic import feature_sizes, make_batch
from profiling.bench.workload import Workload
from retinanet.loss import focal_loss
from retinanet.loss.focal_reference import one_hot_targets
from retinanet.model import anchors_for, assign_targets
from retinanet.model.matching import IGNORED


def prepare(workload: Workload, *, loss: str) -> Prepared:
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
