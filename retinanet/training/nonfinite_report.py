"""What is known of a step whose loss or gradients were not finite, in full, for JSON.

TODO-DOC What to say of a step whose loss or gradients were not finite, in one line.
"""

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


BATCHES_TOLD = 2
IMAGES_TOLD = 4
NORMS_TOLD = 3
NAMES_TOLD = 2
"""The report has all of them."""


def nonfinite_line(report: dict[str, Any]) -> str:
    """The most important of a `nonfinite_report`, without advice."""
    what = "gradients" if report["loss_is_finite"] else "loss"
    parts = [f"{what} not finite at step {report['step']}: {batches_line(report)}"]
    gradients = report["gradients_not_finite"]
    if gradients is not None:
        parts.append(f"gradients not finite: {names_line(gradients)}")
    norms = [number(one["gradient_norm"]) for one in report["gradient_norms_before"][-NORMS_TOLD:]]
    if norms:
        parts.append(f"gradient norms before {', '.join(norms)}")
    parts.append(f"learning rate {number(report['learning_rate'])}")
    before = [report["weights_not_finite_before"]]
    before += [rank["statistics_not_finite_before"] for rank in report["ranks"]]
    for names in before:
        if names["count"]:
            parts.append(f"weights were already not finite before it: {names_line(names)}")
            break
    return "; ".join(parts)


def batches_line(report: dict[str, Any]) -> str:
    """The batches whose loss was not finite, or all where it was."""
    told = []
    for rank in report["ranks"]:
        for batch in rank["batches"]:
            if report["loss_is_finite"] or any(type(v) is str for v in batch["losses"].values()):
                place = f"rank {rank['rank']}: " if len(report["ranks"]) > 1 else ""
                told.append(place + batch_line(batch))
    return some_of(told, count=len(told), most=BATCHES_TOLD)


def batch_line(batch: dict[str, Any]) -> str:
    """A batch's terms, and its images."""
    terms = ", ".join(f"{name} {number(value)}" for name, value in batch["losses"].items())
    images = [f"{one['id']} ({one['file_name']})" for one in batch["images"]]
    return f"{terms}, images {some_of(images, count=len(images), most=IMAGES_TOLD)}"


def names_line(names: dict[str, Any]) -> str:
    """The first few of some tensors."""
    if not names["count"]:
        return "none, but their norm"
    return some_of(names["first"], count=names["count"], most=NAMES_TOLD)


def some_of(words: list[str], *, count: int, most: int) -> str:
    """Up to `most` of the words, and how many there are beside them."""
    told = words[:most]
    rest = count - len(told)
    return ", ".join(told) + (f" and {rest} more" if rest else "")


def number(value: float | str) -> str:
    """A number that may be a word."""
    return value if isinstance(value, str) else f"{value:.3g}"
