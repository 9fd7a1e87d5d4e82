"""The start of test programs that run as several ranks; import it before torch."""

import os

from launch.pinning import RankContext, enter_rank_context
from launch.ranks import read_ranks
from launch.shares import CoreRequest


def enter_test_rank(
    *,
    allocator: str = "tuned",
    backend: str = "gloo",
    pinned: bool = False,
    timeout_s: float = 60.0,
) -> RankContext:
    """Set up this process as a rank of one thread."""
    return enter_rank_context(
        read_ranks(os.environ),
        request=CoreRequest(threads=1),
        allocator=allocator,
        backend=backend,
        pinned=pinned,
        timeout_s=timeout_s,
    )
