"""Steps whose loss or gradients are not finite: their reports, and the limit of a run.

Such a step changes nothing: the update is skipped. `NonFiniteGuard` decides whether the run
continues, and describes the step: in full as JSON, and in one line for the console.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import InputError
from common.wording import listed
from data.annotations import Annotations

NAMES_KEPT = 5  # Names of tensors in a report
NORMS_KEPT = 10  # Gradient norms of earlier steps in a report
BATCHES_SHOWN, IMAGES_SHOWN, NORMS_SHOWN, NAMES_SHOWN = 2, 4, 3, 2  # In the line for the console


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """A number of tensors of a model, and the names of the first few."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """The losses of one batch of a step, or of its images of one orientation."""

    losses: dict[str, float]
    image_ids: tuple[int, ...]
    share: float = 1.0  # The part of the batch's images
    forward_seconds: float = 0.0  # Forward pass and losses, in which no rank waits for another

    @property
    def is_finite(self) -> bool:
        """Whether all terms are finite."""
        return all(map(math.isfinite, self.losses.values()))


@dataclass(frozen=True, kw_only=True)
class NonFiniteStep:
    """A rank's record of a skipped step with a non-finite loss or gradient.

    Gradients are averages over the ranks; if a loss was not finite, none of them is.
    """

    batches: tuple[BatchTerms, ...]
    gradients: TensorNames  # Parameters whose gradients were not finite
    weights: TensorNames  # Parameters that were not finite before the step
    statistics: TensorNames
    """Statistics and constants of norms that were not finite before the step."""


def find_nonfinite(model: nn.Module, batches: Sequence[BatchTerms]) -> NonFiniteStep:
    """Search a model that has the step's gradients, and is otherwise as before the step."""

    def names_of_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> TensorNames:
        names = [name for name, tensor in tensors if not torch.isfinite(tensor.detach()).all()]
        return TensorNames(count=len(names), first=tuple(names[:NAMES_KEPT]))

    parameters = list(model.named_parameters())
    gradients = [(name, value.grad) for name, value in parameters if value.grad is not None]
    return NonFiniteStep(
        batches=tuple(batches),
        gradients=names_of_nonfinite(gradients),
        weights=names_of_nonfinite(parameters),
        statistics=names_of_nonfinite(model.named_buffers()),
    )


def require_finite_tensors(tensors: Mapping[str, Tensor], *, file: Path | str) -> None:
    """Check tensors that were read from a file, at the speed of memory.

    Raises:
        InputError: Names the file and the first tensor that holds an infinite value or NaN.
    """
    for name, tensor in tensors.items():
        # `aminmax` propagates NaN and, unlike `isfinite`, allocates no tensor of the same size.
        if tensor.numel() and not all(map(math.isfinite, map(float, tensor.float().aminmax()))):
            raise InputError(
                f"{file}: {name} contains a value that is not finite (NaN or infinite)"
            )


@dataclass(frozen=True, kw_only=True)
class NonFiniteReport:
    """The report of a step with a non-finite loss or gradient, over all ranks."""

    content: dict[str, Any]  # The whole report, for JSON: see `describe_step`
    line: str  # The most important of it
    advice: str | None  # Advice to the user if the run cannot continue; None: the step is skipped


class NonFiniteGuard:
    """Decides whether a run continues after a step that was not finite; the same on all ranks."""

    def __init__(
        self, action: Literal["stop", "skip"], *, limit: int, annotations: Annotations
    ) -> None:
        """Allow `limit` skipped steps if `action` is `skip`; `annotations` name the images."""
        self._action = action
        self._limit = limit
        self._annotations = annotations
        self._norms: deque[tuple[int, float]] = deque(maxlen=NORMS_KEPT)
        self.skipped = 0
        """Skipped steps so far, those before a resume included."""

    def check(
        self,
        step: int,
        ranks: Sequence[NonFiniteStep],
        *,
        gradient_norm: float,
        learning_rate: float,
        is_decided: bool = False,
    ) -> NonFiniteReport | None:
        """Record a step, and return a report if it was not finite: `ranks` has each rank's record.

        `is_decided`: other ranks have already skipped it, and it is only counted.
        """
        if not ranks:
            self._norms.append((step, gradient_norm))
            return None
        advice = None if is_decided else self.advice(ranks)
        if advice is None:
            self.skipped += 1
        content = {
            "step": step,
            "skipped_steps": self.skipped,
            "learning_rate": learning_rate,
            "gradient_norm": json_number(gradient_norm),
            "gradient_norms_before": [
                {"step": before, "gradient_norm": json_number(norm)} for before, norm in self._norms
            ],
            **describe_step(ranks, self._annotations),
        }
        return NonFiniteReport(content=content, line=format_line(content), advice=advice)

    def advice(self, ranks: Sequence[NonFiniteStep]) -> str | None:
        """Return what to do about a step where the run cannot continue; None: skip it."""
        # This comes first: weights that were damaged before the step make every later step fail.
        if any(rank.weights.count or rank.statistics.count for rank in ranks):
            return "resume from an earlier checkpoint: skipping steps does not repair weights"
        calmer = "lower training.learning_rate or set training.clip_gradient_norm"
        if self._action == "stop":
            return f"{calmer}, or skip such steps with training.on_nonfinite=skip"
        if self.skipped >= self._limit:
            return f"training.nonfinite_limit={self._limit} steps were already skipped: {calmer}"
        return None


