"""What is known of a step whose loss or gradients were not finite, in full, for JSON."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.annotations import Annotations
from retinanet.training.loop import StepResult
from retinanet.training.nonfinite import BatchTerms, TensorNames


def nonfinite_report(
    result: StepResult,
    *,
    annotations: Annotations,
    norms_before: Iterable[tuple[int, float]],
    skipped: int,
) -> dict[str, Any]:
    """All that is known; numbers that are not finite are the words `nan`, `inf` and `-inf`.

    Args:
        result: Of all ranks, with `nonfinite`.
        annotations: Of the training images.
        norms_before: Step and gradient norm of the steps before.
        skipped: Steps that the run has skipped, this one included if it was.
    """
    first = result.nonfinite[0]  # weights and averaged gradients are the same on all ranks
    return {
        "step": result.step,
        "skipped_steps": skipped,
        "learning_rate": result.learning_rate,
        "gradient_norm": in_words(result.gradient_norm),
        "gradient_norms_before": [
            {"step": step, "gradient_norm": in_words(norm)} for step, norm in norms_before
        ],
        "loss_is_finite": loss_is_finite(result),
        # Where a loss is not finite, no gradient is.
        "gradients_not_finite": named(first.gradients) if loss_is_finite(result) else None,
        "weights_not_finite_before": named(first.weights),
        "ranks": [
            {
                "rank": rank,
                "batches": [described_batch(batch, annotations) for batch in found.batches],
                "statistics_not_finite_before": named(found.statistics),
            }
            for rank, found in enumerate(result.nonfinite)
        ],
    }


def loss_is_finite(result: StepResult) -> bool:
    """Whether all terms of all batches of all ranks were."""
    return all(batch.is_finite for found in result.nonfinite for batch in found.batches)


def described_batch(batch: BatchTerms, annotations: Annotations) -> dict[str, Any]:
    """A batch's losses and images."""
    names = file_names_of(batch.image_ids, annotations)
    return {
        "losses": {name: in_words(value) for name, value in batch.losses.items()},
        "images": [
            {"id": image_id, "file_name": name}
            for image_id, name in zip(batch.image_ids, names, strict=True)
        ],
    }


def file_names_of(image_ids: Sequence[int], annotations: Annotations) -> list[str | None]:
    """The files of images, by the data set's own ids."""
    rows = (np.flatnonzero(annotations.image_ids == image_id) for image_id in image_ids)
    return [annotations.file_names[int(row[0])] if len(row) else None for row in rows]


def named(names: TensorNames) -> dict[str, Any]:
    """How many, and the first few."""
    return {"count": names.count, "first": list(names.first)}


def in_words(value: float) -> float | str:
    """A number as JSON has it, or the word for what JSON has not."""
    return value if math.isfinite(value) else str(value)
