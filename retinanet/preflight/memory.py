"""Whether the ranks of a host find the memory that they are estimated to take."""

from launch.host.memory_limit import MemoryLeft
from retinanet.preflight.amounts import amount
from retinanet.preflight.finding import Finding, failure, ok, warning
from retinanet.preflight.memory_need import MemoryNeed

SUBJECT = "memory"
FIX = (
    "lower training.batch_size (with training.gradient_accumulation the step stays the same), "
    "evaluation.batch_size, data.image_size or the ranks of this host"
)


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
