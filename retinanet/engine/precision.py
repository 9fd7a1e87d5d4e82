"""The number format of the model's arithmetic."""

from contextlib import AbstractContextManager

import torch


def autocast(precision: str) -> AbstractContextManager[None]:
    """Context in which convolutions and matrix products run in the given precision.

    Args:
        precision: `bf16` (weights stay in float32, products are BF16) or `float32`.
    """
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")
