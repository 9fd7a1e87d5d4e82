"""Steps whose loss or gradients are not finite: what is known of one, and how many a run takes."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from common.errors import InputError

NAMES_TOLD = 5
NORMS_TOLD = 10
"""Gradient norms of the steps before that a report has."""


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """Some tensors of a model."""

    count: int
    first: tuple[str, ...]
    """Names of the first few."""


@dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """One batch of a step."""

    losses: dict[str, float]
    image_ids: tuple[int, ...]
    forward_seconds: float = 0.0
    """Forward pass and losses, in which no rank waits for another."""

    @property
    def is_finite(self) -> bool:
        """Whether all its terms are."""
        return all(map(math.isfinite, self.losses.values()))


@dataclass(frozen=True, kw_only=True)
class NonFiniteStep:
    """What a rank knows of a step that was not finite, and that changed nothing.

    Gradients are averages over the ranks, and where a loss was not finite none of them is.
    """

    batches: tuple[BatchTerms, ...]
    gradients: TensorNames
    """Parameters whose gradients were not finite."""
    weights: TensorNames
    """Parameters that were not finite before the step."""
    statistics: TensorNames
    """Statistics and constants of norms that were not finite before the step."""


def find_nonfinite(model: nn.Module, batches: Sequence[BatchTerms]) -> NonFiniteStep:
    """Look through a model that has the step's gradients, and is otherwise as before the step."""
    parameters = list(model.named_parameters())
    return NonFiniteStep(
        batches=tuple(batches),
        gradients=names_of_nonfinite(
            (name, one.grad) for name, one in parameters if one.grad is not None
        ),
        weights=names_of_nonfinite(parameters),
        statistics=names_of_nonfinite(model.named_buffers()),
    )


def names_of_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> TensorNames:
    """The names of those that hold a value that is infinite or NaN."""
    found = [name for name, tensor in tensors if not torch.isfinite(tensor.detach()).all()]
    return TensorNames(count=len(found), first=tuple(found[:NAMES_TOLD]))


def require_finite_tensors(tensors: Mapping[str, Tensor], *, file: Path | str) -> None:
    """Check tensors that were read from a file, at the speed of memory.

    Raises:
        InputError: Names the file and the first tensor that holds an infinite value or NaN.
    """
    for name, tensor in tensors.items():
        # `aminmax` hands on NaN, and unlike `isfinite` allocates nothing.
        if tensor.numel() and not all(map(math.isfinite, map(float, tensor.float().aminmax()))):
            raise InputError(f"{file}: {name} holds a value that is not finite (NaN or infinite)")


@dataclass
class NonFiniteSteps:
    """Those of a run, and whether it goes on after one."""

    action: Literal["stop", "skip"]
    limit: int
    """Steps that may be skipped."""
    skipped: int = 0
    """Steps so far, those before a resume included."""
    norms: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NORMS_TOLD))
    """Of the last steps: step and gradient norm."""

    def advice(self, steps: Sequence[NonFiniteStep]) -> str | None:
        """Count a step of all ranks. Returns what to do about it where the run cannot go on."""
        if any(one.weights.count or one.statistics.count for one in steps):
            return "go on from an earlier checkpoint, as skipping steps mends no weights"
        calmer = "lower training.learning_rate or set training.clip_gradient_norm"
        if self.action == "stop":
            return f"{calmer}, or have such steps skipped: training.on_nonfinite=skip"
        if self.skipped >= self.limit:
            return f"as many as training.nonfinite_limit={self.limit} were skipped before: {calmer}"
        self.skipped += 1
        return None
