"""What to say of a step whose loss or gradients were not finite, in one line."""

from typing import Any

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
