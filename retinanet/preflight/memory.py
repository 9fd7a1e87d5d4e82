"""Whether the ranks of a host find the memory that they are estimated to take."""

from launch.host.memory_limit import MemoryLeft
from retinanet.preflight.amounts import amount
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.preflight.memory_need import (
    LOADING_PROCESS,
    MemoryNeed,
    StepShape,
    evaluation_bytes,
    training_bytes,
)

SUBJECT = "memory"
FIX = (
    "lower training.batch_size (with training.gradient_accumulation the step stays the same), "
    "evaluation.batch_size, data.image_size or the ranks of this host"
)

MARGIN = 2
"""A run is refused if something is estimated to take so many times the memory that is free."""


def check_memory(
    need: MemoryNeed, *, ranks: int, once: int, not_started: int, left: MemoryLeft | None
) -> Finding:
    """Hold an estimate against what is left.

    It is no more than an estimate, so that only what no step can do without is a failure: weights,
    gradients and the optimizer's averages.

    Args:
        need: Of each rank.
        ranks: Of this host.
        once: What one of them takes besides: the copies that checkpoints are written from. [bytes]
        not_started: What ranks that are not there yet will take before they begin. [bytes]
        left: What processes may still take, and who says so; None where nobody does.
    """
    wanted = ranks * need.all + once + not_started
    of_ranks = f"{ranks} ranks × {amount(need.all)}" if ranks > 1 else amount(need.all)
    parts = (
        f"about {amount(need.model)} of weights, gradients and optimizer, "
        f"{amount(need.activations)} for the batch, {amount(need.other)} of other things, "
        f"{amount(need.loading)} of loading processes"
    )
    estimate = f"the ranks will take {of_ranks} more" if ranks > 1 else f"the run: {of_ranks} more"
    if once:
        estimate += f", and {amount(once)} while a checkpoint is written"
    if left is None:
        return ok(SUBJECT, f"{estimate} ({parts}); the system does not say what is free")
    have = f"{amount(left.size)} are free in {left.of}"
    if ranks * need.model > left.size + left.swap:
        least = amount(ranks * need.model)
        found = f"weights, gradients and optimizer alone take {least}, and only {have}"
        return failure(SUBJECT, found, fix="use fewer ranks on this host, or one with more memory")
    if wanted > left.size:
        return warning(SUBJECT, f"{have}, and {estimate} ({parts})", fix=FIX)
    return ok(SUBJECT, f"{have}; {estimate} ({parts})")


def check_counts(
    shape: StepShape, *, workers: int, ranks: int, left: MemoryLeft | None
) -> list[Finding]:
    """Refuse batches and loading processes that no host like this can hold.

    Args:
        shape: Of the steps of each rank.
        workers: Loading processes of each rank for each split, as configured.
        ranks: Of this host.
        left: What processes may still take; None where nobody says.

    Returns:
        A failure for each field that is too large; nothing where all fit.
    """
    if left is None:
        return []
    findings = []
    for field, count, of, size in (
        ("training.batch_size", shape.batch_size, "images", training_bytes(shape)),
        ("evaluation.batch_size", shape.evaluation_batch_size, "images", evaluation_bytes(shape)),
        ("data.workers", workers, "for each split", 2 * workers * LOADING_PROCESS),
    ):
        if ranks * size > (left.size + left.swap) * MARGIN:
            each = f"{ranks} ranks × {amount(size)}" if ranks > 1 else amount(size)
            found = (
                f"{field}: {count:,} {of} take about {each}, and only {amount(left.size)} are "
                f"free in {left.of}"
            )
            fitting = left.size // ranks // (size // count)
            fix = f"lower it to {fitting:,} or less" if fitting else "lower data.image_size"
            findings.append(failure(SUBJECT, found, fix=fix))
    return findings
