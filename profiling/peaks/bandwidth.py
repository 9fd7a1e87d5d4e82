"""Moving more memory than any cache holds."""

from collections.abc import Callable

import torch

BUFFER_BYTES = 256 * 2**20
"""Many times what the caches of most processors hold."""

REPETITIONS = 5


def movers(buffer_bytes: int = BUFFER_BYTES) -> dict[str, Callable[[], object]]:
    """Ways to read `buffer_bytes` and write as many, by name, on all of torch's threads."""
    source = torch.ones(buffer_bytes // 4)
    target = torch.zeros_like(source)
    return {
        "copy": lambda: target.copy_(source),
        "scale in place": lambda: target.mul_(1.0),
    }
