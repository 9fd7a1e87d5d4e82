"""The learning rate as a function of the step, so that a resumed run needs no state for it."""

import math


def learning_rate_factor(
    step: int,
    *,
    warmup_steps: int,
    warmup_factor: float,
    total_steps: int,
    schedule: str,
) -> float:
    """Share of the full learning rate that a step uses.

    The warm-up is linear from `warmup_factor` and advances every step, as MLPerf's reference does
    (`torch.optim.lr_scheduler.LinearLR`). With `cosine` the rate then falls to zero.

    Args:
        step: Optimizer steps done before this one, from 0.
        warmup_steps: Length of the warm-up. [steps]
        warmup_factor: The share at step 0.
        total_steps: Length of the whole run. [steps]
        schedule: `constant` or `cosine`.
    """
    if step < warmup_steps:
        return warmup_factor + (1 - warmup_factor) * step / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