def describe_step(ranks: Sequence[NonFiniteStep], annotations: Annotations) -> dict[str, Any]:
    """Return the ranks' records of a step; numbers that are not finite are JSON strings."""

    def image(image_id: int) -> dict[str, Any]:
        rows = np.flatnonzero(annotations.image_ids == image_id)
        name = annotations.file_names[int(rows[0])] if len(rows) else None
        return {"id": image_id, "file_name": name}

    def batch(terms: BatchTerms) -> dict[str, Any]:
        losses = {name: json_number(value) for name, value in terms.losses.items()}
        return {"losses": losses, "images": [image(image_id) for image_id in terms.image_ids]}

    loss_is_finite = all(terms.is_finite for rank in ranks for terms in rank.batches)
    # Weights and averaged gradients are equal on all ranks, so one record of them suffices.
    first = ranks[0]
    return {
        "loss_is_finite": loss_is_finite,
        # If a loss is not finite, no gradient is.
        "gradients_not_finite": asdict(first.gradients) if loss_is_finite else None,
        "weights_not_finite_before": asdict(first.weights),
        "ranks": [
            {
                "rank": number,
                "batches": [batch(terms) for terms in rank.batches],
                "statistics_not_finite_before": asdict(rank.statistics),
            }
            for number, rank in enumerate(ranks)
        ],
    }


def json_number(value: float) -> float | str:
    """Return a number, or `nan`, `inf` or `-inf`, which JSON has as strings only."""
    return value if math.isfinite(value) else str(value)


def format_line(report: Mapping[str, Any]) -> str:
    """Return the main facts of a report in one line, without advice."""
    loss_is_finite, ranks = report["loss_is_finite"], report["ranks"]
    # The batches whose loss was not finite, or all where it was.
    batches = []
    for rank in ranks:
        place = f"rank {rank['rank']}: " if len(ranks) > 1 else ""
        for batch in rank["batches"]:
            losses = batch["losses"]
            if loss_is_finite or any(type(value) is str for value in losses.values()):
                terms = ", ".join(f"{name} {format_number(losses[name])}" for name in losses)
                images = [f"{image['id']} ({image['file_name']})" for image in batch["images"]]
                shown = listed(images, IMAGES_SHOWN)
                batches.append(f"{place}{terms}, images {shown}")
    shown = listed(batches, BATCHES_SHOWN)
    what = "gradients" if loss_is_finite else "loss"
    parts = [f"{what} not finite at step {report['step']}: {shown}"]
    if report["gradients_not_finite"] is not None:
        parts.append(f"gradients not finite: {format_names(report['gradients_not_finite'])}")
    norms = [format_number(step["gradient_norm"]) for step in report["gradient_norms_before"]]
    if norms:
        parts.append(f"gradient norms before {', '.join(norms[-NORMS_SHOWN:])}")
    parts.append(f"learning rate {format_number(report['learning_rate'])}")
    before = [report["weights_not_finite_before"]]
    before += [rank["statistics_not_finite_before"] for rank in ranks]
    broken = next((names for names in before if names["count"]), None)
    if broken:
        parts.append(f"weights were already not finite before it: {format_names(broken)}")
    return "; ".join(parts)


def format_names(names: Mapping[str, Any]) -> str:
    """Return the first few names of tensors."""
    if not names["count"]:
        return "only their norm"
    return listed(names["first"], NAMES_SHOWN, count=names["count"])


def format_number(value: float | str) -> str:
    """Return three digits of a number, or its name."""
    return value if isinstance(value, str) else f"{value:.3g}"
